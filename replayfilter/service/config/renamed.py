"""Renamed keys: the old name works for one version, with a warning that names the new one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from replayfilter.settings.messages import format_setting
from replayfilter.settings.variables import is_set_by_variable, variable_of

# Old name: new name. Remove an entry one version after it was added.
RENAMED = {"dedup.remember_origin": "dedup.remember_first", "output.key": "output.stamp"}
# Values that have another name under the new one, by old name of the key.
RENAMED_VALUES = {"output.key": {"stamp": "key", "preserve": "none"}}


@dataclass(frozen=True, slots=True)
class NewNames:
    """Tables in which every key has its new name.

    ``used`` has the old name for each new name that was given by its old one. ``errors`` has a message for
    each old name that was given beside its new one. ``warnings``: a sentence for each old name that is used.
    """

    tables: dict[str, Any]
    used: dict[str, str]
    errors: dict[str, str]
    warnings: list[str] = field(default_factory=list)


def with_new_names(tables: Mapping[str, Any], renamed: Mapping[str, str] = RENAMED) -> NewNames:
    """``tables`` (section: key: value) with each old name replaced by its new one.

    A section that is not a table is left as it is; the types of values are checked later.
    """
    moved = {name: dict(table) if isinstance(table, dict) else table for name, table in tables.items()}
    found = NewNames(moved, {}, {})
    for old, new in renamed.items():
        (old_section, old_key), (section, key) = old.split("."), new.split(".")
        table = moved.get(old_section)
        if not isinstance(table, dict) or old_key not in table:
            continue
        target = moved.setdefault(section, {})
        if not isinstance(target, dict):
            continue
        given = table.pop(old_key)
        values = RENAMED_VALUES.get(old, {})
        value = values.get(given, given) if isinstance(given, str) else given
        if key in target:
            found.errors[old] = f"{format_setting(old, given)}: {new} is set too; remove the old name, {old}"
        else:
            target[key] = value
            found.used[new] = old
            found.warnings.append(_warning(old, new, given, value))
    return found


def _warning(old: str, new: str, given: object, value: object) -> str:
    """The names as the user gave them: of keys, or of environment variables. Values, if they have changed."""
    if is_set_by_variable(old):
        old, new = variable_of(old), variable_of(new)
    if given != value:
        old, new = f"{old} = {json.dumps(given)}", f"{new} = {json.dumps(value)}"
    return f"{old} is now {new}; the old name goes away in the next version"
