"""Deliver: the last stage; each lane puts the routes on its records and writes them in one transaction."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from replayfilter.core.clock.expiry import UNKNOWN
from replayfilter.core.columns import unpack
from replayfilter.core.routing import Route
from replayfilter.core.stamp import stamp_keys
from replayfilter.core.watermark.watermark_state import WATERMARK_HEADER
from replayfilter.errors import DeliveryError
from replayfilter.kafka.chunk import Chunk, Headers, InputPartition
from replayfilter.kafka.lanes import Delivery
from replayfilter.spark import worker
from replayfilter.spark.counts import LAGGARDS, REASONS_OF_ROUTES, count_row
from replayfilter.spark.partitioning import partition_ids
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.rows import PAYLOAD, STATS, Payload

FIRST_HEADER = "rf-first"  # of a duplicate: topic/partition/offset of the record that it repeats
_COUNTED = {
    route: route.name.lower() for route in Route if route not in (Route.UNDECIDED, *REASONS_OF_ROUTES)
}
_FAILED = np.array([route == Route.ERROR or route in REASONS_OF_ROUTES for route in Route])


class _Name(NamedTuple):
    """A run's name."""

    topic: str
    partition: int
    first: int


class _Row(NamedTuple):
    kind: int
    lane: int
    name: _Name
    body: pa.Buffer


def deliver_batches(
    settings: PipelineSettings, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The stage, for mapInArrow: one lane's rows in (stats, then routes, then payloads), counts out.

    Raises DeliveryError if a record has no route or more than one; nothing of the lane is delivered then.
    """
    rows = _rows(batches)
    routes = _Routes()
    low = UNKNOWN
    for row in rows:
        if row.kind == STATS:
            counted = json.loads(row.body.to_pybytes())
            low = counted.pop("low")
            laggards = counted.pop(LAGGARDS, "")
            yield count_row(counted, laggards)
        elif row.kind == PAYLOAD:
            lane = partition_ids(settings.lanes).index(row.lane)
            with worker.lanes(settings).open(lane, routes.sources()) as delivery:
                counts = _Lane(settings, routes, delivery, low).deliver(chain([row], rows))
            yield count_row(counts)
        else:
            routes.add(row.name, row.body)
    routes.check_used_up()


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[_Row]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("kind", "lane", *_Name._fields))
        bodies = batch.column("body")
        for at, (kind, lane, *name) in enumerate(zip(*columns, strict=True)):
            yield _Row(kind, lane, _Name(*name), bodies[at].as_buffer())


class _Routes:
    """The routes of one lane's batch, 5 bytes a record, and what its duplicates repeat if that is known."""

    def __init__(self) -> None:
        self._parts: dict[_Name, list[tuple[NDArray[np.uint32], NDArray[np.uint8]]]] = {}
        self._firsts: dict[_Name, dict[int, str]] = {}

    def add(self, name: _Name, body: pa.Buffer) -> None:
        """Keep what one shard decided of one run."""
        columns, meta = unpack(body.to_pybytes())
        self._parts.setdefault(name, []).append((columns["rows"], columns["codes"]))
        if "repeats" in columns:
            found = (columns[column].tolist() for column in ("repeats", "place", "offset"))
            firsts = {
                row: f"{meta['places'][place]}/{offset}" for row, place, offset in zip(*found, strict=True)
            }
            self._firsts.setdefault(name, {}).update(firsts)

    def sources(self) -> list[InputPartition]:
        """The input partitions that the routes are for."""
        return list(dict.fromkeys((name.topic, name.partition) for name in self._parts))

    def apply_to(self, name: _Name, decided: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The routes of all rows of a run; ``decided`` has those that decode knew, else 0."""
        codes = decided.copy()
        parts = self._parts.pop(name, [])
        for rows, found in parts:
            codes[rows] = found
        # As many routes as rows that wanted one, and none without: so each has one, and decode's stand.
        given, wanted = sum(len(rows) for rows, _ in parts), int((decided == 0).sum())
        if given != wanted or not codes.all() or (codes != decided)[decided != 0].any():
            raise DeliveryError(
                f"{given} routes came for {wanted} undecided records of {name.topic}[{name.partition}] from "
                f"offset {name.first} on; nothing is delivered rather than something wrong: report this, and "
                "start the service again"
            )
        return codes

    def firsts_of(self, name: _Name, rows: int) -> pa.Array:
        """For each of a run's rows the record that it repeats, as topic/partition/offset, or null."""
        firsts = self._firsts.pop(name, {})
        return pa.array([firsts.get(row) for row in range(rows)], pa.string())

    def check_used_up(self) -> None:
        """Raise DeliveryError if routes came for a run that did not."""
        for name in self._parts:
            raise DeliveryError(
                f"routes came for {name.topic}[{name.partition}] from offset {name.first}, no records did: "
                "nothing is delivered rather than something wrong: report this, and start the service again"
            )


class _Lane:
    """The records of one lane's batch on their way out."""

    def __init__(self, settings: PipelineSettings, routes: _Routes, delivery: Delivery, low: int) -> None:
        self._settings, self._routes, self._delivery, self._low = settings, routes, delivery, low
        self._counts: Counter[str] = Counter()
        self._oldest_ms: int | None = None
        nowhere = [("", 1)] * len(Route)
        for route, output in settings.outputs.items():
            nowhere[route] = output
        for route in REASONS_OF_ROUTES:
            nowhere[route] = nowhere[Route.ERROR]
        self._topics = np.array([topic for topic, _ in nowhere], dtype=object)
        self._partitions = np.array([partitions for _, partitions in nowhere])
        self._written = np.array([bool(topic) for topic, _ in nowhere])

    def deliver(self, rows: Iterator[_Row]) -> Counter[str]:
        """Write all runs and commit; the counts of the lane."""
        ends: dict[InputPartition, int] = {}
        worked = 0.0
        for row in rows:
            begun = time.perf_counter()
            payload = Payload.from_buffer(row.body)
            self._write(row.name, payload)
            self._counts["bytes"] += row.body.size
            self._counts.update(payload.counts)
            ends[row.name.topic, row.name.partition] = payload.records.column("offset")[-1].as_py() + 1
            self._see_times(payload.records.column("timestamp"))
            worked += time.perf_counter() - begun
        self._routes.check_used_up()
        begun = time.perf_counter()
        self._counts.update(asdict(self._delivery.commit(ends)))
        self._counts["deliver_us"] = round((worked + time.perf_counter() - begun) * 1e6)
        if self._oldest_ms is not None:
            self._counts["delay_ms"] = max(0, round(time.time() * 1000) - self._oldest_ms)
        return self._counts

    def _see_times(self, timestamps: pa.Array) -> None:
        oldest, newest = pc.min_max(timestamps.filter(pc.greater_equal(timestamps, 0))).values()
        if oldest.is_valid:
            known = oldest.as_py() if self._oldest_ms is None else self._oldest_ms  # 0 is a time too
            self._oldest_ms = min(oldest.as_py(), known)
            self._counts["newest_ms"] = max(newest.as_py(), self._counts["newest_ms"])

    def _write(self, name: _Name, payload: Payload) -> None:
        records, settings = payload.records, self._settings
        codes = self._routes.apply_to(name, records.column("route").to_numpy())
        self._count(codes, records)
        if settings.rules.remember_first:
            records = records.append_column("first", self._routes.firsts_of(name, records.num_rows))
        written = self._written[codes]
        if not written.all():
            codes, records = codes[written], records.filter(pa.array(written))
        offsets = records.column("offset").to_numpy()
        if settings.output_key == "stamp":
            keys = stamp_keys(settings.pids[name.topic], name.partition, offsets).tolist()
        else:
            keys = records.column("key").to_pylist()
        headers = _headers(records, codes)
        if settings.rules.watermark is not None:
            headers = _with_low(headers or [None] * records.num_rows, self._low)
        run = Chunk(
            (name.topic, name.partition),
            offsets.tolist(),
            self._topics[codes].tolist(),
            (name.partition % self._partitions[codes]).tolist(),
            keys,
            records.column("value").to_pylist(),
            records.column("timestamp").to_pylist(),
            headers,
        )
        self._delivery.write(run)

    def _count(self, codes: NDArray[np.uint8], records: pa.RecordBatch) -> None:
        found = np.bincount(codes, minlength=len(Route)).tolist()
        for route, name in _COUNTED.items():
            self._counts[name] += found[route]
        for route, reason in REASONS_OF_ROUTES.items():
            self._counts["error"] += found[route]
            self._counts[f"error_{reason}"] += found[route]
        for row in np.flatnonzero(codes == Route.ERROR).tolist() if found[Route.ERROR] else ():
            self._counts[f"error_{records.column('reason')[row].as_py()}"] += 1


def _headers(records: pa.RecordBatch, codes: NDArray[np.uint8]) -> list[Headers | None] | None:
    """The records' own headers, and behind them ours: why it is an error, what it repeats.

    None: no record has any.
    """
    failed = np.flatnonzero(_FAILED[codes]).tolist()
    own = records.column("headers") if "headers" in records.schema.names else None
    firsts = records.column("first").to_pylist() if "first" in records.schema.names else []
    if own is None and not failed and not any(firsts):
        return None
    headers: list[Headers | None] = [None] * records.num_rows if own is None else _own_headers(own)
    for row in failed:
        headers[row] = [*(headers[row] or ()), *_why(records, row, Route(codes[row]))]
    for row, first in enumerate(firsts):
        if first is not None:
            headers[row] = [*(headers[row] or ()), (FIRST_HEADER, first)]
    return headers


def _with_low(headers: list[Headers | None], low: int) -> list[Headers | None]:
    """The records' headers with the low watermark in place of the one that they came with."""
    ours: Headers = [] if low == UNKNOWN else [(WATERMARK_HEADER, str(low))]
    return [[*(pair for pair in own or () if pair[0] != WATERMARK_HEADER), *ours] or None for own in headers]


def _why(records: pa.RecordBatch, row: int, route: Route) -> Headers:
    reason, message, stage = REASONS_OF_ROUTES.get(route), None, "route"
    if reason is None:
        reason, stage = records.column("reason")[row].as_py(), "decode"
    if route == Route.JUMP:
        message = "expiry key more than max_jump above the latest point before it"
    else:
        message = records.column("message")[row].as_py()
    return [("rf-reason", reason), ("rf-message", message), ("rf-stage", stage)]


def _own_headers(column: pa.ListArray) -> list[Headers | None]:
    pairs = column.flatten()
    named = list(zip(pairs.field(0).to_pylist(), pairs.field(1).to_pylist(), strict=True))
    ends = np.cumsum(column.value_lengths().fill_null(0).to_numpy()).tolist()
    return [named[start:end] or None for start, end in zip([0, *ends], ends, strict=False)]
