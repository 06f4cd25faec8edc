"""Keys under their old names: they work, with a warning, and don't work beside the new name."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from replayfilter.errors import ConfigError
from replayfilter.service.config.loader import config_from, load
from replayfilter.service.config.model import keys_by_section
from replayfilter.service.config.renamed import RENAMED, with_new_names
from tests.support.configs import EXAMPLE, errors_of

OLD_VARIABLE = "REPLAYFILTER_DEDUP__REMEMBER_ORIGIN"


def example_with(folder: Path, line: str) -> Path:
    """The example with one more line in its section [dedup]."""
    path = folder / "renamed.toml"
    path.write_text(EXAMPLE.read_text().replace("[dedup]\n", f"[dedup]\n{line}\n"))
    return path


def test_every_entry_leads_from_no_key_to_a_key_of_sections_that_exist() -> None:
    keys = keys_by_section()
    for old, new in RENAMED.items():
        (old_section, old_key), (section, key) = old.split("."), new.split(".")
        assert old_key not in keys[old_section]
        assert key in keys[section]


def test_an_old_name_works_with_a_warning_that_has_the_new_one(tmp_path: Path) -> None:
    warnings: list[str] = []
    config = load(example_with(tmp_path, "remember_origin = true"), warnings.append)
    assert config.dedup.remember_first
    assert warnings == [
        "dedup.remember_origin is now dedup.remember_first; the old name goes away in the next version"
    ]


def test_an_old_variable_works_with_a_warning_that_has_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OLD_VARIABLE, "true")
    warnings: list[str] = []
    assert load(EXAMPLE, warnings.append).dedup.remember_first
    assert warnings == [
        f"{OLD_VARIABLE} is now REPLAYFILTER_DEDUP__REMEMBER_FIRST; "
        "the old name goes away in the next version"
    ]


def test_a_new_name_gives_no_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    assert load(example_with(tmp_path, "remember_first = true"), warnings.append).dedup.remember_first
    assert warnings == []


def test_an_old_value_has_its_new_name_too() -> None:
    for old, new in (("stamp", "key"), ("preserve", "none")):
        warnings: list[str] = []
        tables = tomllib.loads(EXAMPLE.read_text())
        tables["output"]["key"] = old
        assert config_from(tables, warnings.append).output.stamp == new
        assert warnings == [
            f'output.key = "{old}" is now output.stamp = "{new}"; the old name goes away in the next version'
        ]
    (error,) = errors_of(output={"key": "other"})
    assert error.startswith('output.key = "other": not one of the choices')


def test_both_names_are_an_error() -> None:
    (error,) = errors_of(dedup={"remember_origin": True, "remember_first": True})
    assert error == (
        "dedup.remember_origin = true: dedup.remember_first is set too; remove the old name, "
        "dedup.remember_origin"
    )


def test_an_old_variable_beside_the_new_key_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(OLD_VARIABLE, "true")
    with pytest.raises(ConfigError, match=rf"\(from {OLD_VARIABLE}\): dedup.remember_first is set too"):
        load(example_with(tmp_path, "remember_first = false"))


def test_an_error_in_the_value_names_the_key_as_the_user_wrote_it() -> None:
    (error,) = errors_of(dedup={"remember_origin": "perhaps"})
    assert error.startswith('dedup.remember_origin = "perhaps": must be a valid boolean')


def test_the_new_name_is_suggested_for_a_misspelled_one() -> None:
    (error,) = errors_of(dedup={"remember_frist": True})
    assert error.endswith("did you mean dedup.remember_first?")


@pytest.mark.parametrize(
    ("tables", "expected", "used"),
    [
        ({}, {}, {}),
        ({"a": {"old": 1, "x": 2}}, {"a": {"x": 2}, "b": {"new": 1}}, {"b.new": "a.old"}),
        ({"a": {"old": 1}, "b": {"y": 3}}, {"a": {}, "b": {"y": 3, "new": 1}}, {"b.new": "a.old"}),
        ({"a": 5}, {"a": 5}, {}),
        ({"a": {"old": 1}, "b": 5}, {"a": {"old": 1}, "b": 5}, {}),
    ],
)
def test_a_key_may_move_to_another_section(
    tables: dict[str, Any], expected: dict[str, Any], used: Mapping[str, str]
) -> None:
    found = with_new_names(tables, {"a.old": "b.new"})
    assert (found.tables, found.used, found.errors) == (expected, used, {})
