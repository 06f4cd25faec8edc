"""The reference pages describe every config key and every command with its options, and nothing else."""

from __future__ import annotations

import json
import re
import runpy
import tomllib

import pytest
import typer

from replayfilter.service.cli.main import app
from replayfilter.service.config.model import Config, keys_by_section, section_types
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
CONFIGURATION = DOCS / "reference" / "configuration.md"
ROW = re.compile(r"^\| `([a-z]+\.[a-z_]+)` \|" + r"([^|\n]*)\|" * 5 + "$", re.MULTILINE)


def rows() -> list[tuple[str, ...]]:
    """Return (key, type, meaning, unit, default, example) of each row in the tables of keys."""
    return [tuple(map(str.strip, row)) for row in ROW.findall(CONFIGURATION.read_text("utf-8"))]


def test_every_key_has_a_row_and_every_row_a_key() -> None:
    keys = [f"{section}.{key}" for section, names in keys_by_section().items() for key in names]
    assert [row[0] for row in rows()] == keys, "each key once, in the order of the config"
    assert all(all(row) for row in rows()), "type, meaning, unit, default and example"


def test_the_tables_of_keys_are_up_to_date() -> None:
    remake = runpy.run_path(str(DOCS / "remake.py"))
    text = CONFIGURATION.read_text("utf-8")
    assert remake["page"](text) == text, "run `make docs`"
    with pytest.raises(ValueError, match="has marks for the keys of"):
        remake["page"](text.replace("<!-- keys of replay,", "<!-- keys of replays,"))


def test_every_example_in_the_tables_is_valid() -> None:
    for path, *_, example in rows():
        section, key = path.split(".")
        value = tomllib.loads(f"value = {example.strip('`')}")["value"]
        assert getattr(section_types()[section].model_validate({key: value}), key) is not None, path


def test_every_default_in_the_docs_is_the_real_one() -> None:
    config = Config.model_construct()
    compared = 0
    for path, _, _, _, default, _ in rows():
        if default.startswith("`"):
            section, key = path.split(".")
            real = type(getattr(config, section))()
            documented = tomllib.loads(f"value = {default.strip('`')}")["value"]
            assert getattr(type(real).model_validate({key: documented}), key) == getattr(real, key), path
            compared += 1
    assert compared > 15


def test_every_command_and_option_is_in_the_docs() -> None:
    text = (DOCS / "reference" / "cli.md").read_text()
    group = typer.main.get_command(app)
    options = [option for parameter in group.params for option in parameter.opts]
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        assert f"| `{name}" in text, name
        options += [option for parameter in command.params for option in parameter.opts]
    for option in options:
        assert option in text or not option.startswith("-"), option


def test_every_guarantee_names_a_test_that_exists() -> None:
    text = (DOCS / "concepts" / "guarantees.md").read_text("utf-8")
    promises = re.findall(r"^\| (?!promise|---)(.+?) \| .+? \| (.+) \|$", text, re.MULTILINE)
    assert len(promises) > 10
    for promise, shown_by in promises:
        named = re.findall(r"`(tests/\S+\.py)::(\w+)`", shown_by)
        assert named, promise
        for path, name in named:
            assert f"def {name}(" in (ROOT / path).read_text("utf-8"), f"{promise}: {path}::{name}"


def test_the_page_about_stamps_has_the_known_answers() -> None:
    page = (DOCS / "reference" / "stamp.md").read_text("utf-8")
    known = json.loads((ROOT / "tests" / "vectors" / "pids.json").read_text("utf-8"))["xxh3"]
    pids = {tuple(each["parts"]): str(each["pid"]) for each in known}
    rows = re.findall(r"^\| (`.*) \|.*\| (-?\d+) \|$", page, re.MULTILINE)
    assert len(rows) == 4
    for parts, pid in rows:
        assert pids[tuple(re.findall(r"`([^`]*)`", parts))] == pid
