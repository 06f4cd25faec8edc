"""Makes a checked ``Config`` from a TOML file and the environment.

All errors are reported at once, so that nobody has to correct a file one message at a time. The steps:

1. read the tables of the file, and merge those of the environment into them;
2. replace old names of keys by their new ones, and add the keys that a format sets;
3. check each value by its type;
4. leave out the wrong values, and check the rules between keys (checks.py) with what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from replayfilter.core.clock.clocks import Clock
from replayfilter.errors import ConfigError
from replayfilter.formats import cloudevents, debezium
from replayfilter.service.config.checks import broken_rules
from replayfilter.service.config.environment import SECTIONS_WITH_OPTIONS, environment_tables
from replayfilter.service.config.model import Config, keys_by_section
from replayfilter.service.config.renamed import with_new_names
from replayfilter.settings.messages import explain, in_documented_order, path_of, unknown_variables
from replayfilter.settings.toml_file import read_toml

_CLOCKS_OF_TIME = [clock.value for clock in Clock if clock.reads_time]
ErrorLocation = tuple[int | str, ...]  # where pydantic found an error: section, key, index


def load(path: str | Path, warn: Callable[[str], None] | None = None) -> Config:
    """The configuration in the TOML file ``path``, overridden by the environment.

    ``warn`` is called with a sentence for each key that is given by an old name. Raises ConfigError with
    all errors, or if the file can't be read.
    """
    return config_from(read_toml(Path(path)), warn)


def config_from(tables: Mapping[str, Any], warn: Callable[[str], None] | None = None) -> Config:
    """The configuration in ``tables`` (section: key: value), overridden by the environment; see ``load``."""
    keys = keys_by_section()
    errors = unknown_variables(keys)
    renamed = with_new_names(_with_flat_options(_merged(tables, environment_tables())))
    errors |= renamed.errors
    if warn is not None:
        for sentence in renamed.warnings:
            warn(sentence)
    tables = _with_keys_of_format(renamed.tables)
    try:
        config = Config.model_validate(tables)
    except ValidationError as failure:
        found = failure.errors()
        for error in found:
            as_given: dict[str, Any] = {**error, "loc": _location_as_given(error["loc"], renamed.used)}
            errors[path_of(error)] = explain(as_given, keys)
        config = Config.model_validate(_without(tables, [error["loc"] for error in found]))
    for path, message in broken_rules(config, frozenset(errors)):
        errors.setdefault(path, message)
    if errors:
        raise ConfigError(in_documented_order(errors, keys))
    return config


def _merged(tables: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``tables`` with the values of ``over``; tables within tables are merged too."""
    merged = dict(tables)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _with_flat_options(tables: dict[str, Any]) -> dict[str, Any]:
    """``tables`` with each option under one name.

    Without quotes, security.protocol = "SSL" is a table within a table in TOML.
    """

    def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        names: dict[str, Any] = {}
        for name, value in table.items():
            names |= (
                flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
            )
        return names

    for section in SECTIONS_WITH_OPTIONS:
        table = tables.get(section)
        if isinstance(table, dict) and isinstance(options := table.get("options"), dict):
            tables = tables | {section: table | {"options": flat(options)}}
    return tables


def _with_keys_of_format(tables: dict[str, Any]) -> dict[str, Any]:
    """``tables`` with the keys that CloudEvents and Debezium set, unless they are set."""
    source, dedup = tables.get("input"), tables.get("dedup", {})
    form = source.get("format") if isinstance(source, dict) else None
    if form not in ("cloudevents", "debezium") or not isinstance(dedup, dict):
        return tables
    events = cloudevents if form == "cloudevents" else debezium
    dedup = {"key": list(events.KEY), **dedup}
    if "expiry_key" not in dedup and dedup.get("clock", "tuple") in _CLOCKS_OF_TIME:
        dedup["expiry_key"] = events.EXPIRY_KEY
    if dedup.get("expiry_key") == events.EXPIRY_KEY:
        dedup = {"unit": events.UNIT, **dedup}
    tables = tables | {"dedup": dedup}
    if form == "debezium":
        # A connector stamps nothing, and its keys are those of the rows.
        defaults = {"input": {"stamp": "none", "on_null": "unique"}, "output": {"stamp": "header"}}
        for section, keys in defaults.items():
            if isinstance(given := tables.get(section, {}), dict):
                tables = tables | {section: {**keys, **given}}
        given = tables.get("replay", {})
        if tables["input"]["stamp"] == "none" and isinstance(given, dict):
            tables = tables | {"replay": {"enabled": False, **given}}
    return tables


def _location_as_given(location: ErrorLocation, old_names: Mapping[str, str]) -> ErrorLocation:
    """``location`` with the name by which the user gave the key."""
    old = old_names.get(".".join(map(str, location[:2])))
    return (*old.split("."), *location[2:]) if old else location


def _without(tables: dict[str, Any], locations: list[ErrorLocation]) -> dict[str, Any]:
    """``tables`` without the values at ``locations``. A list with one wrong item is left out entirely."""
    left = {key: _without(value, []) if isinstance(value, dict) else value for key, value in tables.items()}
    for location in locations:
        table, steps = left, [str(step) for step in location]
        while len(steps) > 1 and isinstance(table.get(steps[0]), dict):
            table = table[steps.pop(0)]
        table.pop(steps[0], None)
    return left
