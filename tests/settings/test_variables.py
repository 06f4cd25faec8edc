"""References to environment variables in values."""

from __future__ import annotations

import pytest

from replayfilter.errors import ConfigError
from replayfilter.settings.variables import (
    expand,
    expanded,
    is_reference,
    is_set_by_variable,
    unset_variables,
)


def test_references_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RF_TEST_USER", "me")
    monkeypatch.setenv("RF_TEST_PASSWORD", "${RF_TEST_USER}")
    assert expand("${RF_TEST_USER}:${RF_TEST_PASSWORD}") == "me:${RF_TEST_USER}", "only once"
    assert expand("$RF_TEST_USER {} $") == "$RF_TEST_USER {} $"


def test_unset_variables_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RF_TEST_USER", "")
    monkeypatch.delenv("RF_TEST_UNSET", raising=False)
    assert unset_variables("${RF_TEST_USER}:${RF_TEST_UNSET}") == ["RF_TEST_UNSET"]
    with pytest.raises(KeyError):
        expand("${RF_TEST_UNSET}")


def test_the_settings_of_an_option_name_the_variable_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RF_TEST_PASSWORD", "hunter2")
    monkeypatch.delenv("RF_TEST_UNSET", raising=False)
    given = {"sasl.username": "me", "sasl.password": "${RF_TEST_PASSWORD}"}
    assert expanded("--option", given) == {"sasl.username": "me", "sasl.password": "hunter2"}
    with pytest.raises(ConfigError, match=r"--option ssl\.key\.password: .* RF_TEST_UNSET, ") as caught:
        expanded("--option", {**given, "ssl.key.password": "${RF_TEST_UNSET}"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("text", "expected"), [("${A}", True), ("x${A}", False), ("", False), ("A", False)])
def test_a_reference_has_no_text_around_it(text: str, expected: bool) -> None:
    assert is_reference(text) is expected


def test_the_case_of_a_variable_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("replayfilter_http__port", "1")
    assert is_set_by_variable("http.port")
    assert not is_set_by_variable("http.bind")
