"""``write_stamped`` without Spark: what it refuses, and what its tasks write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from replayfilter import Stamp
from replayfilter.errors import ConfigError, StampError
from replayfilter.kafka.admin import Cluster
from replayfilter.spark import write_stamped
from replayfilter.spark.partitioning import partition_ids
from replayfilter.spark.stamped_sink import Target, lanes_of, write_lanes
from tests.support.topics import new_topic, read_all

CHECK = "spark.sql.streaming.unsupportedOperationCheck"
COLUMNS = {"topic": StringType(), "partition": IntegerType(), "offset": LongType(), "value": BinaryType()}
Place = tuple[int, int, int]  # lane, source partition, source offset


@pytest.fixture(autouse=True)
def no_lanes_are_kept() -> Iterator[None]:
    """Lanes live as long as a worker, which here is the test run."""
    yield
    lanes_of.cache_clear()


def stream(columns: Mapping[str, DataType], streaming: bool, sort_check: str) -> Any:
    """As much of a DataFrame as the checks look at."""
    fields = [StructField(name, kind) for name, kind in columns.items()]
    session = SimpleNamespace(conf={CHECK: sort_check})
    return SimpleNamespace(isStreaming=streaming, sparkSession=session, schema=StructType(fields))


def test_all_problems_are_reported_at_once() -> None:
    wrong = {"topic": StringType(), "partition": LongType(), "value": MapType(StringType(), IntegerType())}
    df = stream(wrong, streaming=False, sort_check="true")
    with pytest.raises(ConfigError) as caught:
        write_stamped(df, 7, 4, bootstrap="nowhere:1", topic="t", job="", lanes=0, options={"acks": "1"})
    for problem in (
        "needs a streaming DataFrame",
        f"{CHECK} = true: set it to false",
        "column partition is bigint: make it int",
        "column offset is missing",
        "column value is map<string,int>: make it binary or string",
        "lanes = 0",
        "job is empty",
        "acks",
    ):
        assert sum(problem in error for error in caught.value.errors) == 1, problem
    assert len(caught.value.errors) == 8


def test_a_target_topic_that_does_not_fit_is_refused(bootstrap: str) -> None:
    df = stream(COLUMNS, streaming=True, sort_check="false")
    topic = new_topic(bootstrap, "narrow", 2)
    with pytest.raises(ConfigError, match=f"partitions = 3: topic '{topic}' has 2"):
        write_stamped(df, 7, 3, bootstrap=bootstrap, topic=topic, job="j")
    with pytest.raises(ConfigError, match="there is no topic 'missing'"):
        write_stamped(df, 7, 3, bootstrap=bootstrap, topic="missing", job="j")


def rows(source: str, places: list[Place]) -> pa.RecordBatch:
    """A sorted Arrow batch as a task gets it; partition p of ``source`` goes to partition p % 2."""
    ids = partition_ids(2)
    columns = {
        "lane": pa.array([ids[lane] for lane, _, _ in places], pa.int32()),
        "topic": [source] * len(places),
        "partition": pa.array([partition for _, partition, _ in places], pa.int32()),
        "offset": [offset for _, _, offset in places],
        "target": pa.array([partition % 2 for _, partition, _ in places], pa.int32()),
        "key": [Stamp(7, partition, offset).to_bytes() for _, partition, offset in places],
        "value": [b"%d" % offset if offset else None for _, _, offset in places],
        "headers": pa.array(
            [[]] * len(places), pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        ),
        "time": [1_000 + offset for _, _, offset in places],
    }
    return pa.RecordBatch.from_pydict(columns)


def test_a_task_that_runs_again_writes_only_the_rest(bootstrap: str) -> None:
    source, topic = new_topic(bootstrap, "rows-in", 4), new_topic(bootstrap, "rows-out", 2)
    target = Target(bootstrap, topic, f"job-{topic}", 2, None, ())
    first = [(0, 0, 0), (0, 0, 5), (0, 2, 9), (1, 1, 3)]
    assert counts(target, [rows(source, first[:1]), rows(source, first[1:])]) == [(3, 0), (1, 0)]
    assert counts(target, [rows(source, [*first[:3], (0, 2, 10), (1, 3, 0)])]) == [(1, 3), (1, 0)]
    assert counts(target, [rows(source, []), rows(source, first)]) == [(0, 3), (0, 1)]

    found = [
        (m.partition(), Stamp.from_bytes(m.key()), m.value(), m.timestamp()[1])
        for m in read_all(bootstrap, topic)
    ]
    assert [row for row in found if row[0] == 0] == [
        (0, Stamp(7, 0, 0), None, 1_000),
        (0, Stamp(7, 0, 5), b"5", 1_005),
        (0, Stamp(7, 2, 9), b"9", 1_009),
        (0, Stamp(7, 2, 10), b"10", 1_010),
    ]
    assert len(found) == 6
    committed = Cluster(bootstrap).committed(target.group, [(source, number) for number in range(4)])
    assert committed == {(source, 0): 6, (source, 1): 4, (source, 2): 11, (source, 3): 1}


@pytest.mark.parametrize("cut", [1, 2])
def test_two_rows_of_one_source_record_are_refused(bootstrap: str, cut: int) -> None:
    source, topic = new_topic(bootstrap, "twice-in", 4), new_topic(bootstrap, "twice-out", 2)
    target = Target(bootstrap, topic, f"job-{topic}", 2, None, ())
    places = [(0, 0, 4), (0, 0, 4)]
    with pytest.raises(StampError, match=rf"two rows come from {source}\[0\] offset 4"):
        counts(target, [rows(source, places[:cut]), rows(source, places[cut:])])
    assert read_all(bootstrap, topic) == []


def counts(target: Target, batches: list[pa.RecordBatch]) -> list[tuple[int, int]]:
    """What each lane has written and skipped."""
    return [tuple(batch.to_pylist()[0].values()) for batch in write_lanes(target, iter(batches))]
