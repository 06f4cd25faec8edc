"""Deliver: the last stage of the plan. Each lane writes its records by their routes, in one transaction."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from replayfilter.core.clock.units import UNKNOWN, length_in_ms
from replayfilter.core.frames import ChunkId, chunk_of_rows
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.routing import FirstSeen, Route, Routes
from replayfilter.core.stamp import stamp_keys
from replayfilter.errors import DeliveryError
from replayfilter.kafka.chunk import Chunk
from replayfilter.kafka.lanes import Delivery
from replayfilter.spark import worker
from replayfilter.spark.counts import count_row
from replayfilter.spark.error_reasons import REASON_OF_ROUTE
from replayfilter.spark.output_headers import output_headers, replace_stamps, replace_watermark
from replayfilter.spark.partitioning import partition_ids
from replayfilter.spark.pipeline_settings import Output, PipelineSettings
from replayfilter.spark.rows import PAYLOAD, REPORT, Payload, ShardReport, routes_from_bytes

_COUNTED = {route: route.name.lower() for route in Route if route not in (Route.UNDECIDED, *REASON_OF_ROUTE)}


class Row(NamedTuple):
    """A row as deliver gets it: see rows.py."""

    kind: int
    lane: int
    body: pa.Buffer


def deliver_batches(
    settings: PipelineSettings, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Deliver one lane's rows and yield counts; for mapInArrow.

    The rows come sorted: reports, then routes, then payloads. Raises DeliveryError if a record has no route
    or more than one; then nothing of the lane is delivered.
    """
    rows = _read_rows(batches)
    routes = LaneRoutes()
    watermark_us = UNKNOWN
    for row in rows:
        if row.kind == REPORT:
            report = ShardReport.from_bytes(row.body.to_pybytes())
            watermark_us = report.watermark_us
            yield count_row(report.counts, report.laggards)
        elif row.kind == PAYLOAD:
            lane = partition_ids(settings.lanes).index(row.lane)
            # The routes name nearly all partitions of the batch, the first payload only those of its task.
            partitions = routes.input_partitions | set(Payload.from_buffer(row.body).input_partitions)
            with worker.lanes(settings).open(lane, partitions) as delivery:
                counts = LaneWriter(settings, routes, delivery, watermark_us).deliver(chain([row], rows))
            yield count_row(counts)
        else:
            routes.add(routes_from_bytes(row.body.to_pybytes()))
    routes.check_used_up()


def _read_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        kinds, lanes = batch.column("kind").to_pylist(), batch.column("lane").to_pylist()
        for kind, lane, body in zip(kinds, lanes, batch.column("body"), strict=True):
            yield Row(kind, lane, body.as_buffer())


class Decided(NamedTuple):
    """What the shards and decode decided of n records.

    ``codes`` uint8[n]: routes. ``firsts``: by row of a duplicate the record that it repeats, as
    topic/partition/offset, if known. ``late``: by row of an expired record how far it is behind the latest
    point, in units of the expiry key; empty if the clock has no latest point.
    """

    codes: NDArray[np.uint8]
    firsts: dict[int, str]
    late: dict[int, int]


class LaneRoutes:
    """The routes of one lane's batch: 5 bytes per record, and more for records that are not unique."""

    def __init__(self) -> None:
        self._parts: dict[ChunkId, list[Routes]] = {}

    @property
    def input_partitions(self) -> set[InputPartition]:
        """The input partitions of the chunks that have routes here."""
        return {(chunk.topic, chunk.partition) for chunk in self._parts}

    def add(self, routes: Iterable[Routes]) -> None:
        """Keep what one shard decided of some chunks."""
        for each in routes:
            chunk = ChunkId(each.topic, each.partition, each.first)
            self._parts.setdefault(chunk, []).append(each)

    def take(self, chunk: ChunkId, decided: NDArray[np.uint8]) -> Decided:
        """Remove and return what was decided of all rows of a chunk.

        ``decided``: the routes that decode set, 0 for undecided. Raises DeliveryError unless the shards
        decided each undecided row exactly once, and no other row.
        """
        codes = decided.copy()
        firsts: dict[int, str] = {}
        late: dict[int, int] = {}
        parts = self._parts.pop(chunk, [])
        for part in parts:
            codes[part.rows] = part.codes
            if part.first_seen is not None:
                firsts.update(_first_records(part.first_seen))
            if part.late is not None:
                expired = part.rows[part.codes == Route.EXPIRED]
                late.update(zip(expired.tolist(), part.late.tolist(), strict=True))
        # As many routes as undecided rows, and no row left without: so each of them has exactly one.
        given, wanted = sum(len(part.rows) for part in parts), int((decided == 0).sum())
        if given != wanted or not codes.all() or (codes != decided)[decided != 0].any():
            raise DeliveryError(
                f"{given} routes for {wanted} undecided records of {chunk.topic}[{chunk.partition}], from "
                f"offset {chunk.first} on; the lane was not delivered, because its routes are not certain: "
                "report this as a bug, and start the service again"
            )
        return Decided(codes, firsts, late)

    def check_used_up(self) -> None:
        """Raise DeliveryError if there are routes for a chunk whose payload did not come."""
        for chunk in self._parts:
            raise DeliveryError(
                f"routes but no records of {chunk.topic}[{chunk.partition}], from offset {chunk.first} on; "
                "the lane was not delivered, because its records are not complete: report this as a bug, "
                "and start the service again"
            )


def _first_records(seen: FirstSeen) -> Iterator[tuple[int, str]]:
    """By row of a duplicate, topic/partition/offset of the record that it repeats."""
    columns = (seen.rows.tolist(), seen.input_index.tolist(), seen.input_offset.tolist())
    for row, index, offset in zip(*columns, strict=True):
        topic, partition = seen.partitions[index]
        yield row, f"{topic}/{partition}/{offset}"


class LaneWriter:
    """Writes the records of one lane's batch."""

    def __init__(
        self, settings: PipelineSettings, routes: LaneRoutes, delivery: Delivery, watermark_us: int
    ) -> None:
        self._settings, self._routes, self._delivery = settings, routes, delivery
        self._watermark_us = watermark_us
        self._counts: Counter[str] = Counter()
        self._oldest_ms: int | None = None
        outputs = [Output("", 1)] * len(Route)  # no topic: dropped
        for route, output in settings.outputs.items():
            outputs[route] = output
        for route in REASON_OF_ROUTE:
            outputs[route] = outputs[Route.ERROR]
        if Route.CONFLICT not in settings.outputs:  # no topic of their own
            outputs[Route.CONFLICT] = outputs[Route.DUPLICATE]
        self._pids = _pids_of(settings, outputs) if settings.output_stamp != "none" else {}
        self._topics = np.array([output.topic for output in outputs], dtype=object)
        self._partitions = np.array([output.partitions for output in outputs])
        self._is_written = np.array([bool(output.topic) for output in outputs])

    def deliver(self, rows: Iterator[Row]) -> Counter[str]:
        """Write the payloads in ``rows`` and commit; the lane's counts."""
        next_offsets: dict[InputPartition, int] = {}
        busy_seconds = 0.0
        for row in rows:
            started_at = time.perf_counter()
            payload = Payload.from_buffer(row.body)
            self._delivery.load_offsets(payload.input_partitions)
            self._write(payload)
            self._counts["bytes"] += row.body.size
            self._counts.update(payload.counts)
            last = payload.records.column("offset").to_numpy()[np.array(payload.ends) - 1]
            next_offsets.update(zip(payload.input_partitions, (last + 1).tolist(), strict=True))
            self._track_timestamps(payload.records.column("timestamp"))
            busy_seconds += time.perf_counter() - started_at
        self._routes.check_used_up()
        started_at = time.perf_counter()
        self._counts.update(asdict(self._delivery.commit(next_offsets)))
        self._counts["deliver_us"] = round((busy_seconds + time.perf_counter() - started_at) * 1e6)
        if self._oldest_ms is not None:
            self._counts["delay_ms"] = max(0, round(time.time() * 1000) - self._oldest_ms)
        return self._counts

    def _track_timestamps(self, timestamps: pa.Array) -> None:
        oldest, newest = pc.min_max(timestamps.filter(pc.greater_equal(timestamps, 0))).values()
        if oldest.is_valid:
            known = oldest.as_py() if self._oldest_ms is None else self._oldest_ms  # 0 is a time too
            self._oldest_ms = min(oldest.as_py(), known)
            self._counts["newest_ms"] = max(newest.as_py(), self._counts["newest_ms"])

    def _write(self, payload: Payload) -> None:
        records, settings = payload.records, self._settings
        codes, firsts, late = self._take_routes(payload)
        self._count(codes, records)
        if settings.rules.remember_first:
            records = _with_text(records, "first", firsts)
        if late:
            unit = settings.rules.unit
            texts = {row: str(length_in_ms(length, unit)) for row, length in late.items()}
            records = _with_text(records, "late_by", texts)
        number = chunk_of_rows(payload.ends)
        written = self._is_written[codes]
        if not written.all():
            codes, number, records = codes[written], number[written], records.filter(pa.array(written))
        offsets = records.column("offset").to_numpy()
        partitions = np.array([chunk.partition for chunk in payload.chunks])[number]
        headers = output_headers(records, codes, payload.chunks, number, settings.keys.content)
        if settings.output_stamp != "none":
            pids = np.array([self._pids[chunk.topic] for chunk in payload.chunks])[number, codes]
            stamps = stamp_keys(pids, partitions, offsets).tolist()
        keys = stamps if settings.output_stamp == "key" else records.column("key").to_pylist()
        if settings.output_stamp == "header":
            headers = replace_stamps(headers or [None] * records.num_rows, stamps)
        if settings.rules.watermark is not None:
            kept = headers or [None] * records.num_rows
            headers = replace_watermark(kept, self._watermark_us, settings.service)
        columns = (
            offsets.tolist(),
            self._topics[codes].tolist(),
            (partitions % self._partitions[codes]).tolist(),
            keys,
            records.column("value").to_pylist(),
            records.column("timestamp").to_pylist(),
        )
        ends = np.searchsorted(number, np.arange(len(payload.ends)), side="right").tolist()
        for partition, (start, end) in zip(payload.input_partitions, pairwise([0, *ends]), strict=True):
            own = (column[start:end] for column in columns)
            self._delivery.write(Chunk._make((partition, *own, headers[start:end] if headers else None)))

    def _take_routes(self, payload: Payload) -> Decided:
        """What was decided of a payload's rows."""
        decided = payload.records.column("route").to_numpy()
        codes, firsts, late, start = [], dict[int, str](), dict[int, int](), 0
        for chunk, end in zip(payload.chunks, payload.ends, strict=True):
            found = self._routes.take(chunk, decided[start:end])
            codes.append(found.codes)
            if found.firsts:
                firsts.update((start + row, first) for row, first in found.firsts.items())
            if found.late:
                late.update((start + row, length) for row, length in found.late.items())
            start = end
        return Decided(np.concatenate(codes), firsts, late)

    def _count(self, codes: NDArray[np.uint8], records: pa.RecordBatch) -> None:
        found = np.bincount(codes, minlength=len(Route)).tolist()
        for route, name in _COUNTED.items():
            self._counts[name] += found[route]
        self._counts["duplicate"] += found[Route.CONFLICT]
        for route, reason in REASON_OF_ROUTE.items():
            self._counts["error"] += found[route]
            self._counts[f"error_{reason}"] += found[route]
        for row in np.flatnonzero(codes == Route.ERROR).tolist() if found[Route.ERROR] else ():
            self._counts[f"error_{records.column('reason')[row].as_py()}"] += 1


def _with_text(records: pa.RecordBatch, name: str, by_row: dict[int, str]) -> pa.RecordBatch:
    """The records with one more column, null in the rows that are not in ``by_row``."""
    column = [by_row.get(row) for row in range(records.num_rows)]
    return records.append_column(name, pa.array(column, pa.string()))


def _pids_of(settings: PipelineSettings, outputs: list[Output]) -> dict[str, NDArray[np.int64]]:
    """By input topic the pid of each route's output, int64[routes]; 0 where nothing is written."""
    pids = settings.output_pids
    return {
        topic: np.array([pids[to.topic][topic] if to.topic else 0 for to in outputs], np.int64)
        for topic in settings.topics
    }
