r"""Field names in the config: ``user.id``, ``@key``, ``@value``, ``@header:NAME``, ``@timestamp``.

A dot separates the levels of a path. A backslash before a dot or an at sign makes it part of a name:
``a\.b`` is one field whose name contains a dot, ``\@key`` is a field whose name starts with an at sign.
A path leads through objects only. If there is an array or a scalar on the way, the field is missing.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass

from replayfilter.core.digest import MISSING
from replayfilter.formats.spec import RecordColumns

_HEADER = "@header:"
_DOT = re.compile(r"(?<!\\)\.")
_ESCAPED = re.compile(r"\\([.@])")


class Location(enum.Enum):
    """Which part of a record a field is in."""

    PATH = "path"
    KEY = "@key"
    VALUE = "@value"
    HEADER = "@header:NAME"
    TIMESTAMP = "@timestamp"


@dataclass(frozen=True, slots=True)
class Field:
    """A field as configured: ``text`` as written, ``names`` the levels of the path or the header's name."""

    text: str
    location: Location
    names: tuple[str, ...] = ()


def parse_field(text: str) -> Field:
    r"""Parse a field name. Raises ``ValueError`` that says what is wrong and what to write instead.

    >>> parse_field("user.id").names
    ('user', 'id')
    >>> parse_field(r"user\.id").names
    ('user.id',)
    """
    for location in (Location.KEY, Location.VALUE, Location.TIMESTAMP):
        if text == location.value:
            return Field(text, location)
    if text.startswith(_HEADER):
        if text == _HEADER:
            raise ValueError(f'"{text}" names no header; write "@header:NAME"')
        return Field(text, Location.HEADER, (text[len(_HEADER) :],))
    if text.startswith("@"):
        raise ValueError(
            f'"{text}" is unknown; use "@key", "@value", "@header:NAME" or "@timestamp", '
            f'or "\\{text}" for a field with that name'
        )
    return Field(text, Location.PATH, _levels(text))


def _levels(text: str) -> tuple[str, ...]:
    names = tuple(_ESCAPED.sub(r"\1", level) for level in _DOT.split(text))
    if "" in names:
        raise ValueError(f'"{text}" has an empty name in its path; separate the names by single dots')
    if any(not name.isprintable() or '"' in name or "\\" in name for name in names):
        raise ValueError(
            f"{text!a} has a quote, a backslash or a control character in a name, which is not supported; "
            'use a backslash only before "." or "@"'
        )
    return names


def outermost(path: tuple[str, ...], paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The shortest of ``paths`` that is a prefix of ``path``, which is one of them. Reading it gives both."""
    return next(path[:depth] for depth in range(1, len(path) + 1) if path[:depth] in paths)


def look_up(item: object, path: tuple[str, ...]) -> object:
    """The value at ``path`` in nested dicts, or MISSING."""
    for name in path:
        if not isinstance(item, dict):
            return MISSING
        item = item.get(name, MISSING)
    return item


def metadata_column(field: Field, batch: RecordColumns) -> Sequence[object]:
    """The column of a field outside the value. MISSING if a record does not have the header."""
    if field.location is Location.KEY:
        return batch.keys
    if field.location is Location.VALUE:
        return batch.values
    if field.location is Location.HEADER:
        (name,) = field.names
        return [_last_header(headers, name) for headers in batch.headers]
    raise AssertionError(f"{field.text} is not part of a record's metadata")


def _last_header(headers: Sequence[tuple[str, bytes | None]] | None, name: str) -> object:
    for header, value in reversed(headers or ()):
        if header == name:
            return value
    return MISSING
