"""What the workers of ``route`` do with a batch: each record gets the route of the reference model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from replayfilter.core.clock.clocks import Clock
from replayfilter.core.clock.units import INT64_MIN
from replayfilter.core.rules import Rules
from replayfilter.errors import CheckpointError
from replayfilter.spark.routed_rows import (
    EXPIRY,
    KEY,
    ORDER,
    PARTITION,
    POSITION,
    TIE,
    TIME,
    TOPIC,
    Job,
    cut_rows,
    decide_rows,
    made_with_text,
    sorted_records,
    span_of,
)
from tests.support.reference import Position, Record
from tests.support.routed_records import COLUMNS, expected, row_of, rules_of, supported
from tests.support.streams import EPOCH_US, make_stream

PROFILES = ("plain", "crowded", "replays", "edges", "extremes", "none", "ordered", "categorical")
TYPES = (pa.string(), pa.int32(), pa.int64(), pa.binary(), pa.int64(), pa.int64())
SORTED = [(name, "ascending") for name in ("shard", "kind", "topic", "partition", "first")]


def job_of(rules: Rules, shards: int) -> Job:
    reads = {Clock.CATEGORICAL: "category", Clock.ORDERED: "integer"}.get(rules.clock, rules.unit)
    return Job(
        columns=COLUMNS,
        keys=("event",),
        expiry=None if rules.clock is Clock.NONE else "at",
        unit=reads,
        in_partitions=True,
        stamp="key" if rules.replay else "none",
        rules=rules,
        max_future_us=2**80,
        shards=shards,
    )


def placed(rows: list[tuple[Any, ...]], random: Random) -> list[pa.RecordBatch]:
    """The rows in Arrow batches of random sizes, with the columns that ``route`` adds."""
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), TYPES, strict=True)]
    order = columns[2].fill_null(INT64_MIN)
    inner = {
        TOPIC: columns[0],
        PARTITION: columns[1],
        ORDER: order,
        TIE: pa.array(map(hash, rows), pa.int64()),
    }
    inner |= {TIME: pa.array([EPOCH_US] * len(rows), pa.int64()), f"{KEY}_0": columns[4], EXPIRY: columns[5]}
    whole = pa.RecordBatch.from_arrays([*columns, *inner.values()], [*COLUMNS, *inner])
    ends = sorted({0, len(rows), *(random.randrange(len(rows)) for _ in range(random.randrange(6)))})
    return [whole.slice(start, end - start) for start, end in pairwise(ends)]


def decided(job: Job, batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    """The records with their routes, as from a DataFrame that is no stream."""
    rows = pa.Table.from_batches(list(cut_rows(job, batches))).sort_by(SORTED)
    return [row for batch in decide_rows(job, rows.to_batches(max_chunksize=3)) for row in batch.to_pylist()]


def sorted_in_parts(rows: list[tuple[Any, ...]], random: Random) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(placed(rows, random))
    whole = table.sort_by([(name, "ascending") for name in POSITION]).combine_chunks().to_batches()[0]
    ends = sorted({0, len(rows), *(random.randrange(len(rows)) for _ in range(4))})
    yield from (whole.slice(start, end - start) for start, end in pairwise(ends))


@pytest.mark.parametrize("profile", PROFILES)
def test_each_record_of_a_batch_gets_the_route_of_the_model(profile: str) -> None:
    kinds = set()
    for seed in range(60):
        stream, random = make_stream(seed, profile), Random(seed)
        records = [record for batch in supported(stream) for record in batch]
        if not records:
            continue
        rules = rules_of(stream)
        random.shuffle(records)
        rows = [row_of(record, rules.clock) for record in records]
        job = job_of(rules, stream.shards)
        found = decided(job, list(sorted_in_parts(rows, random)))
        want = expected([records], rules)
        assert len(found) == len(want)
        for row in found:
            position = Position(row["topic"], row["partition"], row["offset"])
            first = Position(*row["first"].values()) if row["first"] else None
            assert (row["route"], first) == want[position], (seed, position)
            assert (row["reason"] is not None) == (row["route"] == "error")
            kinds.add(row["route"])
    assert {"unique", "duplicate", "error"} <= kinds


def test_every_column_of_every_record_comes_out_unchanged() -> None:
    stream = make_stream(3, "plain")
    rows = [row_of(record, Clock.TUPLE) for batch in supported(stream) for record in batch]
    job = job_of(rules_of(stream), 3)
    found = decided(job, list(sorted_in_parts(rows, Random(1))))
    assert sorted(tuple(row[name] for name in COLUMNS) for row in found) == sorted(
        rows, key=lambda row: row[:3]
    )


def test_copies_of_a_record_at_one_position_are_one_unique_record_and_duplicates() -> None:
    """An archive often has a Kafka record twice, and an Arrow batch may end between the two."""
    stream = make_stream(3, "plain")
    rules = rules_of(stream, replay=False)
    at = Position("a", 0, 7)
    row = row_of(Record(at, None, None, 1, 5), rules.clock)
    other = row_of(Record(Position("a", 0, 8), None, None, 1, 5), rules.clock)
    whole = pa.Table.from_batches(placed([*[row] * 5, other], Random(9))).combine_chunks().to_batches()[0]
    parts = [whole.slice(number, 1) for number in range(6)]
    found = decided(job_of(rules, 2), parts)
    assert sorted(each["route"] for each in found) == ["duplicate"] * 5 + ["unique"]
    assert {tuple(each["first"].values()) for each in found if each["first"]} == {at}


def test_a_record_without_an_order_is_an_error() -> None:
    rules = rules_of(make_stream(3, "plain"), replay=False)
    good = row_of(Record(Position("a", 0, 7), None, None, 1, 5), rules.clock)
    bad = ("a", 0, None, None, 1, 5)
    for size in (1, 2, 5):
        rows = [bad] * size + [good]
        found = decided(job_of(rules, 2), list(sorted_in_parts(rows, Random(size))))
        assert sorted((row["route"], row["reason"]) for row in found) == (
            [("error", "order")] * size + [("unique", None)]
        )


def test_a_stream_is_sorted_as_a_whole() -> None:
    rows = [row_of(Record(Position("a", 0, n), None, None, n, n), Clock.TUPLE) for n in (5, 3, 9, 1)]
    found = pa.Table.from_batches(sorted_records(placed(rows, Random(4))))
    assert found["offset"].to_pylist() == [1, 3, 5, 9]
    assert list(sorted_records([])) == []


def test_a_state_of_other_settings_is_refused_and_keeps_its_span() -> None:
    rules = rules_of(make_stream(3, "plain"))
    job = job_of(rules, 2)
    stored = made_with_text(job, 17)
    assert span_of(job, stored) == 17
    with pytest.raises(CheckpointError, match=r"made with shards = 2, and now it is shards = 3"):
        span_of(job_of(rules, 3), stored)


def test_an_older_spark_is_named() -> None:
    code = (
        "import sys\n"
        "sys.modules['pyspark.sql.streaming.stateful_processor'] = None\n"
        "from replayfilter.spark import route\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingDependency: replayfilter.spark.route needs Spark 4.0 or later" in ended.stderr
