"""Makes the tables of keys in reference/configuration.md from the code: ``make docs``. A test compares them.

Only the table between the two marks of each section is generated; the rest of the page is not.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from replayfilter.service.config.model import section_types
from replayfilter.settings.durations import bytes_text, duration_text, parse_bytes, parse_duration

PAGE = Path(__file__).parent / "reference" / "configuration.md"
MADE = re.compile(r"(<!-- keys of (\w+), made by remake\.py -->\n).*?(<!-- end of keys -->\n)", re.DOTALL)
HEAD = "| key | type | meaning | unit, values | default | example |\n|---|---|---|---|---|---|\n"
TYPES = {str: "text", int: "integer", bool: "boolean", list: "list", dict: "table"}


def page(text: str) -> str:
    """``text`` with all its tables made again; ValueError if the marks don't fit the sections in the code."""
    tables = {name: HEAD + "".join(rows(name)) for name in section_types()}
    marked = [found[2] for found in MADE.finditer(text)]
    if marked != list(tables):
        raise ValueError(f"{PAGE.name} has marks for the keys of {marked}, the code has {list(tables)}")
    return MADE.sub(lambda found: found[1] + "\n" + tables[found[2]] + "\n" + found[3], text)


def rows(section: str) -> list[str]:
    """The lines of a section's table, one per key."""
    found = []
    for name, field in section_types()[section].model_fields.items():
        extra: Any = field.json_schema_extra or {}
        default = extra.get("unset") or code(written(field.default, field))
        values = extra.get("unit") or values_of(field)
        example = code(written((field.examples or [None])[-1]))
        cells = (code(f"{section}.{name}"), type_of(field), field.description or "", values, default, example)
        found.append("| " + " | ".join(cells) + " |\n")
    return found


def type_of(field: FieldInfo) -> str:
    """The type of a key's value in TOML."""
    if parses(field, parse_duration):
        return "duration"
    if parses(field, parse_bytes):
        return "size"
    if get_origin(field.annotation) is Literal:
        return "text"
    union = get_origin(field.annotation) in (Union, UnionType)
    types = get_args(field.annotation) if union else [field.annotation]
    return " or ".join(TYPES[plain] for each in types if (plain := get_origin(each) or each) in TYPES)


def values_of(field: FieldInfo) -> str:
    """All values of a type that has few, or the unit of one that has many."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(map(code, get_args(field.annotation)))
    if field.annotation is bool:
        return "`true`, `false`"
    if parses(field, parse_duration):
        return "a duration"
    return "bytes, or with a unit" if parses(field, parse_bytes) else ""


def parses(field: FieldInfo, parser: Any) -> bool:
    """Whether ``parser`` parses a key's text."""
    return any(isinstance(each, BeforeValidator) and each.func is parser for each in field.metadata)


def written(value: Any, field: FieldInfo | None = None) -> str:
    """A value in TOML; durations and sizes in the largest unit that needs no fraction."""
    if field is not None and value and parses(field, parse_duration):
        return f'"{duration_text(value)}"'
    if field is not None and value and parses(field, parse_bytes):
        return f'"{bytes_text(value)}"'
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(n)} = {written(v)}" for n, v in value.items()) + " }"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"{value:_}"
    return json.dumps(value, ensure_ascii=False)


def code(text: str) -> str:
    """``text`` as code in Markdown."""
    return f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
