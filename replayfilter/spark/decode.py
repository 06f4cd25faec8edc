"""Decode: Kafka's rows to frames, the first stage of the plan.

A run is a stretch of consecutive records of one input partition within an Arrow batch. Each becomes one
payload, the records as they came in Arrow's own format, and one fingerprint frame for each shard.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from replayfilter.core.clock.expiry import UNKNOWN, future_threshold
from replayfilter.core.frames import Cut, cut_frames
from replayfilter.core.routing import Route
from replayfilter.core.stamp import STAMP_BYTES, STAMP_HEADER, Stamps, stamps_from_wire
from replayfilter.core.watermark.watermark_state import WATERMARK_HEADER, Observation, observe
from replayfilter.formats import Extraction, RecordColumns
from replayfilter.spark import worker
from replayfilter.spark.counts import STAMP_REASON
from replayfilter.spark.partitioning import assigned_index, partition_ids
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.rows import FINGERPRINT, PAYLOAD, FrameRows, Payload

_LOW = re.compile(rb"-?[0-9]{1,19}")


def decode_batches(settings: PipelineSettings, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The stage, for mapInArrow: batches of Kafka's rows in, batches of frames out."""
    for batch in batches:
        rows = FrameRows()
        for run in cut_chunks(batch):
            _Decoding(settings, run).add_to(rows)
        if len(rows):
            yield rows.to_batch()


def cut_chunks(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The runs of a batch, without copying."""
    topics, partitions = batch.column("topic"), batch.column("partition").to_numpy()
    changes = np.diff(partitions) != 0
    changes |= pc.not_equal(topics.slice(1), topics.slice(0, max(0, len(topics) - 1))).to_numpy(
        zero_copy_only=False
    )
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
    return (batch.slice(start, end - start) for start, end in pairwise(edges) if end > start)


@dataclass(slots=True)
class _Verdicts:
    """What decode has to say of rows: ``route`` uint8[n]; reason and message by row, for the error topic."""

    route: NDArray[np.uint8]
    reasons: dict[int, str]
    messages: dict[int, str]

    def fail(self, row: int, reason: str, message: str) -> None:
        """Send a row to the error topic; the first reason found counts."""
        if self.route[row] != Route.ERROR:
            self.route[row] = Route.ERROR
            self.reasons[row], self.messages[row] = reason, message


class _Decoding:
    """One run while it is decoded."""

    def __init__(self, settings: PipelineSettings, run: pa.RecordBatch) -> None:
        self.settings = settings
        self.run = run
        self.topic: str = run.column("topic")[0].as_py()
        self.partition: int = run.column("partition")[0].as_py()
        self.first: int = run.column("offset")[0].as_py()
        self.batch_time: int = run.column("batch_time")[0].as_py()
        self.verdicts = _Verdicts(np.zeros(run.num_rows, np.uint8), {}, {})
        self.unstamped = 0
        self.begun = time.perf_counter()

    def add_to(self, rows: FrameRows) -> None:
        """Decode the run and add its frames to the rows that go on to the shards and lanes."""
        settings, shards = self.settings, partition_ids(self.settings.shards)
        cut = self._cut()
        self.verdicts.route[cut.replays] = Route.REPLAY
        place = assigned_index(self.topic, self.partition, settings.lanes)
        lane = partition_ids(settings.lanes)[place]
        name = (self.topic, self.partition, self.first, self.batch_time)
        for shard, frame in zip(shards, cut.frames, strict=True):
            if len(frame.row) or frame.observation is not None:
                rows.add(frame.to_bytes(), FINGERPRINT, shard, lane, *name)
        rows.add(self._payload(), PAYLOAD, shards[place % len(shards)], lane, *name)

    def _cut(self) -> Cut:
        extraction = worker.extractor(self.settings.keys)(self._columns())
        for row, reason, message in extraction.faults:
            self.verdicts.fail(row, reason, message)
        stamps = self._stamps()
        if stamps is not None:
            self._check_stamps(stamps)
        rows = np.flatnonzero(self.verdicts.route == Route.UNDECIDED)
        whole = len(rows) == self.run.num_rows
        if stamps is not None and not whole:
            stamps = stamps.take(rows)
        expiry = extraction.expiry if whole else extraction.expiry[rows]
        return cut_frames(
            self.topic,
            self.partition,
            self.first,
            stamps=stamps if self.settings.rules.replay else None,
            expiry=expiry,
            digests=self._digests(extraction, rows),
            rows=rows.astype(np.uint32),
            future=self._find_future(rows, expiry),
            shards=self.settings.shards,
            changes=self.settings.rules.needs_changes,
            input_offset=self.run.column("offset").to_numpy()[rows]
            if self.settings.rules.remember_origin
            else None,
            observation=self._observation(extraction) if self.settings.rules.watermark is not None else None,
        )

    def _observation(self, extraction: Extraction) -> Observation:
        """How far the origins are, but for records that are errors or too far in the future."""
        low = carried_watermark(self.run.column("headers"))
        if extraction.times_us is None:
            return Observation((), np.zeros(0, np.int64), low)
        good = (self.verdicts.route == Route.UNDECIDED) & (extraction.times_us != UNKNOWN)
        good &= extraction.times_us <= self.batch_time + self.settings.max_future_us
        rows = np.flatnonzero(good)
        return observe([extraction.origins[row] for row in rows.tolist()], extraction.times_us[rows], low)

    def _columns(self) -> RecordColumns:
        run, needs = self.run, worker.extractor(self.settings.keys).needs
        return RecordColumns(
            run.column("value").to_pylist(),
            run.column("key").to_pylist() if "keys" in needs else (),
            self._timestamps_ms if "timestamps" in needs else (),
            _header_lists(run.column("headers")) if "headers" in needs else (),
        )

    @cached_property
    def _timestamps_ms(self) -> NDArray[np.int64]:
        micros: NDArray[np.int64] = self.run.column("timestamp").cast(pa.int64()).to_numpy()
        return micros // 1000

    def _digests(self, extraction: Extraction, rows: NDArray[np.intp]) -> NDArray[np.uint64]:
        if self.settings.rules.dedup:
            return extraction.digests[rows]
        # Without keys any shard will do, and with one for the whole run the others need fewest witnesses.
        place = assigned_index(self.topic, self.partition, self.settings.shards)
        return np.full((len(rows), 2), place, np.uint64)

    def _stamps(self) -> Stamps | None:
        if self.settings.stamp == "none":
            return None
        column = self.run.column("key")
        if self.settings.stamp == "header":
            column = last_headers(self.run.column("headers"), STAMP_HEADER)
        return read_stamps(column)

    def _check_stamps(self, stamps: Stamps) -> None:
        bad = np.flatnonzero(~stamps.valid).tolist()
        self.unstamped = len(bad)
        if self.settings.on_invalid == "error":
            where = "key" if self.settings.stamp == "key" else f"header {STAMP_HEADER}"
            for row in bad:
                self.verdicts.fail(row, STAMP_REASON, f"no stamp of {STAMP_BYTES} bytes in the {where}")

    def _find_future(self, rows: NDArray[np.intp], expiry: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Mark what is too far ahead, with a message in store in case that it is no replay."""
        settings = self.settings
        if not settings.checks_future:
            return None
        limit = future_threshold(self.batch_time, settings.max_future_us, settings.rules.unit)
        future = expiry > limit
        now = datetime.fromtimestamp(self.batch_time / 1e6, UTC).isoformat(timespec="milliseconds")
        for at in np.flatnonzero(future).tolist():
            row = int(rows[at])
            self.verdicts.messages[row] = (
                f"expiry key {expiry[at]} is above {limit}, the batch's time {now} and max_future together"
            )
        return future

    def _payload(self) -> Payload:
        columns = ["value", "offset"]
        if self.settings.output_key == "preserve":
            columns.append("key")
        headers = self.run.column("headers")
        if len(headers.flatten()):
            columns.append("headers")
        records = {name: self.run.column(name) for name in columns}
        records["timestamp"] = pa.array(self._timestamps_ms)
        records["route"] = pa.array(self.verdicts.route)
        if self.verdicts.messages:
            rows = range(self.run.num_rows)
            records["reason"] = pa.array([self.verdicts.reasons.get(row) for row in rows], pa.string())
            records["message"] = pa.array([self.verdicts.messages.get(row) for row in rows], pa.string())
        took = round((time.perf_counter() - self.begun) * 1e6)
        counts = {"unstamped": self.unstamped, "decode_us": took}
        return Payload(pa.RecordBatch.from_pydict(records), counts)


def read_stamps(column: pa.Array) -> Stamps:
    """Stamps from a column of binary values, without a Python object for each."""
    valid = pc.fill_null(pc.equal(pc.binary_length(column), STAMP_BYTES), False)
    good = column.filter(valid)
    data = good.buffers()[2]
    start = good.offset * STAMP_BYTES
    joined = memoryview(data)[start : start + len(good) * STAMP_BYTES] if len(good) else b""
    return stamps_from_wire(joined, valid.to_numpy(zero_copy_only=False))


def last_headers(headers: pa.Array, name: str) -> pa.Array:
    """The value of each record's last header of that name, null where it has none."""
    pairs = headers.flatten()
    named = pc.equal(pc.struct_field(pairs, "key"), name)
    rows = pc.list_parent_indices(headers).filter(named).to_numpy()
    last = np.ones(len(rows), np.bool_)
    last[:-1] = rows[1:] != rows[:-1]
    places = np.full(len(headers), -1, np.int64)
    places[rows[last]] = np.flatnonzero(named.to_numpy(zero_copy_only=False))[last]
    return pc.struct_field(pairs, "value").take(pa.array(places, mask=places < 0))


def carried_watermark(headers: pa.Array) -> int:
    """The largest low watermark that records carry, in microseconds; UNKNOWN if none does."""
    found = pc.unique(last_headers(headers, WATERMARK_HEADER)).to_pylist()
    lows = [int(text) for text in found if text is not None and _LOW.fullmatch(text)]
    return max((low for low in lows if abs(low) < 2**63), default=UNKNOWN)


def _header_lists(headers: pa.Array) -> list[list[tuple[str, bytes | None]] | None]:
    return [
        None if pairs is None else [(pair["key"], pair["value"]) for pair in pairs]
        for pairs in headers.to_pylist()
    ]
