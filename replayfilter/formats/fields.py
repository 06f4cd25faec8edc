"""Names of fields: ``user.id``, ``@key``, ``@value``, ``@header:NAME``, ``@timestamp``.

A dot separates the levels of a path. A backslash before a dot or an at sign makes it part of a name:
``a\\.b`` is one field whose name holds a dot, ``\\@key`` a field whose name starts with an at sign.
A path leads through objects only: where it meets an array or a scalar, the field is missing.
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


class Place(enum.Enum):
    """Where in a record a field is."""

    PATH = "path"
    KEY = "@key"
    VALUE = "@value"
    HEADER = "@header:NAME"
    TIMESTAMP = "@timestamp"


@dataclass(frozen=True, slots=True)
class Field:
    """One field as configured: ``text`` as written, ``names`` the path's levels or the header's name."""

    text: str
    place: Place
    names: tuple[str, ...] = ()


def parse_field(text: str) -> Field:
    """Read a field's name; raises ``ValueError`` with what is wrong and what to write instead.

    >>> parse_field("user.id").names
    ('user', 'id')
    >>> parse_field(r"user\\.id").names
    ('user.id',)
    """
    for place in (Place.KEY, Place.VALUE, Place.TIMESTAMP):
        if text == place.value:
            return Field(text, place)
    if text.startswith(_HEADER):
        if text == _HEADER:
            raise ValueError(f'"{text}" names no header; write "@header:NAME"')
        return Field(text, Place.HEADER, (text[len(_HEADER) :],))
    if text.startswith("@"):
        raise ValueError(
            f'"{text}" is unknown; use "@key", "@value", "@header:NAME" or "@timestamp", '
            f'or "\\{text}" for a field of that name'
        )
    return Field(text, Place.PATH, _levels(text))


def _levels(text: str) -> tuple[str, ...]:
    names = tuple(_ESCAPED.sub(r"\1", level) for level in _DOT.split(text))
    if "" in names:
        raise ValueError(f'"{text}" has an empty name in its path; write names with single dots between them')
    if any(not name.isprintable() or '"' in name or "\\" in name for name in names):
        raise ValueError(
            f"{text!a} has a quote, a backslash or a control character in a name, which can't be read "
            '(a backslash may only stand before "." or "@")'
        )
    return names


def outermost(path: tuple[str, ...], paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The shortest of ``paths`` that ``path``, one of them, lies in: what has to be read to have both."""
    return next(path[:depth] for depth in range(1, len(path) + 1) if path[:depth] in paths)


def look_up(item: object, path: tuple[str, ...]) -> object:
    """What stands at ``path`` within nested dicts, else MISSING."""
    for name in path:
        if not isinstance(item, dict):
            return MISSING
        item = item.get(name, MISSING)
    return item


def metadata_column(field: Field, batch: RecordColumns) -> Sequence[object]:
    """The column of a field that is not inside the value: MISSING for a header that is not there."""
    if field.place is Place.KEY:
        return batch.keys
    if field.place is Place.VALUE:
        return batch.values
    if field.place is Place.HEADER:
        (name,) = field.names
        return [_last_header(headers, name) for headers in batch.headers]
    raise AssertionError(f"{field.text} is no metadata of a record")


def _last_header(headers: Sequence[tuple[str, bytes | None]] | None, name: str) -> object:
    for header, value in reversed(headers or ()):
        if header == name:
            return value
    return MISSING
