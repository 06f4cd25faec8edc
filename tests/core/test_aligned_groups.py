"""Aggregates within a partition: what a restart does to them, by how the groups are cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayfilter import ReplayFilter, Stamp, aligned_group
from replayfilter.errors import StampError

Group = Sequence[int]  # the source offsets that a record was made from


def counted(groups: Iterator[Group] | Sequence[Group]) -> Counter[int]:
    """How often a reader that filters replays counts each source record."""
    keep, found = ReplayFilter(), Counter[int]()
    for group in groups:
        if keep.accept(Stamp.covering([Stamp(7, 0, offset) for offset in group])):
            found.update(group)
    return found


def test_groups_that_are_cut_differently_after_a_restart_are_counted_twice() -> None:
    found = counted([range(1, 11), range(1, 8), range(8, 16)])
    assert {offset for offset, times in found.items() if times > 1} == {8, 9, 10}


def aggregates(offsets: Sequence[int], size: int, runs: Sequence[int]) -> Iterator[Group]:
    """The groups that a job writes; each run but the last ends after it has read so many records."""
    position = 0
    for limit in (*runs, len(offsets) + 1):
        group: list[int] = []
        for offset in [offset for offset in offsets if offset >= position][:limit]:
            if group and offset >= aligned_group(group[0], size).stop:
                yield group
                group = []
                if offset % 3:  # it doesn't save its position each time
                    position = aligned_group(offset, size).start
            group.append(offset)


@given(
    st.sets(st.integers(0, 200), min_size=2).map(sorted),
    st.integers(1, 30),
    st.lists(st.integers(0, 200), max_size=6),
)
def test_aligned_groups_are_counted_once_wherever_the_job_ends(
    offsets: list[int], size: int, runs: list[int]
) -> None:
    last = aligned_group(offsets[-1], size).start  # this group isn't complete yet
    expected = [offset for offset in offsets if offset < last]
    assert counted(aggregates(offsets, size, runs)) == Counter(expected)


def test_a_group_of_nothing_is_refused() -> None:
    with pytest.raises(StampError, match="groups of 0 offsets"):
        aligned_group(5, 0)
