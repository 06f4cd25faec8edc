"""Turns columns of field values into expiry keys and digests. All formats share this part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.units import INT64_MAX, INT64_MIN, UNIT_NS
from replayfilter.core.digest import Missing, digest_contents, digest_keys
from replayfilter.formats.expiry_keys import from_text, read_expiry, read_timestamps
from replayfilter.formats.fields import Field, Location, metadata_column
from replayfilter.formats.spec import Extraction, Reason, RecordColumns, RecordError

_ABSENT = {type(None), Missing}
_NEEDS = {Location.KEY: "keys", Location.HEADER: "headers", Location.TIMESTAMP: "timestamps"}


class Reader(Protocol):
    """What each format implements: it turns n records into one column per field path.

    For each row that can't be read it adds an entry to ``errors``. The columns may hold anything in such a
    row. A call raises no error because of a record.
    """

    @property
    def needs(self) -> frozenset[str]:
        """Which columns it reads besides the values, as in :class:`Extractor`."""

    @property
    def as_text(self) -> bool:
        """Whether numbers are in text, as in headers."""

    def __call__(self, batch: RecordColumns, errors: dict[int, RecordError]) -> Sequence[Sequence[object]]:
        """One column of n values for each path."""


class WatermarkFields(NamedTuple):
    """The fields that feed the low watermark: a record's origin and its event time, in ``unit``."""

    origin: Field
    time: Field
    unit: str


class FieldExtractor:
    """Extracts dedup keys and expiry keys from batches. Each worker builds one and reuses it.

    A record whose key fields are all missing or null is an error. Such records have nothing in common, but
    they would all count as duplicates of the first one. If a key has several fields, some of them may be
    missing or null: missing and null are two different values.

    ``lets_pass``: the reader has one more column, which says of each record whether it has no key and passes.
    Such records are among the ``nulls``, whatever else is in them.
    """

    def __init__(
        self,
        key: Sequence[Field],
        expiry: Field | None,
        unit: str,
        reader: Reader,
        watermark: WatermarkFields | None = None,
        on_null: str = "error",
        content: Sequence[Field] = (),
        lets_pass: bool = False,
    ) -> None:
        self._key = key
        self._expiry = expiry
        self._unit = unit
        self._reader = reader
        self._watermark = watermark
        self._on_null = on_null
        self._content = content
        self._lets_pass = lets_pass
        fields = [*key, *content]
        fields += [expiry] if expiry else []
        fields += [watermark.origin, watermark.time] if watermark else []
        located = frozenset(_NEEDS[field.location] for field in fields if field.location in _NEEDS)
        self.needs = located | reader.needs | ({"keys"} if on_null == "key" else frozenset())

    def __call__(self, batch: RecordColumns) -> Extraction:
        """Extract n records. A record that can't be used is reported in ``errors``; none makes this raise."""
        n = len(batch.values)
        errors: dict[int, RecordError] = {}
        path_columns = iter(self._reader(batch, errors))
        key = self._columns(self._key, path_columns, batch)
        for row in _rows_without_key(key):
            errors.setdefault(row, RecordError(row, Reason.KEY, self._describe_missing_key()))
        if self._expiry is None:
            expiry = np.zeros(n, dtype=np.int64)
        elif self._expiry.location is Location.TIMESTAMP:
            expiry = read_timestamps(batch.timestamps_ms, self._unit, errors)
        elif self._expiry.location is Location.HEADER:
            texts = from_text(metadata_column(self._expiry, batch), self._unit)
            expiry = read_expiry(texts, self._expiry.text, self._unit, errors)
        else:
            expiry = self._read_expiry(next(path_columns), self._expiry, self._unit, errors)
        origins: Sequence[object] = ()
        times_us = None
        if self._watermark:
            origins, times_us = self._read_watermark_fields(self._watermark, path_columns, batch)
        digests = digest_keys(key) if key else np.zeros((n, 2), dtype=np.uint64)
        content = self._columns(self._content, path_columns, batch)
        contents = digest_contents(content) if content else None

        bad = sorted(errors)
        expiry[bad] = 0
        digests[bad] = 0
        if contents is not None:
            contents[bad] = 0
        nulls: list[int] = []
        if self._on_null != "error":
            nulls = [row for row in bad if batch.values[row] is None and errors[row].reason is Reason.EMPTY]
            if times_us is not None:
                times_us[nulls] = INT64_MIN
            if nulls and self._on_null == "key":
                nulls = self._read_keys_of_nulls(nulls, batch.keys, digests, errors)
            for row in nulls:
                del errors[row]
        if self._lets_pass:
            passing = [row for row, passes in enumerate(next(path_columns)) if passes]
            nulls = sorted({*nulls, *passing})
            expiry[passing] = 0
            digests[passing] = 0
            if contents is not None:
                contents[passing] = 0
            if times_us is not None:
                times_us[passing] = INT64_MIN
            for row in passing:
                errors.pop(row, None)
        left = [errors[row] for row in sorted(errors)]
        return Extraction(expiry, digests, left, origins, times_us, nulls, contents)

    def _columns(
        self, fields: Sequence[Field], path_columns: Iterator[Sequence[object]], batch: RecordColumns
    ) -> list[Sequence[object]]:
        """One column for each field; those of paths are the next ones of the reader's."""
        return [
            next(path_columns) if field.location is Location.PATH else metadata_column(field, batch)
            for field in fields
        ]

    def _read_keys_of_nulls(
        self,
        nulls: list[int],
        keys: Sequence[bytes | None],
        digests: NDArray[np.uint64],
        errors: dict[int, RecordError],
    ) -> list[int]:
        """Set the digests of null values, whose key is that of the record; returns the rows that have one."""
        for row in nulls:
            if keys[row] is None:
                message = "@key: null, and so is the value; expected a key, by which on_null tells them apart"
                errors[row] = RecordError(row, Reason.KEY, message)
        named = [row for row in nulls if keys[row] is not None]
        # The complement, so that a null value is no duplicate of a value with that key.
        digests[named] = ~digest_keys([[keys[row] for row in named]])
        return named

    def _read_expiry(
        self, column: Sequence[object], field: Field, unit: str, errors: dict[int, RecordError]
    ) -> NDArray[np.int64]:
        texts = from_text(column, unit) if self._reader.as_text else column
        return read_expiry(texts, field.text, unit, errors)

    def _read_watermark_fields(
        self, watermark: WatermarkFields, path_columns: Iterator[Sequence[object]], batch: RecordColumns
    ) -> tuple[Sequence[object], NDArray[np.int64]]:
        """Origins and event times in microseconds. A record without them is not counted, but is no error."""
        missing: dict[int, RecordError] = {}
        if watermark.origin.location is Location.PATH:
            origins = next(path_columns)
        else:
            origins = metadata_column(watermark.origin, batch)
        if watermark.time.location is Location.TIMESTAMP:
            times = read_timestamps(batch.timestamps_ms, watermark.unit, missing)
        else:
            times = self._read_expiry(next(path_columns), watermark.time, watermark.unit, missing)
        unit_ns, us_ns = UNIT_NS[watermark.unit], 1_000
        limit = INT64_MAX // max(1, unit_ns // us_ns)  # larger values would overflow int64
        if unit_ns >= us_ns:
            times_us = np.clip(times, -limit, limit) * (unit_ns // us_ns)
        else:
            times_us = times // (us_ns // unit_ns)
        times_us[sorted(missing)] = INT64_MIN
        return origins, times_us

    def _describe_missing_key(self) -> str:
        names = ", ".join(field.text for field in self._key)
        return f"{names}: missing or null, expected a value in at least one field of the dedup key"


def _rows_without_key(key: Sequence[Sequence[object]]) -> list[int]:
    if not key or any(_ABSENT.isdisjoint(map(type, column)) for column in key):
        return []
    return [
        row for row, values in enumerate(zip(*key, strict=True)) if all(type(v) in _ABSENT for v in values)
    ]
