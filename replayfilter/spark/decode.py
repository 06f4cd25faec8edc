"""Decode: the first stage of the plan, from records to frames and payloads.

A chunk is a stretch of consecutive records of one input partition. Chunks that were read together are decoded
in one pass, since a topic may have hundreds of partitions with few records each. From them come one payload
for each lane, which holds the lane's records unchanged in Arrow's format, and one frame for each shard.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock.units import UNKNOWN, future_threshold
from replayfilter.core.dedup import columns_to_keep
from replayfilter.core.digest import partition_salt
from replayfilter.core.frames import ChunkId, Cut, cut_frames
from replayfilter.core.replay.stamp_audit import unlikely
from replayfilter.core.routing import Route
from replayfilter.core.rules import Scope
from replayfilter.core.stamp import STAMP_BYTES, STAMP_HEADER, Stamps, stamps_from_wire
from replayfilter.core.watermark.carried import (
    SERVICE_HEADER,
    UNNAMED,
    WATERMARK_HEADER,
    Carried,
    last_of_runs,
)
from replayfilter.core.watermark.watermark_state import Observation, observe
from replayfilter.errors import UnknownSchemas
from replayfilter.formats import Extraction, RecordColumns
from replayfilter.formats.spec import MAX_UNKNOWN
from replayfilter.kafka.chunk_reader import InputChunk, RecordHeaders
from replayfilter.spark import worker
from replayfilter.spark.error_reasons import (
    HEADERS_MESSAGE,
    HEADERS_REASON,
    STAMP_REASON,
    future_message,
    stamp_message,
)
from replayfilter.spark.partitioning import assigned_index, partition_ids
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.rows import FRAME, PAYLOAD, Payload, RowBuilder, facts_to_text

_WATERMARK = re.compile(rb"-?[0-9]{1,19}")
_SERVICE = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # as service.name


def decode_chunks(
    settings: PipelineSettings, read: Iterable[Sequence[InputChunk]], facts: BatchFacts
) -> Iterator[pa.RecordBatch]:
    """Turn chunks of records into batches of frames and payloads, one batch for the chunks read together.

    ``facts``: the same for all chunks of a batch and all its attempts.
    Raises UnknownSchemas at the end, with the unknown ids of all chunks, so that few attempts find them all.
    """
    unknown: set[int] = set()
    for number, chunks in enumerate(read):
        rows = RowBuilder()
        try:
            _Decoder(settings, chunks, facts).add_to(rows, number)
        except UnknownSchemas as error:
            unknown |= error.ids
            if len(unknown) >= MAX_UNKNOWN:
                raise UnknownSchemas(unknown) from None
        else:
            yield rows.to_batch()
    if unknown:
        raise UnknownSchemas(unknown)


@dataclass(slots=True)
class _Verdicts:
    """What decode itself decides: ``route`` uint8[n], 0 for undecided, and by row reasons and messages.

    A message without a reason is for the route FUTURE, which only the shards can decide.
    """

    route: NDArray[np.uint8]
    reasons: dict[int, str]
    messages: dict[int, str]

    def fail(self, row: int, reason: str, message: str) -> None:
        """Send a row to the error topic. The first reason found is kept."""
        if self.route[row] != Route.ERROR:
            self.route[row] = Route.ERROR
            self.reasons[row], self.messages[row] = reason, message


class _Decoder:
    """Decodes chunks that were read together, all in one pass: rows are indexes over all of them."""

    def __init__(self, settings: PipelineSettings, chunks: Sequence[InputChunk], facts: BatchFacts) -> None:
        self.settings, self.facts = settings, facts
        self.lanes = [assigned_index(each.topic, each.partition, settings.lanes) for each in chunks]
        by_lane = sorted(range(len(chunks)), key=lambda at: (self.lanes[at], chunks[at][:2]))
        self.lanes.sort()
        self.chunks = [chunks[at] for at in by_lane]
        self.ids = [ChunkId(each.topic, each.partition, each.offsets[0]) for each in self.chunks]
        self.ends = np.cumsum([len(each.offsets) for each in self.chunks])
        self.starts = self.ends - np.diff(self.ends, prepend=0)
        self.records = int(self.ends[-1])
        self.offsets = np.array(self._joined("offsets"), np.int64)
        self.timestamps_ms = np.array(self._joined("timestamps_ms"), np.int64)
        self.keys, self.values = self._joined("keys"), self._joined("values")
        self.verdicts = _Verdicts(np.zeros(self.records, np.uint8), {}, {})
        self.unstamped = self.unlikely_stamps = 0
        self.started_at = time.perf_counter()

    def add_to(self, rows: RowBuilder, sequence: int) -> None:
        """Decode the chunks and add the rows for the shards and lanes."""
        shards, lanes = partition_ids(self.settings.shards), partition_ids(self.settings.lanes)
        cut, facts = self._cut(), facts_to_text(self.facts)
        for shard, frame in zip(shards, cut.frames, strict=True):
            if len(frame.row) or frame.observations:
                rows.add(frame.to_bytes(), FRAME, shard, lanes[0], sequence, facts)
        for lane, payload in self._payloads():
            shard = shards[lane % len(shards)]
            rows.add(payload, PAYLOAD, shard, lanes[lane], sequence, facts)

    def _cut(self) -> Cut:
        for row in self._unreadable():
            self.verdicts.fail(row, HEADERS_REASON, HEADERS_MESSAGE)
        extraction = worker.extractor(self.settings.keys)(self._columns())
        for row, reason, message in extraction.errors:
            self.verdicts.fail(row, reason, message)
        stamps = self._stamps()
        if stamps is not None:
            self._check_stamps(stamps)
        rows = np.flatnonzero(self.verdicts.route == Route.UNDECIDED)
        all_undecided = len(rows) == self.records
        if stamps is not None and not all_undecided:
            stamps = stamps.take(rows)
        expiry = extraction.expiry if all_undecided else extraction.expiry[rows]
        future = self._find_future(rows, expiry)
        observations = None
        if self.settings.rules.watermark is not None:
            observations = self._observations(extraction, self._carried(rows, stamps, future))
        chunk_of_rows = self._chunk_of(rows)
        cut = cut_frames(
            self.ids,
            np.searchsorted(rows, self.ends),
            stamps=stamps if self.settings.rules.replay else None,
            expiry=expiry,
            digests=self._digests(extraction, rows, chunk_of_rows),
            rows=(rows - self.starts[chunk_of_rows]).astype(np.uint32),
            future=future,
            shards=self.settings.shards,
            chunk_shards=self._chunk_shards(),
            expiry_order=self.settings.rules.needs_expiry_order,
            kept=columns_to_keep(self.settings.rules, self.offsets, extraction.contents, rows),
            observations=observations,
            null=np.isin(rows, extraction.nulls) if len(extraction.nulls) else None,
        )
        self.verdicts.route[rows[cut.replays]] = Route.REPLAY
        return cut

    def _joined(self, column: str) -> list[Any]:
        """A column of all chunks."""
        return list(chain.from_iterable(getattr(each, column) for each in self.chunks))

    def _chunk_of(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """intp[n]: the index of the chunk of each row."""
        return np.searchsorted(self.ends, rows, side="right")

    def _slices(self) -> Iterator[slice]:
        """The rows of each chunk."""
        return (slice(start, end) for start, end in pairwise([0, *self.ends.tolist()]))

    def _unreadable(self) -> Iterator[int]:
        for each, rows in zip(self.chunks, self._slices(), strict=True):
            yield from (rows.start + row for row in each.unreadable)

    def _observations(self, extraction: Extraction, carried: Iterable[Carried]) -> dict[int, Observation]:
        """By chunk the progress of origins, without records that are errors or too far in the future."""
        good = self.verdicts.route == Route.UNDECIDED
        if extraction.times_us is not None:
            good &= extraction.times_us != UNKNOWN
            good &= extraction.times_us <= self.facts.time_us + self.settings.max_future_us
        by_chunk: dict[int, list[Carried]] = {}
        for each in carried:
            chunk = int(self._chunk_of(np.array([each.row]))[0])
            row = each.row - int(self.starts[chunk])
            by_chunk.setdefault(chunk, []).append(each._replace(row=row))
        found = {}
        for chunk, own in enumerate(self._slices()):
            lows = tuple(by_chunk.get(chunk, ()))
            if extraction.times_us is None:
                found[chunk] = Observation((), np.zeros(0, np.int64), lows)
            else:
                rows = own.start + np.flatnonzero(good[own])
                origins = [extraction.origins[row] for row in rows.tolist()]
                found[chunk] = observe(origins, extraction.times_us[rows], lows)
        return found

    def _carried(
        self, rows: NDArray[np.intp], stamps: Stamps | None, future: NDArray[np.bool_] | None
    ) -> Iterator[Carried]:
        """The watermarks that these rows carry: all that can count, few of those that repeat another."""
        if self._headers is None:
            return
        limit = self.facts.believed_us + self.settings.max_future_us
        low_codes, texts = _coded(last_headers(self._headers, WATERMARK_HEADER))
        service_codes, names = _coded(last_headers(self._headers, SERVICE_HEADER))
        lows = [_watermark_in(text, limit) for text in texts]
        services = [_service_in(name) for name in names]
        low_codes, service_codes = low_codes[rows], service_codes[rows]
        counts = np.array([low is not None for low in lows])[low_codes]
        counts &= np.array([service is not None for service in services])[service_codes]
        good = np.flatnonzero(counts if future is None else counts & ~future)
        if self.settings.rules.max_jump is None:  # otherwise each row by itself may be an error
            codes = (low_codes * len(services) + service_codes)[good]
            chunks = self._chunk_of(rows[good])
            good = good[last_of_runs((chunks, *_source_columns(stamps, good)), codes)]
        for at in good.tolist():
            yield Carried(int(rows[at]), services[service_codes[at]] or UNNAMED, lows[low_codes[at]] or 0)

    def _columns(self) -> RecordColumns:
        needs = worker.extractor(self.settings.keys).needs
        return RecordColumns(
            self.values,
            self.keys if "keys" in needs else (),
            self.timestamps_ms if "timestamps" in needs else (),
            self._header_lists() if "headers" in needs else (),
        )

    def _header_lists(self) -> list[RecordHeaders | None]:
        parts = (each.headers or [None] * len(each.offsets) for each in self.chunks)
        return list(chain.from_iterable(parts))

    @cached_property
    def _headers(self) -> pa.Array | None:
        """The records' headers in Arrow's form, list<struct<key, value>>; None if no record has any."""
        if all(each.headers is None for each in self.chunks):
            return None
        headers = self._header_lists()
        sizes = [len(pairs) if pairs else 0 for pairs in headers]
        pairs = [pair for record in headers for pair in record or ()]
        columns = (pa.array([name for name, _ in pairs], pa.string()), _binary([value for _, value in pairs]))
        starts = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
        return pa.ListArray.from_arrays(starts, pa.StructArray.from_arrays(columns, ["key", "value"]))

    def _digests(
        self, extraction: Extraction, rows: NDArray[np.intp], chunk_of_rows: NDArray[np.intp]
    ) -> NDArray[np.uint64]:
        if not self.settings.rules.dedup:
            return np.zeros((len(rows), 2), np.uint64)
        digests = extraction.digests[rows]
        if self.settings.rules.scope is Scope.PARTITION:
            salts = [partition_salt(id_.topic, id_.partition) for id_ in self.ids]
            digests ^= np.array(salts, np.uint64)[chunk_of_rows]
        return digests

    def _chunk_shards(self) -> list[int] | None:
        """The shard of each chunk where one shard decides all of it. This needs the fewest witnesses."""
        if not self.settings.rules.shards_by_partition:
            return None
        return [assigned_index(id_.topic, id_.partition, self.settings.shards) for id_ in self.ids]

    def _stamps(self) -> Stamps | None:
        if self.settings.stamp == "none":
            return None
        if self.settings.stamp == "key":
            return read_stamps(_binary(self.keys))
        if self._headers is None:
            return read_stamps(pa.nulls(self.records, pa.binary()))
        return read_stamps(last_headers(self._headers, STAMP_HEADER))

    def _check_stamps(self, stamps: Stamps) -> None:
        bad = np.flatnonzero(~stamps.valid).tolist()
        self.unstamped, self.unlikely_stamps = len(bad), int(unlikely(stamps).sum())
        if self.settings.on_invalid == "error":
            message = stamp_message(self.settings.stamp)
            for row in bad:
                self.verdicts.fail(row, STAMP_REASON, message)

    def _find_future(self, rows: NDArray[np.intp], expiry: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Which rows are too far in the future, bool[n]; None if none can be. Stores a message for each.

        A row found here may still be a replay: the shards decide that first.
        """
        rules = self.settings.rules
        if not rules.checks_future:
            return None
        limit = future_threshold(self.facts.time_us, self.settings.max_future_us, rules.unit)
        future: NDArray[np.bool_] = expiry > limit
        for at in np.flatnonzero(future).tolist():
            message = future_message(int(expiry[at]), limit, self.facts.time_us)
            self.verdicts.messages[int(rows[at])] = message
        return future

    def _payloads(self) -> Iterator[tuple[int, Payload]]:
        """The lanes that have chunks here, each with its payload."""
        records = self._records()
        counts = {
            "unstamped": self.unstamped,
            "unlikely_stamps": self.unlikely_stamps,
            "decode_us": round((time.perf_counter() - self.started_at) * 1e6),
        }
        start = 0
        for lane, group in groupby(range(len(self.chunks)), key=self.lanes.__getitem__):
            chunks = list(group)
            ends = self.ends[chunks]
            own = records.slice(start, int(ends[-1]) - start)
            ids = tuple(self.ids[chunk] for chunk in chunks)
            yield lane, Payload(ids, tuple((ends - start).tolist()), own, counts)
            start, counts = int(ends[-1]), {}  # each count only once

    def _records(self) -> pa.RecordBatch:
        """All records, with the routes that are known already."""
        records = {
            "value": _binary(self.values),
            "offset": pa.array(self.offsets),
            "timestamp": pa.array(self.timestamps_ms),
        }
        if self.settings.output_stamp != "key":
            records["key"] = _binary(self.keys)
        if self._headers is not None:
            records["headers"] = self._headers
        records["route"] = pa.array(self.verdicts.route)
        if self.verdicts.messages:
            rows = range(self.records)
            records["reason"] = pa.array([self.verdicts.reasons.get(row) for row in rows], pa.string())
            records["message"] = pa.array([self.verdicts.messages.get(row) for row in rows], pa.string())
        return pa.RecordBatch.from_pydict(records)


def read_stamps(column: pa.Array) -> Stamps:
    """Read a column of binary values as stamps, without a Python object for each."""
    valid = pc.fill_null(pc.equal(pc.binary_length(column), STAMP_BYTES), False)
    good = column.filter(valid)
    data = good.buffers()[2]
    start = good.offset * STAMP_BYTES
    joined = memoryview(data)[start : start + len(good) * STAMP_BYTES] if len(good) else b""
    return stamps_from_wire(joined, valid.to_numpy(zero_copy_only=False))


def last_headers(headers: pa.Array, name: str) -> pa.Array:
    """The value of the last header of that name in each record; null if a record has none."""
    pairs = headers.flatten()
    named = pc.equal(pc.struct_field(pairs, "key"), name)
    rows = pc.list_parent_indices(headers).filter(named).to_numpy()
    last = np.ones(len(rows), np.bool_)
    last[:-1] = rows[1:] != rows[:-1]
    index = np.full(len(headers), -1, np.int64)
    index[rows[last]] = np.flatnonzero(named.to_numpy(zero_copy_only=False))[last]
    return pc.struct_field(pairs, "value").take(pa.array(index, mask=index < 0))


def _coded(column: pa.Array) -> tuple[NDArray[np.int64], list[bytes | None]]:
    """A column of n values as int64[n], their indexes in the list of different values, which has None too."""
    encoded = column.dictionary_encode()
    different = encoded.dictionary.to_pylist()
    codes = encoded.indices.fill_null(len(different)).cast(pa.int64())
    return codes.to_numpy(zero_copy_only=False), [*different, None]


def _watermark_in(text: bytes | None, limit: int) -> int | None:
    """The carried watermark, in microseconds; None if there is none, or it is beyond ``limit``."""
    if text is None or not _WATERMARK.fullmatch(text) or int(text) < -(2**63) or int(text) > limit:
        return None
    return int(text)


def _service_in(name: bytes | None) -> str | None:
    """The service that wrote a record, UNNAMED if it names none; None for what is no name."""
    if name is None:
        return UNNAMED
    return name.decode() if _SERVICE.fullmatch(name) else None


def _source_columns(stamps: Stamps | None, rows: NDArray[np.intp]) -> tuple[NDArray[np.int64], ...]:
    """Columns that name the sources of these rows; records without a stamp are of one source."""
    if stamps is None:
        return ()
    known = stamps.take(rows)
    pids, partitions = (np.where(known.valid, column, -1) for column in (known.pids, known.partitions))
    return known.valid.astype(np.int64), pids, partitions.astype(np.int64)


def _binary(values: list[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary())
