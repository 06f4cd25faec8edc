"""Makes the tables of keys in reference/configuration.md from the code: ``make docs``. A test compares them.

What stands between a section's two marks is made; the rest of the page is written by hand.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from replayfilter.service.config.model import sections
from replayfilter.settings.durations import bytes_text, duration_text, parse_bytes, parse_duration

PAGE = Path(__file__).parent / "reference" / "configuration.md"
MADE = re.compile(r"(<!-- keys of (\w+), made by remake\.py -->\n).*?(<!-- end of keys -->\n)", re.DOTALL)
HEAD = "| key | type | meaning | unit, values | default | example |\n|---|---|---|---|---|---|\n"
TYPES = {str: "text", int: "integer", bool: "boolean", list: "list", dict: "table"}


def page(text: str) -> str:
    """The page with all its tables made anew. ValueError if a section's place is missing."""
    tables = {name: HEAD + "".join(rows(name)) for name in sections()}
    places = [found[2] for found in MADE.finditer(text)]
    if places != list(tables):
        raise ValueError(f"{PAGE.name} has places for the keys of {places}, the code has {list(tables)}")
    return MADE.sub(lambda found: found[1] + "\n" + tables[found[2]] + "\n" + found[3], text)


def rows(section: str) -> list[str]:
    """A line of the table for each key."""
    found = []
    for name, field in sections()[section].model_fields.items():
        extra: Any = field.json_schema_extra or {}
        default = extra.get("unset") or code(written(field.default, field))
        values = extra.get("unit") or values_of(field)
        example = code(written((field.examples or [None])[-1]))
        cells = (code(f"{section}.{name}"), type_of(field), field.description or "", values, default, example)
        found.append("| " + " | ".join(cells) + " |\n")
    return found


def type_of(field: FieldInfo) -> str:
    """What a value is written as."""
    if parses(field, parse_duration):
        return "duration"
    if parses(field, parse_bytes):
        return "size"
    if get_origin(field.annotation) is Literal:
        return "text"
    union = get_origin(field.annotation) in (Union, UnionType)
    kinds = get_args(field.annotation) if union else [field.annotation]
    return " or ".join(TYPES[plain] for kind in kinds if (plain := get_origin(kind) or kind) in TYPES)


def values_of(field: FieldInfo) -> str:
    """The values of a type that has few, or the unit of one that has many."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(map(code, get_args(field.annotation)))
    if field.annotation is bool:
        return "`true`, `false`"
    if parses(field, parse_duration):
        return "a time"
    return "bytes, or with a unit" if parses(field, parse_bytes) else ""


def parses(field: FieldInfo, parser: Any) -> bool:
    """Whether a key's text goes through ``parser``."""
    return any(isinstance(each, BeforeValidator) and each.func is parser for each in field.metadata)


def written(value: Any, field: FieldInfo | None = None) -> str:
    """A value as TOML has it; times and sizes with the largest unit that needs no fraction."""
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
    """As code, for Markdown."""
    return f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
