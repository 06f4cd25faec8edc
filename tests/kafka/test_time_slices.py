"""How the last records of a topic are cut into slices of time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate, pairwise

import pytest
from confluent_kafka import Producer

from replayfilter.core.input_partition import InputPartition
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.time_slices import Ranges, time_slices
from tests.support.topics import new_topic

NOW_MS = 1_700_000_000_000
Times = Mapping[int, list[int]]  # the timestamps of each partition's records, from the first offset on


def slices_of(times: Times, records: int, slices: int = 10, begin: int = 0) -> list[Ranges]:
    def offsets_at(time_ms: int) -> dict[InputPartition, int]:
        found = {}
        for number, own in times.items():
            at = bisect_left(list(accumulate(own, max)), time_ms)
            found["t", number] = begin + at if at < len(own) else -1
        return found

    begins = {("t", number): begin for number in times}
    ends = {("t", number): begin + len(own) for number, own in times.items()}
    return time_slices(begins, ends, records, slices, offsets_at, NOW_MS)


def covered(found: list[Ranges], partition: int) -> tuple[int, int]:
    """First and last offset; each range must begin where the one before ends."""
    own = [ranges["t", partition] for ranges in found if ("t", partition) in ranges]
    assert all(before[1] == after[0] for before, after in pairwise(own))
    return own[0][0], own[-1][1]


def test_partitions_of_different_rates_are_cut_at_the_same_times() -> None:
    times = {0: list(range(NOW_MS - 1_000, NOW_MS)), 1: list(range(NOW_MS - 1_000, NOW_MS, 10))}
    found = slices_of(times, 0)
    assert len(found) == 10
    assert (covered(found, 0), covered(found, 1)) == ((0, 1_000), (0, 100))
    assert found[3] == {("t", 0): (300, 400), ("t", 1): (30, 40)}


def test_only_the_last_records_are_taken() -> None:
    times = {0: list(range(NOW_MS - 1_000, NOW_MS)), 1: list(range(NOW_MS - 1_000, NOW_MS, 10))}
    found = slices_of(times, 550, begin=70)
    assert (covered(found, 0), covered(found, 1)) == ((570, 1_070), (120, 170))


def test_times_out_of_order_and_in_the_future() -> None:
    times = {0: [5, 100, 7, 8, NOW_MS * 2, 200, 300], 1: [50, 60]}
    found = slices_of(times, 0)
    assert (covered(found, 0), covered(found, 1)) == ((0, 7), (0, 2))


@pytest.mark.parametrize("time_ms", [-1, 0, 77])
def test_timestamps_that_say_nothing(time_ms: int) -> None:
    found = slices_of({0: [time_ms] * 100, 1: [time_ms] * 3}, 50)
    assert (covered(found, 0), covered(found, 1)) == ((75, 100), (0, 3))
    assert len(found) == 10


def test_offsets_at_the_beginning_without_records() -> None:
    """Compaction has removed them: the first record that Kafka finds is behind the first offset."""
    times = list(range(NOW_MS - 100, NOW_MS))
    both = {("t", 0): 0}, {("t", 0): 150}
    found = time_slices(
        *both, 0, 10, lambda at: {("t", 0): 50 + bisect_left(times, at) if at < NOW_MS else -1}, NOW_MS
    )
    assert covered(found, 0) == (50, 150)
    assert found[0] == {("t", 0): (50, 60)}


def test_an_empty_topic_and_one_record() -> None:
    assert slices_of({0: [], 1: []}, 0) == []
    assert slices_of({0: [], 1: [NOW_MS]}, 100) == [{("t", 1): (0, 1)}]


def test_on_a_real_broker(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "slices", 2)
    producer = Producer({"bootstrap.servers": bootstrap})
    for at in range(100):
        producer.produce(topic, b"x", partition=0, timestamp=NOW_MS + at * 1_000)
        if at % 10 == 0:
            producer.produce(topic, b"x", partition=1, timestamp=NOW_MS + at * 1_000)
    producer.flush()
    cluster = Cluster(bootstrap)
    both = [(topic, 0), (topic, 1)]
    found = time_slices(
        cluster.beginning_offsets(both), cluster.end_offsets(both), 55, 5,
        lambda time_ms: cluster.offsets_at(both, time_ms), NOW_MS * 2,
    )  # fmt: skip
    assert len(found) == 5
    assert found[0] == {(topic, 0): (50, 60), (topic, 1): (5, 6)}
    assert found[4] == {(topic, 0): (90, 100), (topic, 1): (9, 10)}
