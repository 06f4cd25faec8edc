"""Deliver without Spark or Kafka: one route for each record, and what a lane counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from replayfilter.core.clock.clocks import Clock
from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.frames import ChunkId
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.routing import FirstSeen, Route, Routes
from replayfilter.core.rules import Rules
from replayfilter.core.stamp import Stamp
from replayfilter.errors import DeliveryError
from replayfilter.formats import KeySpec
from replayfilter.kafka.chunk import Chunk
from replayfilter.kafka.transactions import LaneStats
from replayfilter.spark import deliver
from replayfilter.spark.deliver import LaneRoutes, LaneWriter, Row
from replayfilter.spark.partitioning import partition_ids
from replayfilter.spark.pipeline_settings import Output, PipelineSettings
from replayfilter.spark.rows import (
    PAYLOAD,
    ROUTES,
    Payload,
    RowBuilder,
    ShardReport,
    routes_from_bytes,
    routes_to_bytes,
)

SETTINGS = PipelineSettings(
    service="s", checkpoint="c", bootstrap="b:1", topics=("t",), outputs={Route.UNIQUE: Output("u", 3)},
    output_pids={"u": {"t": 7}}, shards=1, lanes=1, keys=KeySpec("raw", ("@value",), None, "ms"),
    rules=Rules(replay=False, clock=Clock.NONE),
)  # fmt: skip
CHUNK = ChunkId("t", 0, 5)


class Written:
    """Stands for a Kafka transaction: the chunks written, and the offsets committed."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.ends: dict[tuple[str, int], int] = {}

    def load_offsets(self, partitions: list[tuple[str, int]]) -> None:
        pass

    def write(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)

    def commit(self, ends: dict[tuple[str, int], int]) -> LaneStats:
        self.ends = ends
        return LaneStats()


def routes(*parts: tuple[list[int], list[int]]) -> LaneRoutes:
    """What several shards decided of the chunk at offset 5: rows, and their codes."""
    made = LaneRoutes()
    for rows, codes in parts:
        made.add([Routes(*CHUNK, np.array(rows, np.uint32), np.array(codes, np.uint8))])
    return made


def payload(first: int, timestamps: list[int]) -> Row:
    n = len(timestamps)
    records = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"v"] * n, pa.binary()),
            "offset": pa.array(range(first, first + n), pa.int64()),
            "timestamp": pa.array(timestamps, pa.int64()),
            "route": pa.array([0] * n, pa.uint8()),
        }
    )
    sink = pa.BufferOutputStream()
    Payload((ChunkId("t", 0, first),), (n,), records, {}).write_to(sink)
    return Row(PAYLOAD, 0, sink.getvalue())


def deliver_times(monkeypatch: pytest.MonkeyPatch, *chunks: list[int]) -> Counter[str]:
    """The counts after the delivery of chunks with these timestamps, one second after the epoch."""
    monkeypatch.setattr(deliver.time, "time", lambda: 1.0)  # type: ignore[attr-defined]
    made, rows, first = LaneRoutes(), list[Row](), 0
    for timestamps in chunks:
        n = len(timestamps)
        chunk = ChunkId("t", 0, first)
        made.add([Routes(*chunk, np.arange(n, dtype=np.uint32), np.full(n, Route.UNIQUE, np.uint8))])
        rows.append(payload(first, timestamps))
        first += n
    return LaneWriter(SETTINGS, made, Written(), 0).deliver(iter(rows))  # type: ignore[arg-type]


def test_the_oldest_timestamp_may_be_the_epoch_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 ms is a time like any other: a later chunk doesn't replace it."""
    counts = deliver_times(monkeypatch, [0], [900])
    assert (counts["delay_ms"], counts["newest_ms"]) == (1_000, 900)


def test_records_without_a_timestamp_have_no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deliver_times(monkeypatch, [-1, -1])["delay_ms"] == 0
    assert deliver_times(monkeypatch, [-1], [800, 300], [-1, 700])["delay_ms"] == 700


def test_each_record_gets_exactly_one_route() -> None:
    decided = np.array([0, 5, 0, 0], np.uint8)
    given = routes(([0, 3], [1, 2]), ([2], [3]))
    found = given.take(CHUNK, decided)
    assert found.codes.tolist() == [1, 5, 3, 2]
    assert not found.firsts
    assert not found.late
    given.check_used_up()
    for wrong in (
        routes(([0, 3], [1, 2])),  # row 2 has none
        routes(([0, 3], [1, 2]), ([3], [3])),  # row 2 has none, row 3 has two
        routes(([0, 2, 3], [1, 2, 3]), ([2], [2])),  # row 2 has two
        routes(([0, 1, 3], [1, 1, 1])),  # row 1 was decided before
        routes(([0, 2, 3], [1, 0, 1])),  # row 2 is undecided
        routes(),
    ):
        with pytest.raises(DeliveryError, match=r"t\[0\], from offset 5"):
            wrong.take(CHUNK, decided)
    with pytest.raises(DeliveryError, match="no records"):
        routes(([0], [1])).check_used_up()


def test_routes_name_the_first_records_of_duplicates() -> None:
    seen = FirstSeen(
        np.array([1], np.uint32), np.array([1], np.uint32), np.array([9], np.int64), (("t", 0), ("s", 3))
    )
    none = FirstSeen(seen.rows[:0], seen.input_index[:0], seen.input_offset[:0], seen.partitions)
    other = ChunkId("s", 3, 0)
    sent = [
        Routes(*other, np.array([0], np.uint32), np.array([1], np.uint8), none),
        Routes(*CHUNK, np.array([0, 1], np.uint32), np.array([1, 2], np.uint8), seen),
    ]
    made = LaneRoutes()
    made.add(routes_from_bytes(routes_to_bytes(sent)))
    found = made.take(CHUNK, np.zeros(2, np.uint8))
    assert found.codes.tolist() == [1, 2]
    assert found.firsts == {1: "s/3/9"}
    assert made.take(other, np.zeros(1, np.uint8)).firsts == {}


def test_an_expired_record_says_how_late_it_is_and_where_it_was() -> None:
    """In the input's order, also if records before it go nowhere, and whatever shard decided it."""
    chunks = (ChunkId("t", 0, 5), ChunkId("t", 4, 90))
    records = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"a", b"b", b"c", b"d"], pa.binary()),
            "offset": pa.array([5, 6, 90, 92], pa.int64()),
            "timestamp": pa.array([1] * 4, pa.int64()),
            "route": pa.array([Route.REPLAY, 0, 0, 0], pa.uint8()),
            "key": pa.array([None] * 4, pa.binary()),
        }
    )
    codes = np.array([Route.EXPIRED, Route.UNIQUE], np.uint8)
    decided = [
        Routes("t", 0, 5, np.array([1], np.uint32), codes[:1], late=np.array([2**64 - 1], np.uint64)),
        Routes("t", 4, 90, np.array([0, 1], np.uint32), codes[::-1], late=np.array([5], np.uint64)),
    ]
    sink, made, written = pa.BufferOutputStream(), LaneRoutes(), Written()
    Payload(chunks, (2, 4), records, {}).write_to(sink)
    made.add(routes_from_bytes(routes_to_bytes(decided)))
    settings = replace(
        SETTINGS,
        outputs={Route.UNIQUE: Output("u", 3), Route.EXPIRED: Output("e", 3)},
        output_stamp="none",
        rules=Rules(replay=False, unit="s"),
    )
    LaneWriter(settings, made, written, 0).deliver(iter([Row(PAYLOAD, 0, sink.getvalue())]))  # type: ignore[arg-type]
    found = [(topic, headers) for chunk in written.chunks for _, topic, *_, headers in chunk.rows()]
    names = ("rf-late-by", "__connect.errors.topic", "__connect.errors.partition", "__connect.errors.offset")
    assert found == [
        ("e", list(zip(names, (str((2**64 - 1) * 1_000), "t", "0", "6"), strict=True))),
        ("u", None),
        ("e", list(zip(names, ("5000", "t", "4", "92"), strict=True))),
    ]


def test_a_payload_of_many_partitions_is_written_by_partition() -> None:
    """Rows that go nowhere, such as replays, leave their chunk; the offsets after them are committed."""
    chunks = (ChunkId("t", 0, 5), ChunkId("t", 4, 90), ChunkId("t", 7, 1))
    records = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"a", b"b", b"c", b"d", b"e"], pa.binary()),
            "offset": pa.array([5, 6, 90, 92, 1], pa.int64()),
            "timestamp": pa.array([1] * 5, pa.int64()),
            "route": pa.array([0, Route.REPLAY, 0, 0, Route.REPLAY], pa.uint8()),
        }
    )
    sink, made, written = pa.BufferOutputStream(), LaneRoutes(), Written()
    Payload(chunks, (2, 4, 5), records, {}).write_to(sink)
    unique = np.full(2, Route.UNIQUE, np.uint8)
    made.add([Routes("t", 0, 5, np.array([0], np.uint32), unique[:1])])
    made.add([Routes("t", 4, 90, np.array([0, 1], np.uint32), unique)])
    LaneWriter(SETTINGS, made, written, 0).deliver(iter([Row(PAYLOAD, 0, sink.getvalue())]))  # type: ignore[arg-type]
    found = [(each.input_partition, each.offsets, each.values, each.partitions) for each in written.chunks]
    assert found[:2] == [(("t", 0), [5], [b"a"], [0]), (("t", 4), [90, 92], [b"c", b"d"], [1, 1])]
    assert not any(offsets for _, offsets, _, _ in found[2:])
    keys = [Stamp.from_bytes(key) for each in written.chunks for key in each.keys if key is not None]
    assert keys == [Stamp(7, 0, 5), Stamp(7, 4, 90), Stamp(7, 4, 92)]
    assert written.ends == {("t", 0): 7, ("t", 4): 93, ("t", 7): 2}


def test_a_lane_is_opened_with_the_partitions_of_all_its_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their offsets are read in one request then, although each task's payload names only its own."""
    opened: list[set[InputPartition]] = []

    class OneLane:
        def open(self, lane: int, partitions: Iterable[InputPartition]) -> AbstractContextManager[Written]:
            opened.append(set(partitions))
            return nullcontext(Written())

    monkeypatch.setattr(deliver.worker, "lanes", lambda _: OneLane())  # type: ignore[attr-defined]
    chunks = [ChunkId("t", number, 5) for number in range(3)]
    one = np.ones(1, np.uint8)
    rows = RowBuilder()
    sent = routes_to_bytes([Routes(*chunk, np.zeros(1, np.uint32), one) for chunk in chunks[:2]])
    rows.add(sent, ROUTES, 0, partition_ids(1)[0], 0, "")
    for number, chunk in enumerate(chunks):
        decided = [Route.UNDECIDED, Route.UNDECIDED, Route.REPLAY][number]
        columns = {"value": [b"v"], "offset": [5], "timestamp": [1]}
        records = pa.RecordBatch.from_pydict(columns | {"route": pa.array([decided], pa.uint8())})
        rows.add(Payload((chunk,), (1,), records, {}), PAYLOAD, 0, partition_ids(1)[0], number, "")
    list(deliver.deliver_batches(SETTINGS, iter([rows.to_batch()])))
    assert opened == [{("t", 0), ("t", 1)}]


def test_a_stamp_in_the_header_leaves_the_key_alone() -> None:
    records = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"a", None], pa.binary()),
            "offset": pa.array([5, 7], pa.int64()),
            "timestamp": pa.array([1, 1], pa.int64()),
            "key": pa.array([b"k", None], pa.binary()),
            "route": pa.array([0, 0], pa.uint8()),
        }
    )
    sink, written = pa.BufferOutputStream(), Written()
    Payload((CHUNK,), (2,), records, {}).write_to(sink)
    settings = replace(SETTINGS, output_stamp="header")
    made = routes(([0, 1], [Route.UNIQUE, Route.UNIQUE]))
    LaneWriter(settings, made, written, 0).deliver(iter([Row(PAYLOAD, 0, sink.getvalue())]))  # type: ignore[arg-type]
    found = [(row[3], row[6]) for chunk in written.chunks for row in chunk.rows()]
    assert found == [
        (b"k", [("rf-stamp", Stamp(7, 0, 5).to_bytes())]),
        (None, [("rf-stamp", Stamp(7, 0, 7).to_bytes())]),
    ]


def test_a_shards_report_is_read_as_it_was_written() -> None:
    for report in (ShardReport({"route_us": 5}, UNKNOWN), ShardReport({}, 1_700_000_000_000_000, "{}")):
        assert ShardReport.from_bytes(report.to_bytes()) == report
