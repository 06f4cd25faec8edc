"""Converts expiry keys to int64: whole numbers in the configured unit, ISO 8601 text, or Kafka's timestamp.

- Numbers must be whole: 1, 1.0 and 1e0 are 1; 1.5, "1" and true are errors.
- ``category`` accepts every value except null. Categories have no order; the int64 is the upper half of
  the value's digest.
- ``iso8601`` is the extended format (``2024-05-01T12:00:00.5+02:00``; a date alone means midnight), in UTC
  if there is no offset. The result is in microseconds since 1970, negative before; more digits are rounded
  down.
- An :class:`Instant` (a timestamp type, in formats that have one) is converted to the unit, rounded down.
- Headers are text: ISO 8601, or a whole number in decimal digits. See :func:`from_text`.
- Kafka's timestamp is in ms and is converted to the unit: for ``s`` it is rounded down, for ``iso8601`` it
  becomes microseconds, for ``integer`` it stays in ms. Kafka uses -1 for "no timestamp".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.units import UNIT_NS
from replayfilter.core.digest import MISSING, digest_keys
from replayfilter.formats.spec import Reason, RecordError, shorten

_MIN, _MAX = -(1 << 63), (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_TIMESTAMP = -1
_DIGITS = re.compile("-?[0-9]{1,1000}")  # int() refuses more than 4,300
_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000, "iso8601": 1_000, "integer": 1, "category": 1}

Errors = dict[int, RecordError]


class Instant(int):
    """A point in time: nanoseconds since 1970, of any size. In a dedup key it counts as that number."""

    __slots__ = ()


class _Unusable(Exception):
    """A value that is no expiry key: why, and a description of the value."""

    def __init__(self, reason: Reason, found: str) -> None:
        self.reason, self.found = reason, found


def read_expiry(column: Sequence[object], name: str, unit: str, errors: Errors) -> NDArray[np.int64]:
    """The expiry keys of n records, int64[n]. A row without one gets 0 and an entry in ``errors``.

    A row that has an entry already keeps it. ``name`` is the field's name, for messages.
    """
    types = set(map(type, column))
    if types == {Instant} and unit in UNIT_NS:
        nanos = UNIT_NS[unit]
        try:
            # All values are Instants, but mypy can't derive that from the set of types.
            return np.array([value // nanos for value in column], dtype=np.int64)  # type: ignore[operator]
        except OverflowError:
            pass
    if unit == "category":
        for row, value in enumerate(column):
            if value is None or value is MISSING:
                message = f"{name}: null or missing, expected a category"
                errors.setdefault(row, RecordError(row, Reason.EXPIRY_MISSING, message))
        return digest_keys([column])[:, 0].view(np.int64)
    if unit == "iso8601":
        return _one_by_one(column, _instant, name, "ISO 8601 text, such as 2024-05-01T12:00:00Z", errors)
    if types == {int}:  # the fast path, for nearly every batch
        try:
            return np.array(column, dtype=np.int64)
        except OverflowError:
            pass
    what = "a whole number" if unit == "integer" else f"a whole number of {unit}"
    return _one_by_one(column, partial(_integer, unit), name, what, errors)


def from_text(column: Sequence[object], unit: str) -> list[object]:
    """A column of texts for :func:`read_expiry`: bytes in UTF-8 decoded, and digits read as whole numbers.

    >>> from_text([b"17", b"-1", b"1.5", None], "ms")
    [17, -1, '1.5', None]
    """
    if unit == "category":
        return list(column)
    return [_from_text(value, unit != "iso8601") for value in column]


def _from_text(value: object, as_number: bool) -> object:
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return value  # read_expiry reports it as bytes
    if as_number and isinstance(value, str) and _DIGITS.fullmatch(value):
        return int(value)
    return value


def read_timestamps(
    timestamps_ms: Sequence[int] | NDArray[np.int64], unit: str, errors: Errors
) -> NDArray[np.int64]:
    """Kafka's timestamps in ``unit``, int64[n]. Adds ``errors`` for rows without one or out of range."""
    given = np.asarray(timestamps_ms, dtype=np.int64)
    for row in np.flatnonzero(given == _NO_TIMESTAMP).tolist():
        message = "@timestamp: the record has none (-1), expected ms since 1970"
        errors.setdefault(row, RecordError(row, Reason.EXPIRY_MISSING, message))
    if unit == "s":
        return given // 1000
    factor = _PER_MS[unit]
    far = np.abs(given) > _MAX // factor
    far |= given == _MIN  # int64 can't hold its absolute value
    if factor > 1 and far.any():
        for row in np.flatnonzero(far).tolist():
            message = f"@timestamp: {given[row]} ms does not fit int64 in unit {unit}"
            errors.setdefault(row, RecordError(row, Reason.EXPIRY_RANGE, message))
        given = np.where(far, 0, given)
    return given * factor


def _one_by_one(
    column: Sequence[object], read: Callable[[object], int], name: str, expected: str, errors: Errors
) -> NDArray[np.int64]:
    expiry = np.zeros(len(column), dtype=np.int64)
    for row, value in enumerate(column):
        if row in errors:
            continue
        try:
            expiry[row] = read(value)
        except _Unusable as unusable:
            message = f"{name}: found {unusable.found}, expected {expected}"
            errors[row] = RecordError(row, unusable.reason, message)
    return expiry


def _integer(unit: str, value: object) -> int:
    if isinstance(value, float):
        value = Decimal(value)
    if type(value) is int:
        number = value
    elif isinstance(value, Instant) and unit in UNIT_NS:
        number = value // UNIT_NS[unit]
    elif type(value) is Decimal and value.is_finite():
        if not _MIN <= value <= _MAX:  # check before int(), which would expand 1e999999999
            raise _Unusable(Reason.EXPIRY_RANGE, f"{shorten(value)}, which does not fit int64")
        if value != value.to_integral_value():
            raise _Unusable(Reason.EXPIRY_TYPE, f"the fraction {shorten(value)}")
        number = int(value)
    else:
        raise _absent_or_wrong(value)
    if not _MIN <= number <= _MAX:
        raise _Unusable(Reason.EXPIRY_RANGE, f"{shorten(number)}, which does not fit int64")
    return number


def _instant(value: object) -> int:
    if isinstance(value, Instant):
        return _integer("iso8601", value)
    if type(value) is not str:
        raise _absent_or_wrong(value)
    try:
        if value[10:11] not in "Tt ":  # fromisoformat accepts any character there
            raise ValueError
        if value.endswith("z"):  # RFC 3339 allows it, fromisoformat doesn't
            value = f"{value[:-1]}Z"
        instant = datetime.fromisoformat(value)
    except ValueError:
        raise _Unusable(Reason.EXPIRY_TYPE, f"text {shorten(value)}") from None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    since = instant - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _absent_or_wrong(value: object) -> _Unusable:
    if value is MISSING:
        return _Unusable(Reason.EXPIRY_MISSING, "nothing")
    if value is None:
        return _Unusable(Reason.EXPIRY_MISSING, "null")
    if isinstance(value, bool):
        found = "true" if value else "false"
    elif isinstance(value, Instant):
        found = "a timestamp"
    elif isinstance(value, bytes):
        found = f"bytes {shorten(value)}"
    elif isinstance(value, str):
        found = f"text {shorten(value)}"
    elif isinstance(value, int | float | Decimal):
        found = f"number {shorten(value)}"
    else:
        found = (
            "an array" if isinstance(value, list) else "an object"
        )  # not shown: it may be nested very deeply
    return _Unusable(Reason.EXPIRY_TYPE, found)
