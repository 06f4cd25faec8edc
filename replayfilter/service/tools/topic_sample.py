"""A sample of a topic for ``replayfilter advise``: what its records are, how late, and how often they come.

The last records are read twice. What they are (format, stamps, fields) is found out from the very last ones.
Then the records of all partitions are read side by side in slices of time, as a service would have read them,
and studied (``core/period_study.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import xxhash
from numpy.typing import NDArray

from replayfilter.core.clock.units import future_threshold
from replayfilter.core.period_study import PeriodStudy, Rows
from replayfilter.core.replay.marks import ReplayFilter
from replayfilter.core.stamp import STAMP_HEADER, last_header, parse_stamps
from replayfilter.errors import ConfigError, UnknownSchemas
from replayfilter.formats import (
    Extraction,
    KeySpec,
    RecordColumns,
    build_extractor,
    cloudevents,
    debezium,
)
from replayfilter.formats.candidates import KeyCandidate, TimeCandidate, key_candidates, time_candidates
from replayfilter.formats.detect import Detected, columns_of, detect_format, stamp_location
from replayfilter.formats.spec import RegistryAddress
from replayfilter.kafka.chunk_reader import ChunkReader, InputChunk
from replayfilter.kafka.time_slices import Ranges
from replayfilter.service.config.filter_sections import Dedup

LOOKED_AT_BYTES = 64_000_000  # of values by which format and fields are found
KAFKA_TIME = TimeCandidate("@timestamp", "ms", 0)
_PRESETS = {"cloudevents": cloudevents, "debezium": debezium}  # which know their keys
_METADATA = ("@key", "@value", KAFKA_TIME.field)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a look at ``records`` records has shown: format, stamps, and fields for the two keys.

    ``keys``, ``times``: the proposed ones first, and at least one of each. ``has_nulls``: whether there are
    null values that the format can't read. ``has_keys``: whether records have keys that are no stamps.
    """

    records: int
    detected: Detected
    stamp: str
    has_nulls: bool
    has_keys: bool
    keys: list[KeyCandidate]
    times: list[TimeCandidate]

    @property
    def key(self) -> tuple[str, ...]:
        """The proposed dedup key."""
        return self.keys[0].fields

    @property
    def time(self) -> TimeCandidate:
        """The proposed expiry key."""
        return self.times[0]


@dataclass(slots=True)
class Sample:
    """What was read: the study, and how many records are not in it and why.

    ``passing``: without a key, and always unique.
    """

    study: PeriodStudy
    records: int = 0
    replays: int = 0
    passing: int = 0
    errors: Counter[str] = field(default_factory=Counter)


def look(
    batch: RecordColumns, key: Sequence[str], expiry_key: str, registry: RegistryAddress | None, now_ms: int
) -> Finding:
    """What the records of a batch are, at least one. ``key``, ``expiry_key``: the user's choices, or empty.

    Raises ConfigError for chosen fields that can't be used, and RegistryError.
    """
    detected = detect_format(batch, registry)
    stamp = stamp_location(batch)
    _check_fields(detected.format, stamp, key, expiry_key)
    known = {*detected.fields, *_METADATA}
    more = [name for name in dict.fromkeys([*key, *filter(None, [expiry_key])]) if name not in known]
    rows, columns = columns_of(detected._replace(fields=[*detected.fields, *more]), batch)
    if stamp == "key":
        del columns["@key"]
    times = time_candidates(columns, np.array(batch.timestamps_ms, np.int64)[rows], now_ms)
    contents = contents_of([batch.values[row] for row in rows])
    keys = key_candidates(columns, contents, [each.field for each in times])
    times.append(KAFKA_TIME)
    if key:
        keys.insert(0, KeyCandidate(tuple(key), 0.0, 0.0))
    elif detected.format in _PRESETS:
        keys.insert(0, KeyCandidate(_PRESETS[detected.format].KEY, 0.0, 0.0))
    if detected.format in _PRESETS:
        times.sort(key=lambda each: each.field != _PRESETS[detected.format].EXPIRY_KEY)
    if expiry_key:
        if expiry_key not in [each.field for each in times]:
            shown = ", ".join(each.field for each in times)
            raise ConfigError([f"--expiry-key {expiry_key}: is no time in most records; use one of {shown}"])
        times.sort(key=lambda each: each.field != expiry_key)
    has_nulls = detected.format == "debezium" or any(value is None for value in batch.values)
    has_nulls &= detected.format != "raw"
    has_keys = stamp != "key" and any(own is not None for own in batch.keys)
    return Finding(len(batch.values), detected, stamp, has_nulls, has_keys, keys, times)


def _check_fields(form: str, stamp: str, key: Sequence[str], expiry_key: str) -> None:
    """Raises ConfigError for fields that the format or the stamps rule out."""
    if "@key" in key and stamp == "key":
        raise ConfigError(
            ["--key @key: the record's key is its stamp, which is different for each record; choose fields"]
        )
    try:
        on_null = "unique" if form == "debezium" else "error"
        form = "json" if form in ("avro", "protobuf") else form  # for which no schema is needed
        build_extractor(KeySpec(form, tuple(key), expiry_key or None, "ms", on_null=on_null))
    except ConfigError as error:
        options = {"dedup.key": "--key", "dedup.expiry_key": "--expiry-key"}
        texts = [text.partition(": ") for text in error.errors]
        raise ConfigError([f"{options.get(path, path)}: {rest}" for path, _, rest in texts]) from None


def read_columns(reader: ChunkReader, ranges: Ranges) -> RecordColumns:
    """The records of the ranges; fewer if they are large."""
    chunks: list[InputChunk] = []
    size = 0
    for together in reader.read_chunks(ranges):
        chunks += together
        size += sum(len(value or b"") for chunk in together for value in chunk.values)
        if size > LOOKED_AT_BYTES:
            break
    return RecordColumns(
        [value for chunk in chunks for value in chunk.values],
        [key for chunk in chunks for key in chunk.keys],
        [timestamp for chunk in chunks for timestamp in chunk.timestamps_ms],
        [pairs for chunk in chunks for pairs in _headers(chunk)],
    )


def read_sample(
    reader: ChunkReader,
    slices: Iterable[Ranges],
    finding: Finding,
    now_ms: int,
    progress: Callable[[int], None],
) -> Sample:
    """Read and study the slices. ``progress`` is called with the number of records that were read."""
    unit = finding.time.unit
    future = future_threshold(now_ms * 1_000, Dedup().max_future, unit)
    sample, marks = Sample(PeriodStudy(unit, future)), ReplayFilter()
    extract = _Extraction(finding)
    for ranges in slices:
        for together in reader.read_chunks(ranges):
            for chunk in together:
                _study(chunk, extract, marks, finding.stamp, sample)
                progress(len(chunk.offsets))
        sample.study.end_slice()
    return sample


class _Extraction:
    """Extracts the proposed keys. Ids that the registry doesn't know make errors of their records."""

    def __init__(self, finding: Finding) -> None:
        spec = KeySpec(
            finding.detected.format, finding.key, finding.time.field, finding.time.unit,
            on_null="unique" if finding.has_nulls else "error",
        )  # fmt: skip
        schemas = finding.detected.schemas
        self._spec = spec if schemas is None else spec.with_schemas(schemas)
        self._extract = build_extractor(self._spec)

    def __call__(self, batch: RecordColumns) -> Extraction:
        while True:
            try:
                return self._extract(batch)
            except UnknownSchemas as unknown:
                schemas = self._spec.schemas
                assert schemas is not None, "only they have ids"
                ids = tuple({*schemas.unknown, *unknown.ids})
                self._spec = self._spec.with_schemas(replace(schemas, unknown=ids))
                self._extract = build_extractor(self._spec)


def _study(chunk: InputChunk, extract: _Extraction, marks: ReplayFilter, stamp: str, sample: Sample) -> None:
    """Add a chunk's records to the sample: first errors, then replays are left out, as in a service."""
    headers = _headers(chunk)
    extraction = extract(RecordColumns(chunk.values, chunk.keys, chunk.timestamps_ms, headers))
    passed = np.ones(len(chunk.offsets), np.bool_)
    passed[[error.row for error in extraction.errors]] = False
    sample.errors.update(error.reason.value for error in extraction.errors)
    sample.records += len(passed)
    if stamp != "none":
        in_headers = stamp == "header"
        stamps = [last_header(pairs, STAMP_HEADER) for pairs in headers] if in_headers else chunk.keys
        rows = np.flatnonzero(passed)
        passed[rows] = marks.accept_many(parse_stamps(stamps).take(rows))
        sample.replays += len(rows) - int(passed.sum())
    nulls = list(extraction.nulls)
    sample.passing += int(passed[nulls].sum())
    passed[nulls] = False
    rows = np.flatnonzero(passed)
    sample.study.add(
        chunk.partition,
        Rows(
            np.array(chunk.offsets, np.int64)[rows],
            extraction.expiry[rows],
            extraction.digests[rows],
            contents_of([chunk.values[row] for row in rows.tolist()]),
        ),
    )


def contents_of(values: Sequence[bytes | None]) -> NDArray[np.uint64]:
    """Hashes of n values, uint64[n]; null and no bytes have the same."""
    return np.array([xxhash.xxh3_64_intdigest(value or b"") for value in values], np.uint64)


def _headers(chunk: InputChunk) -> Sequence[Sequence[tuple[str, bytes | None]] | None]:
    return chunk.headers or [None] * len(chunk.offsets)
