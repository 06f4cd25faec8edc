"""Deliver without Spark or Kafka: each record gets exactly one route, and what a lane counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from replayfilter.core.clock.expiry import Rules
from replayfilter.core.columns import pack
from replayfilter.core.routing import Route
from replayfilter.errors import DeliveryError
from replayfilter.formats import KeySpec
from replayfilter.kafka.chunk import Chunk
from replayfilter.kafka.transactions import LaneStats
from replayfilter.spark import deliver
from replayfilter.spark.deliver import _Lane, _Name, _Routes, _Row
from replayfilter.spark.pipeline_settings import Output, PipelineSettings
from replayfilter.spark.rows import PAYLOAD, Payload

SETTINGS = PipelineSettings(
    service="s", checkpoint="c", bootstrap="b:1", topics=("t",), outputs={Route.UNIQUE: Output("u", 3)},
    pids={"t": 7}, shards=1, lanes=1, keys=KeySpec("raw", ("@value",), None, "ms"),
    rules=Rules(replay=False, clock="none"),
)  # fmt: skip


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


def routes(*parts: tuple[list[int], list[int]], first: int = 5) -> _Routes:
    made = _Routes()
    for rows, codes in parts:
        body = pack({"rows": np.array(rows, np.uint32), "codes": np.array(codes, np.uint8)})
        made.add(_Name("t", 0, first), pa.py_buffer(body))
    return made


def payload(first: int, timestamps: list[int]) -> _Row:
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
    return _Row(PAYLOAD, 0, _Name("t", 0, first), sink.getvalue())


def deliver_times(monkeypatch: pytest.MonkeyPatch, *chunks: list[int]) -> Any:
    """The counts after delivering chunks with these timestamps, one second after the epoch."""
    monkeypatch.setattr(deliver.time, "time", lambda: 1.0)  # type: ignore[attr-defined]
    made = _Routes()
    rows: list[_Row] = []
    first = 0
    for timestamps in chunks:
        body = pack({
            "rows": np.arange(len(timestamps), dtype=np.uint32),
            "codes": np.full(len(timestamps), Route.UNIQUE, np.uint8),
        })  # fmt: skip
        made.add(_Name("t", 0, first), pa.py_buffer(body))
        rows.append(payload(first, timestamps))
        first += len(timestamps)
    stream: Iterator[_Row] = iter(rows)
    return _Lane(SETTINGS, made, Written(), 0).deliver(stream)  # type: ignore[arg-type]


def test_the_oldest_timestamp_may_be_the_epoch_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 ms is a time like any other: a later chunk doesn't replace it."""
    counts = deliver_times(monkeypatch, [0], [900])
    assert (counts["delay_ms"], counts["newest_ms"]) == (1_000, 900)


def test_records_without_a_timestamp_have_no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deliver_times(monkeypatch, [-1, -1])["delay_ms"] == 0
    assert deliver_times(monkeypatch, [-1], [800, 300], [-1, 700])["delay_ms"] == 700


def test_each_record_gets_exactly_one_route() -> None:
    decided = np.array([0, 5, 0, 0], np.uint8)
    name = _Name("t", 0, 5)
    given = routes(([0, 3], [1, 2]), ([2], [3]))
    assert given.sources() == [("t", 0)]
    assert given.apply_to(name, decided).tolist() == [1, 5, 3, 2]
    given.check_used_up()
    for wrong in (
        routes(([0, 3], [1, 2])),  # row 2 has none
        routes(([0, 3], [1, 2]), ([3], [3])),  # row 2 has none, row 3 has two
        routes(([0, 2, 3], [1, 2, 3]), ([2], [2])),  # row 2 has two
        routes(([0, 1, 3], [1, 1, 1])),  # row 1 was decided before
        routes(([0, 2, 3], [1, 0, 1])),  # row 2 is undecided
        routes(),
    ):
        with pytest.raises(DeliveryError, match=r"t\[0\] from offset 5"):
            wrong.apply_to(name, decided)
    with pytest.raises(DeliveryError, match="no records"):
        routes(([0], [1])).check_used_up()
