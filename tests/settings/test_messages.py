"""Values in messages: secrets are masked, long values shortened."""

from __future__ import annotations

import pytest

from replayfilter.settings.messages import format_setting


@pytest.mark.parametrize(
    ("path", "value", "shown"),
    [
        ("service.name", "orders", '"orders"'),
        ("kafka.options.sasl.password", "hunter2", '"***"'),
        ("kafka.options.sasl.password", "${PASSWORD}", '"${PASSWORD}"'),
        ("kafka.options", {"sasl.password": "hunter2", "acks": 1}, '{"sasl.password": "***", "acks": 1}'),
        ("avro.registry", "http://me:hunter2@registry", '"http://***@registry"'),
        ("service.name", "x" * 100, '"' + "x" * 76 + "..."),
    ],
)  # fmt: skip
def test_secrets_are_masked_and_long_values_shortened(path: str, value: object, shown: str) -> None:
    assert format_setting(path, value) == f"{path} = {shown}"


def test_a_value_from_the_environment_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAYFILTER_HTTP__PORT", "x")
    assert format_setting("http.port", "x") == 'http.port = "x" (from REPLAYFILTER_HTTP__PORT)'
