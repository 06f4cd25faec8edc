"""``route``: the service's decisions in Spark jobs of your own, as columns of a DataFrame.

    records, sorted -> cut -> exchange by shard -> shards decide -> records with their routes

The core decides, as in the service. What differs is only where records come from and go to:

- ``cut_rows`` turns sorted records into frames for the shards and, chunk by chunk, each shard's own records.
- In a stream a stateful operator decides. Spark commits its state with the batch, so a batch that is run
  again starts from the same state. The batch time is ``current_timestamp()``, which Spark keeps with it.
- A DataFrame without a stream is one batch, and needs no state. A shard's frames come before its records, so
  only the frames must fit into memory.
- Records are sorted before they are cut, by position and then by a hash of all their columns. So their routes
  don't depend on how Spark read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.buckets import RunStore
from replayfilter.core.clock.units import INT64_MIN, future_threshold
from replayfilter.core.dedup import columns_to_keep
from replayfilter.core.frames import ChunkId, Frame, cut_frames
from replayfilter.core.key_run import with_bloom
from replayfilter.core.routing import Route, RoutedBatch, Routes, route_batch
from replayfilter.core.rules import Rules
from replayfilter.core.stamp import STAMP_HEADER, Stamps
from replayfilter.core.state import ShardState
from replayfilter.errors import CheckpointError
from replayfilter.formats import Extraction, RecordColumns, RecordError
from replayfilter.formats.expiry_keys import Instant
from replayfilter.formats.extractor import FieldExtractor
from replayfilter.formats.fields import Field, Location
from replayfilter.spark import worker
from replayfilter.spark.decode import last_headers, read_stamps
from replayfilter.spark.error_reasons import REASON_OF_ROUTE
from replayfilter.spark.jobs import from_buffer, to_bytes
from replayfilter.spark.partitioning import partition_ids
from replayfilter.spark.router import NAME, RUN, StateRuns

ORDER_REASON = "order"  # beside the reasons of the service: the record has no order
FRAME, RECORDS = 0, 1  # kinds of rows, in the order in which a shard must see them
ROW = "shard INT, kind INT, topic STRING, partition INT, first BIGINT, time_us BIGINT, data BINARY"
TOPIC, PARTITION, ORDER, TIE, TIME, EXPIRY, KEY, CODE, REASON = (
    f"__replayfilter_{name}"
    for name in ("topic", "partition", "order", "tie", "time", "expiry", "key", "code", "reason")
)
POSITION = (TOPIC, PARTITION, ORDER, TIE)
CACHE_BYTES = 2_000_000_000
ARROW_RECORDS = 10_000
_STATE = StructType().add("state", BinaryType()).add("made_with", StringType())
_PLACE = StructType().add("topic", "string").add("partition", "integer").add("offset", "long")
RESULT = StructType().add("route", "string").add("reason", "string").add("first", _PLACE)
_FIRST = pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
_ROW_SCHEMA = pa.schema(
    [("shard", pa.int32()), ("kind", pa.int32()), ("topic", pa.string()), ("partition", pa.int32()),
     ("first", pa.int64()), ("time_us", pa.int64()), ("data", pa.binary())]
)  # fmt: skip
_ROUTE_NAMES = {route: route.name.lower() for route in Route} | dict.fromkeys(REASON_OF_ROUTE, "error")
_NAMES = pa.array([_ROUTE_NAMES[route] for route in Route])
_REASONS = pa.array([REASON_OF_ROUTE.get(route) for route in Route], pa.string())


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the workers must know of a call of ``route``.

    - ``columns``: the names of the user's columns, which come first in the records that are cut.
    - ``keys``, ``expiry``: names for messages; ``unit``: the unit in which the expiry key is read.
    - ``in_partitions``: whether the records have a topic and a partition. Otherwise all are of one.
    - ``stamp``: "key", "header" or "none". ``rules``, ``max_future_us``, ``shards``: as in the service.
    """

    columns: tuple[str, ...]
    keys: tuple[str, ...]
    expiry: str | None
    unit: str
    in_partitions: bool
    stamp: str
    rules: Rules
    max_future_us: int
    shards: int


def sorted_records(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task's part of a batch in the order of decision. Spark refuses to sort a stream itself."""
    found = list(batches)
    if found:
        ordered = pa.Table.from_batches(found).sort_by([(name, "ascending") for name in POSITION])
        yield from ordered.to_batches(max_chunksize=ARROW_RECORDS)


def cut_rows(job: Job, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sorted records as rows for the shards: frames, and each shard's own records of each chunk."""
    for records in _without_split_ties(batches):
        rows = list(_rows_of(job, records))
        columns = zip(*rows, strict=True)
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, _ROW_SCHEMA, strict=True)],
            schema=_ROW_SCHEMA,
        )


def _without_split_ties(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same records, where none begins at the position at which the one before has ended.

    A chunk is known by its first position, so two chunks must not begin at the same one.
    """
    held: pa.RecordBatch | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        if held is not None and _position(held, -1) == _position(batch, 0):
            table = pa.Table.from_batches([held, batch]).combine_chunks()
            (held,) = table.to_batches()
            continue
        if held is not None:
            yield held
        held = batch
    if held is not None:
        yield held


def _position(records: pa.RecordBatch, row: int) -> tuple[str, int, int]:
    topic, partition, order = (records.column(name)[row].as_py() for name in (TOPIC, PARTITION, ORDER))
    return topic, partition, order


class _Row(NamedTuple):
    shard: int
    kind: int
    topic: str
    partition: int
    first: int
    time_us: int
    data: bytes


def _rows_of(job: Job, records: pa.RecordBatch) -> Iterator[_Row]:
    ids, time_us = partition_ids(job.shards), int(records.column(TIME)[0].as_py())
    order: NDArray[np.int64] = records.column(ORDER).to_numpy()
    topics = records.column(TOPIC).dictionary_encode()
    topic: NDArray[np.int64] = topics.indices.to_numpy()
    partition: NDArray[np.int32] = records.column(PARTITION).to_numpy()
    changes = (topic[1:] != topic[:-1]) | (partition[1:] != partition[:-1])
    cuts = [0, *(np.flatnonzero(changes) + 1).tolist(), records.num_rows]
    names = topics.dictionary.to_pylist()
    chunks = [ChunkId(names[topic[at]], int(partition[at]), int(order[at])) for at in cuts[:-1]]
    starts = np.array(cuts[:-1])

    extraction = _extract(job, records)
    code, reason = np.zeros(records.num_rows, np.uint8), np.full(records.num_rows, None, object)
    for row, why, _ in extraction.errors:
        code[row], reason[row] = Route.ERROR, why.value
    nowhere = order == INT64_MIN
    code[nowhere], reason[nowhere] = Route.ERROR, ORDER_REASON
    rows = np.flatnonzero(code == Route.UNDECIDED)
    stamps, rules = _stamps(job, records), job.rules
    expiry = extraction.expiry[rows]
    future = None
    if rules.checks_future:
        future = expiry > future_threshold(time_us, job.max_future_us, rules.unit)
    cut = cut_frames(
        chunks,
        np.searchsorted(rows, cuts[1:]),
        stamps=stamps.take(rows) if stamps is not None else None,
        expiry=expiry,
        digests=extraction.digests[rows],
        rows=(rows - starts[np.searchsorted(starts, rows, side="right") - 1]).astype(np.uint32),
        future=future,
        shards=job.shards,
        expiry_order=rules.needs_expiry_order,
        kept=columns_to_keep(rules, order, None, rows),
    )
    for shard, frame in zip(ids, cut.frames, strict=True):
        if len(frame.row):
            yield _Row(shard, FRAME, "", 0, 0, time_us, frame.to_bytes())

    code[rows[cut.replays]] = Route.REPLAY
    columns = [*records.columns[: len(job.columns)], records.column(ORDER), pa.array(code)]
    columns.append(pa.array(reason, pa.string()))
    body = pa.RecordBatch.from_arrays(columns, [*job.columns, ORDER, CODE, REASON])
    shard_of = (extraction.digests[:, 1] % np.uint64(job.shards)).astype(np.intp)  # of errors the first one
    for chunk, (start, end) in zip(chunks, pairwise(cuts), strict=True):
        for number in np.unique(shard_of[start:end]).tolist():
            own = start + np.flatnonzero(shard_of[start:end] == number)
            yield _Row(ids[number], RECORDS, *chunk, time_us, to_bytes(body.take(pa.array(own))))


class _ColumnReader:
    """The extractor's Reader for fields that are columns already."""

    needs: frozenset[str] = frozenset()
    as_text = False

    def __init__(self, columns: list[list[object]]) -> None:
        self._columns = columns

    def __call__(self, batch: RecordColumns, errors: dict[int, RecordError]) -> Sequence[Sequence[object]]:
        return self._columns


def _extract(job: Job, records: pa.RecordBatch) -> Extraction:
    """Expiry keys and digests, or errors, of the records."""
    columns = [values_of(records.column(f"{KEY}_{number}")) for number in range(len(job.keys))]
    expiry = None
    if job.expiry is not None:
        columns.append(values_of(records.column(EXPIRY)))
        expiry = Field(job.expiry, Location.PATH, (job.expiry,))
    key = [Field(name, Location.PATH, (name,)) for name in job.keys]
    extractor = FieldExtractor(key, expiry, job.unit, _ColumnReader(columns))
    return extractor(RecordColumns([None] * records.num_rows))


def values_of(column: pa.Array) -> list[object]:
    """A column of n values as dedup keys and expiry keys have them: points in time as Instants.

    >>> values_of(pa.array([1_500_000, None], pa.timestamp("us")))
    [1500000000, None]
    """
    nanos = {pa.timestamp("us"): 1_000, pa.date32(): 86_400 * 10**9}
    kind = pa.timestamp("us") if pa.types.is_timestamp(column.type) else column.type
    if kind not in nanos:
        found: list[object] = column.to_pylist()
        return found
    numbers = column.cast(pa.int32() if kind == pa.date32() else pa.int64()).to_pylist()
    return [None if number is None else Instant(number * nanos[kind]) for number in numbers]


def _stamps(job: Job, records: pa.RecordBatch) -> Stamps | None:
    if job.stamp == "none":
        return None
    if job.stamp == "key":
        return read_stamps(records.column("key"))
    return read_stamps(last_headers(records.column("headers"), STAMP_HEADER))


def with_routes(job: Job, body: pa.RecordBatch, routes: Routes | None) -> pa.RecordBatch:
    """The user's columns of one chunk's own records, then route, reason and first, then the order.

    Raises AssertionError unless each record has exactly one route.
    """
    code: NDArray[np.uint8] = body.column(CODE).to_numpy().copy()
    undecided = np.flatnonzero(code == Route.UNDECIDED)
    topic, partition = np.full(len(code), None, object), np.full(len(code), None, object)
    offset = np.full(len(code), None, object)
    if len(undecided):
        assert routes is not None, "a chunk has no routes"
        assert len(routes.codes) == len(undecided), "records and routes don't match"
        code[undecided] = routes.codes
        if (seen := routes.first_seen) is not None:
            at = undecided[np.searchsorted(routes.rows, seen.rows)]
            offset[at] = seen.input_offset
            if job.in_partitions:
                inputs = [seen.partitions[number] for number in seen.input_index.tolist()]
                topic[at] = [name for name, _ in inputs]
                partition[at] = [number for _, number in inputs]
    known = [
        pa.array(column, kind.type) for column, kind in zip((topic, partition, offset), _FIRST, strict=True)
    ]
    first = pa.StructArray.from_arrays(known, fields=list(_FIRST), mask=pc.is_null(known[2]))
    names, why = _NAMES.take(pa.array(code)), _REASONS.take(pa.array(code))
    own, reasons = body.columns[: len(job.columns)], pc.coalesce(body.column(REASON), why)
    return pa.RecordBatch.from_arrays(
        [*own, names, reasons, first, body.column(ORDER)], [*job.columns, "route", "reason", "first", ORDER]
    )


def decide_rows(job: Job, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The records with their routes, where all rows are one batch, sorted by shard and kind."""
    shard, frames = None, list[Frame]()
    routes: dict[ChunkId, Routes] | None = None
    for batch in batches:
        places = zip(*(column.to_pylist() for column in batch.columns[:-1]), strict=True)
        for (number, kind, topic, partition, first, time_us), data in zip(
            places, batch.column("data"), strict=True
        ):
            if number != shard:
                shard, frames, routes = number, [], None
            if kind == FRAME:
                frames.append(Frame.from_bytes(data.as_py()))
                continue
            if routes is None:
                decided = _decide(job.rules, frames, ShardState.empty(), _Runs(), time_us)
                routes, frames = _by_chunk(decided), []
            body = from_buffer(data.as_buffer())
            found = with_routes(job, body, routes.get(ChunkId(topic, partition, first)))
            yield found.drop_columns([ORDER])


def _decide(
    rules: Rules, frames: list[Frame], state: ShardState, store: RunStore, time_us: int
) -> RoutedBatch:
    # Nobody knows whether a stream has been read to its end, so marks are never forgotten.
    return route_batch(frames, rules, state, store, BatchFacts(time_us, time_us, caught_up=False))


def _by_chunk(decided: RoutedBatch) -> dict[ChunkId, Routes]:
    return {ChunkId(each.topic, each.partition, each.first): each for each in decided.routes}


class _Runs(dict[str, bytes]):
    """The core's RunStore for the one batch of a DataFrame that is no stream."""

    def read(self, name: str) -> bytes:
        return with_bloom(self[name])

    def write(self, name: str, data: bytes) -> None:
        self[name] = data

    def drop(self, name: str) -> None:
        del self[name]


class ShardProcessor(StatefulProcessor):
    """A shard of a stream: rows of :func:`cut_rows` in, chunks of records with their routes out."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark before the first batch of a task."""
        self._state = handle.getValueState("shard", _STATE)
        self._runs = handle.getMapState("runs", NAME, RUN)

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: tuple[Any, ...],
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Decide one batch of one shard. Raises CheckpointError for the state of other settings."""
        given = pd.concat(list(rows))
        of_frames = given["kind"] == FRAME
        frames = [Frame.from_bytes(data) for data in given.loc[of_frames, "data"]]
        routes: dict[ChunkId, Routes] = {}
        if frames:
            routes = self._decide(frames, int(given["time_us"].iloc[0]))
        out = []
        for row in given.loc[~of_frames].to_dict("records"):
            body = from_buffer(pa.py_buffer(row["data"]))
            found = routes.get(ChunkId(row["topic"], row["partition"], row["first"]))
            out.append((row["topic"], row["partition"], to_bytes(with_routes(self._job, body, found))))
        yield pd.DataFrame(out, columns=["topic", "partition", "body"])

    def _decide(self, frames: list[Frame], time_us: int) -> dict[ChunkId, Routes]:
        stored, rules = self._state.get(), self._job.rules
        state, made_with = ShardState.empty(), made_with_text(self._job, rules.span)
        if stored is not None:
            state, made_with = ShardState.from_bytes(bytes(stored[0])), str(stored[1])
            rules = replace(rules, span=span_of(self._job, made_with))
        store = StateRuns(self._runs, worker.run_cache(CACHE_BYTES))
        decided = _decide(rules, frames, state, store, time_us)
        self._state.update((decided.state.to_bytes(), made_with))
        return _by_chunk(decided)

    def close(self) -> None:
        """Called by Spark at the end; there is nothing to close."""


def made_with_text(job: Job, span: int) -> str:
    """What a state depends on, as JSON. The bucket span stays the first one, whatever the period is."""
    made_with = {"shards": job.shards, "key": job.keys, "clock": job.rules.clock, "unit": job.unit}
    return json.dumps(made_with | {"span": span})


def span_of(job: Job, made_with: str) -> int:
    """The bucket span of a state; CheckpointError if it was made with other settings than the job's."""
    stored: dict[str, Any] = json.loads(made_with)
    span = int(stored["span"])
    current: dict[str, Any] = json.loads(made_with_text(job, span))
    if changed := [name for name in current if current[name] != stored.get(name)]:
        was, now = (", ".join(f"{name} = {each.get(name)}" for name in changed) for each in (stored, current))
        raise CheckpointError(
            f"route(): the checkpoint was made with {was}, and now it is {now}, so its keys would not be "
            "found; use what it was made with, or a new checkpointLocation, which remembers nothing"
        )
    return span
