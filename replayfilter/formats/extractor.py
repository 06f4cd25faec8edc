"""Columns of fields to expiry keys, digests and faults: the part that all formats share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.expiry import INT64_MAX, INT64_MIN, UNIT_NS
from replayfilter.core.digest import Missing, digest_keys
from replayfilter.formats.expiry_keys import read_expiry, read_timestamps
from replayfilter.formats.fields import Field, Place, metadata_column
from replayfilter.formats.spec import Extraction, Fault, Reason, RecordColumns

_ABSENT = {type(None), Missing}
_NEEDS = {Place.KEY: "keys", Place.HEADER: "headers", Place.TIMESTAMP: "timestamps"}


class Reader(Protocol):
    """What a format adds: the values of n records to one column for each path it was made for.

    Rows that can't be read are put in ``faults``; what their columns hold does not matter.
    """

    def __call__(
        self, values: Sequence[bytes | None], faults: dict[int, Fault]
    ) -> Sequence[Sequence[object]]: ...


class WatermarkFields(NamedTuple):
    """What is read for the low watermark: who wrote a record, and when, in ``unit``."""

    origin: Field
    time: Field
    unit: str


class FieldExtractor:
    """Takes key and expiry key out of batches; one for each worker, used again for every batch.

    A record whose key fields are all missing or null is a fault: such records have nothing in common, yet
    would all be duplicates of the first. In a key of several fields single ones may be missing or null, which
    are values of their own.
    """

    def __init__(
        self,
        key: Sequence[Field],
        expiry: Field | None,
        unit: str,
        reader: Reader,
        watermark: WatermarkFields | None = None,
    ) -> None:
        self._key, self._expiry, self._unit, self._reader, self._watermark = (
            key,
            expiry,
            unit,
            reader,
            watermark,
        )
        fields = [
            *key,
            *([expiry] if expiry else []),
            *([watermark.origin, watermark.time] if watermark else []),
        ]
        self.needs = frozenset(_NEEDS[field.place] for field in fields if field.place in _NEEDS)

    def __call__(self, batch: RecordColumns) -> Extraction:
        """Expiry keys, digests and faults of n records; no record makes it raise."""
        n = len(batch.values)
        faults: dict[int, Fault] = {}
        paths = iter(self._reader(batch.values, faults))
        key = [next(paths) if f.place is Place.PATH else metadata_column(f, batch) for f in self._key]

        for row in _rows_without_key(key):
            faults.setdefault(row, Fault(row, Reason.KEY, self._describe_missing_key()))
        if self._expiry is None:
            expiry = np.zeros(n, dtype=np.int64)
        elif self._expiry.place is Place.TIMESTAMP:
            expiry = read_timestamps(batch.timestamps_ms, self._unit, faults)
        else:
            expiry = read_expiry(next(paths), self._expiry.text, self._unit, faults)
        origins, times_us = (
            self._read_watermark_fields(self._watermark, paths, batch) if self._watermark else ((), None)
        )
        digests = digest_keys(key) if key else np.zeros((n, 2), dtype=np.uint64)

        bad = sorted(faults)
        expiry[bad] = 0
        digests[bad] = 0
        return Extraction(expiry, digests, [faults[row] for row in bad], origins, times_us)

    def _read_watermark_fields(
        self, watermark: WatermarkFields, paths: Iterator[Sequence[object]], batch: RecordColumns
    ) -> tuple[Sequence[object], NDArray[np.int64]]:
        """Origins and event times in microseconds; who has none is no error, and counts for nothing."""
        missing: dict[int, Fault] = {}
        inside = watermark.origin.place is Place.PATH
        origins = next(paths) if inside else metadata_column(watermark.origin, batch)
        if watermark.time.place is Place.TIMESTAMP:
            times = read_timestamps(batch.timestamps_ms, watermark.unit, missing)
        else:
            times = read_expiry(next(paths), watermark.time.text, watermark.unit, missing)
        of_ns, us = UNIT_NS[watermark.unit], 1_000
        far = INT64_MAX // max(1, of_ns // us)
        times_us = np.clip(times, -far, far) * (of_ns // us) if of_ns >= us else times // (us // of_ns)
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
