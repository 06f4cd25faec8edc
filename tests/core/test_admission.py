"""How far a batch goes in each partition: never beyond what is there, fair, and always forward."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replayfilter.core.admission import next_ends
from replayfilter.core.input_partition import InputPartition

Spans = dict[InputPartition, tuple[int, int]]

PARTITIONS = st.tuples(st.sampled_from("ab"), st.integers(0, 300))
SPANS: st.SearchStrategy[Spans] = st.dictionaries(
    PARTITIONS, st.tuples(st.integers(0, 2**40), st.integers(0, 10**7) | st.just(0)), max_size=20
)


def planned(spans: Spans, limit: int) -> dict[InputPartition, int]:
    """How many offsets the next batch takes of each partition, which has (start, backlog)."""
    starts = {partition: start for partition, (start, _) in spans.items()}
    found = next_ends(starts, {partition: start + size for partition, (start, size) in spans.items()}, limit)
    assert found.keys() == spans.keys()
    return {partition: end - starts[partition] for partition, end in found.items()}


@given(SPANS, st.integers(1, 10**6))
def test_a_batch_takes_what_fits_and_moves_every_partition_that_has_records(spans: Spans, limit: int) -> None:
    taken = planned(spans, limit)
    waiting = [partition for partition, (_, size) in spans.items() if size]
    assert all(0 <= taken[partition] <= spans[partition][1] for partition in spans)
    assert all(taken[partition] > 0 for partition in waiting)
    assert sum(taken.values()) <= max(limit, limit + len(waiting) - 1)
    if sum(size for _, size in spans.values()) <= limit:
        assert taken == {partition: size for partition, (_, size) in spans.items()}


@given(SPANS, st.integers(1, 10**6))
def test_repeated_batches_take_everything_at_the_same_relative_speed(spans: Spans, limit: int) -> None:
    taken = planned(spans, limit)
    total = sum(size for _, size in spans.values())
    for partition, (_, size) in spans.items():
        if total > limit and size:
            assert abs(taken[partition] - size * limit / total) <= 1


def test_nothing_moves_without_records_and_partitions_never_go_back() -> None:
    assert planned({}, 5) == {}
    assert planned({("t", 0): (7, 0)}, 5) == {("t", 0): 0}
    # A new partition that begins after the offset to stop at.
    assert next_ends({("t", 0): 9, ("t", 1): 0}, {("t", 0): 0, ("t", 1): 3}, 5) == {("t", 0): 9, ("t", 1): 3}


def test_more_partitions_than_the_limit_move_by_one_each() -> None:
    spans = {("t", number): (0, 1_000) for number in range(50)}
    assert set(planned(spans, 10).values()) == {1}
