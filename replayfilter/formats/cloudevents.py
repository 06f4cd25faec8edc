"""The "cloudevents" format: the attributes of CloudEvents, in binary and structured mode.

The rules are those of CloudEvents' Kafka protocol binding:

- A record is in structured mode if its header ``content-type`` begins with ``application/cloudevents``, in
  any case: its value is the event. The event format must be JSON.
- Any other record is in binary mode: each attribute is a header with ``ce_`` before its name, and
  ``content-type`` is the attribute ``datacontenttype``. The value is the event's data; it is not read and
  may be null.
- An attribute is text, and the same in both modes: true and numbers in JSON count as their text.
  An attribute that is null is not there.
- ``id``, ``source``, ``specversion`` and ``type`` are required: if the config reads one, an event without it
  is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from replayfilter.core.digest import MISSING
from replayfilter.formats.fields import Field, Location
from replayfilter.formats.json import JsonReader
from replayfilter.formats.spec import Reason, RecordColumns, RecordError, shorten

# Attributes that identify an event, and that age it: the specification's own rule of duplicates.
KEY, EXPIRY_KEY, UNIT = ("source", "id"), "time", "iso8601"

_REQUIRED = frozenset(("id", "source", "specversion", "type"))
_CONTENT_TYPE, _PREFIX = "content-type", "ce_"
_MEDIA_TYPE, _JSON = b"application/cloudevents", b"application/cloudevents+json"
_ATTRIBUTE = re.compile("[a-z0-9]+")
_INTEGERS = range(-(1 << 31), 1 << 31)  # the specification's


class _NotText(Exception):
    """A value that is no attribute; the message describes it."""


class CloudEventsReader:
    """An :class:`extractor.Reader` of attributes, for ``fields`` that :func:`wrong_attribute` accepts."""

    needs = frozenset({"headers"})
    as_text = True

    def __init__(self, fields: Sequence[Field]) -> None:
        self._names = [name for field in fields for name in field.names]
        self._headers = [_PREFIX + name for name in self._names]
        self._headers = [_CONTENT_TYPE if name == "ce_datacontenttype" else name for name in self._headers]
        self._json = JsonReader(fields)

    def __call__(self, batch: RecordColumns, errors: dict[int, RecordError]) -> list[list[object]]:
        """One column per attribute: text, or MISSING; see :class:`extractor.Reader`."""
        columns: list[list[object]] = [[MISSING] * len(batch.values) for _ in self._names]
        structured: list[int] = []
        for row, pairs in enumerate(batch.headers):
            headers = dict(pairs or ())  # of several headers of a name the last counts
            content_type = headers.get(_CONTENT_TYPE) or b""
            if content_type[: len(_MEDIA_TYPE)].lower() == _MEDIA_TYPE:
                if content_type.partition(b";")[0].strip().lower() == _JSON:
                    structured.append(row)
                else:
                    errors[row] = _wrong_format(row, content_type)
                continue
            for column, name in zip(columns, self._headers, strict=True):
                column[row] = headers.get(name, MISSING)
        for row, event in self._read_structured(structured, batch, errors):
            for column, value in zip(columns, event, strict=True):
                column[row] = value
        is_structured = frozenset(structured)
        for name, header, column in zip(self._names, self._headers, columns, strict=True):
            for row, value in enumerate(column):
                if row in errors:
                    continue
                try:
                    column[row] = _attribute(value, name in _REQUIRED)
                except _NotText as found:
                    where = name if row in is_structured else f"header {header}"
                    errors[row] = _no_attribute(row, where, str(found), row in is_structured)
        return columns

    def _read_structured(
        self, rows: list[int], batch: RecordColumns, errors: dict[int, RecordError]
    ) -> Iterator[tuple[int, tuple[object, ...]]]:
        found: dict[int, RecordError] = {}
        columns = self._json(RecordColumns([batch.values[row] for row in rows]), found)
        errors.update((rows[at], error._replace(row=rows[at])) for at, error in found.items())
        return zip(rows, zip(*columns, strict=True), strict=True) if columns else iter(())


def wrong_attribute(field: Field) -> str | None:
    """What is wrong with a field path that should name an attribute; None if nothing is."""
    if field.location is not Location.PATH:
        return None
    if len(field.names) == 1 and field.names[0] != "data" and _ATTRIBUTE.fullmatch(field.names[0]):
        return None
    return (
        f'"{field.text}" is not an attribute of CloudEvents, which input.format "cloudevents" reads; '
        'use a name of lower-case letters and digits, such as "id"'
    )


def _attribute(value: object, required: bool) -> object:
    """An attribute's text, MISSING if it is not there."""
    if value is None or value is MISSING:
        if required:
            raise _NotText("nothing")
        return MISSING
    if type(value) is bytes:
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise _NotText(f"bytes {shorten(value, 40)}") from None
    elif type(value) is bool and not required:
        value = "true" if value else "false"
    elif type(value) is int and value in _INTEGERS and not required:
        value = str(value)
    if type(value) is not str:
        raise _NotText("another type of value")
    if required and not value:
        raise _NotText("empty text")
    return value


def _wrong_format(row: int, content_type: bytes) -> RecordError:
    message = f"header content-type: found {shorten(content_type, 60)}, expected {_JSON.decode()}"
    return RecordError(row, Reason.CLOUDEVENT, message)


def _no_attribute(row: int, where: str, found: str, structured: bool) -> RecordError:
    expected = "text" if structured else f"text in UTF-8, or content-type {_JSON.decode()}"
    return RecordError(row, Reason.CLOUDEVENT, f"{where}: found {found}, expected {expected}")
