"""The stages of ``filter_replays`` without Spark: together they pass the records that ReplayFilter passes."""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from replayfilter import ReplayFilter, Stamp
from replayfilter.spark.jobs import _frame, _Marks, unframe

HOUR = 3_600_000_000
Row = tuple[int, int, bytes | None]  # partition, offset, key


class State:
    """Stands for Spark's value state."""

    def __init__(self) -> None:
        self.value: tuple[int, int] | None = None

    def get(self) -> tuple[int, int] | None:
        return self.value

    def update(self, value: tuple[int, int]) -> None:
        self.value = value


class Query:
    """The three stages of a query and its state, for one batch after the other."""

    def __init__(self) -> None:
        self.states: dict[bytes, State] = {}

    def run(self, rows: list[Row], now: int, rng: random.Random) -> list[tuple[int, int]]:
        """(partition, offset) of the records that pass, in the order of the output."""
        batches = []
        for partition, found in groupby(sorted(rows, key=lambda row: row[:2]), key=lambda row: row[0]):
            part = list(found)
            while part:
                size = rng.randrange(1, 9)
                batches.append(self.arrow(partition, part[:size], now))
                part = part[size:]
        frames = pd.concat([batch.to_pandas() for batch in _frame("key", iter(batches))])
        frames = frames.sample(frac=1, random_state=rng.randrange(1 << 30))  # like a shuffle
        out = []
        for source, group in frames.groupby("source"):
            marks = _Marks(48 * HOUR)
            marks._state = self.states.setdefault(bytes(source), State())  # type: ignore[assignment]
            halves: Any = iter([group[:2], group[2:]])
            out += list(marks.handleInputRows((source,), halves, None))  # type: ignore[arg-type]
        passed = pa.RecordBatch.from_pandas(pd.concat(out), preserve_index=False)
        return [
            (row["partition"], row["offset"])
            for batch in unframe(iter([passed]))
            for row in batch.to_pylist()
        ]

    def arrow(self, partition: int, rows: list[Row], now: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(
            {
                "key": pa.array([key for _, _, key in rows], pa.binary()),
                "topic": ["t"] * len(rows),
                "partition": pa.array([partition] * len(rows), pa.int32()),
                "offset": np.array([offset for _, offset, _ in rows]),
                "timestamp": pa.array([now] * len(rows), pa.timestamp("us", "UTC")),
            }
        )


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_the_plain_filter_and_keeps_each_partitions_order(seed: int) -> None:
    rng, query = random.Random(seed), Query()
    plain = [ReplayFilter() for _ in range(3)]
    at, ends = dict.fromkeys(range(6), 0), [0] * 3
    for _ in range(5):
        rows: list[Row] = []
        expected = set()
        for _ in range(rng.randrange(5, 60)):
            source = rng.randrange(6)
            partition = source % 3
            if rng.random() < 0.1:
                key, stamp = rng.choice((None, b"own", b"x" * 21)), None
            else:
                at[source] = max(0, at[source] + rng.choice((1, 1, 1, 2, -3)))
                stamp = Stamp(-9, source, at[source])
                key = stamp.to_bytes()
            if plain[partition].accept(stamp):
                expected.add((partition, ends[partition]))
            rows.append((partition, ends[partition], key))
            ends[partition] += 1
        found = query.run(rows, 0, rng)
        assert set(found) == expected
        assert len(found) == len(expected)
        for partition in range(3):
            offsets = [offset for number, offset in found if number == partition]
            assert offsets == sorted(offsets)


def test_each_partition_sees_the_marks_before_the_batch_and_its_own() -> None:
    """One source in two input partitions of a batch is decided as in the service."""
    rng, query = random.Random(0), Query()
    key = [Stamp(1, 0, offset).to_bytes() for offset in range(10)]
    assert query.run([(0, 0, key[5]), (1, 0, key[3]), (1, 1, key[3])], 0, rng) == [(0, 0), (1, 0)]
    assert query.run([(1, 2, key[5]), (1, 3, key[6])], 0, rng) == [(1, 3)]


def test_an_idle_mark_is_forgotten() -> None:
    rng, query = random.Random(0), Query()
    key = Stamp(1, 0, 5).to_bytes()
    assert query.run([(0, 0, key)], 0, rng) == [(0, 0)]
    assert query.run([(0, 1, key)], 48 * HOUR, rng) == []
    assert query.run([(0, 2, key)], 96 * HOUR + 1, rng) == [(0, 2)]


def test_without_timestamps_no_mark_is_forgotten() -> None:
    key = Stamp(1, 0, 5).to_bytes()
    batch = Query().arrow(0, [(0, 0, key)], 7).drop_columns(["timestamp"])
    for records in (batch, batch.append_column("timestamp", pa.array(["a text"]))):
        (frame,) = _frame("key", iter([records]))
        assert (frame["earliest_us"].to_pylist(), frame["latest_us"].to_pylist()) == ([0], [0])
