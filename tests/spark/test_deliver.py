"""Deliver without Spark or Kafka: one route for each record, and what a lane counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from replayfilter.core.clock.clocks import Clock
from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.routing import FirstSeen, Route, Routes
from replayfilter.core.rules import Rules
from replayfilter.errors import DeliveryError
from replayfilter.formats import KeySpec
from replayfilter.kafka.chunk import Chunk
from replayfilter.kafka.transactions import LaneStats
from replayfilter.spark import deliver
from replayfilter.spark.deliver import LaneRoutes, LaneWriter, Row
from replayfilter.spark.pipeline_settings import Output, PipelineSettings
from replayfilter.spark.rows import PAYLOAD, ChunkId, Payload, ShardReport, routes_from_bytes, routes_to_bytes

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

    def write(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)

    def commit(self, ends: dict[tuple[str, int], int]) -> LaneStats:
        self.ends = ends
        return LaneStats()


def routes(*parts: tuple[list[int], list[int]]) -> LaneRoutes:
    """What several shards decided of the chunk at offset 5: rows, and their codes."""
    made = LaneRoutes()
    for rows, codes in parts:
        made.add(CHUNK, Routes(*CHUNK, np.array(rows, np.uint32), np.array(codes, np.uint8)))
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
    Payload(records, {}).write_to(sink)
    return Row(PAYLOAD, 0, ChunkId("t", 0, first), sink.getvalue())


def deliver_times(monkeypatch: pytest.MonkeyPatch, *chunks: list[int]) -> Counter[str]:
    """The counts after the delivery of chunks with these timestamps, one second after the epoch."""
    monkeypatch.setattr(deliver.time, "time", lambda: 1.0)  # type: ignore[attr-defined]
    made, rows, first = LaneRoutes(), list[Row](), 0
    for timestamps in chunks:
        n = len(timestamps)
        chunk = ChunkId("t", 0, first)
        made.add(chunk, Routes(*chunk, np.arange(n, dtype=np.uint32), np.full(n, Route.UNIQUE, np.uint8)))
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
    assert given.input_partitions() == [("t", 0)]
    codes, firsts = given.take(CHUNK, decided)
    assert codes.tolist() == [1, 5, 3, 2]
    assert firsts == {}
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
    sent = Routes(*CHUNK, np.array([0, 1], np.uint32), np.array([1, 2], np.uint8), seen)
    made = LaneRoutes()
    made.add(CHUNK, routes_from_bytes(CHUNK, routes_to_bytes(sent)))
    codes, firsts = made.take(CHUNK, np.zeros(2, np.uint8))
    assert codes.tolist() == [1, 2]
    assert firsts == {1: "s/3/9"}


def test_a_shards_report_is_read_as_it_was_written() -> None:
    for report in (ShardReport({"route_us": 5}, UNKNOWN), ShardReport({}, 1_700_000_000_000_000, "{}")):
        assert ShardReport.from_bytes(report.to_bytes()) == report
