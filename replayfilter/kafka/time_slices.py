"""Cuts the last records of a topic into slices of time, so that its partitions are read side by side.

Each partition of a topic may have another rate, so the last thousand records of one may be of a minute and
those of another of a day. A slice has the records of all partitions between two times. Kafka finds the first
offset at or after a time; it rises with the time even where timestamps are out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

from replayfilter.core.input_partition import InputPartition
from replayfilter.kafka.reader import Range

Offsets = Mapping[InputPartition, int]
Ranges = dict[InputPartition, Range]


def time_slices(
    begins: Offsets,
    ends: Offsets,
    records: int,
    slices: int,
    offsets_at: Callable[[int], Offsets],
    now_ms: int,
) -> list[Ranges]:
    """About the last ``records`` records (0: all) as at most ``slices`` slices, in the order of time.

    ``begins``, ``ends``: the offsets that each partition holds. ``offsets_at``: see ``Cluster.offsets_at``.
    Records later than ``now_ms`` are in the last slice. If timestamps can't say where the last records
    begin (most records have the same one, or none), the last records of each partition are cut evenly.
    """
    total = sum(ends[each] - begins[each] for each in ends)
    wanted = min(records, total) if records else total

    def starts(time_ms: int) -> dict[InputPartition, int]:
        found = offsets_at(time_ms)
        return {
            each: ends[each] if found[each] < 0 else min(max(begins[each], found[each]), ends[each])
            for each in ends
        }

    def left(time_ms: int) -> int:
        return sum(ends[each] - start for each, start in starts(time_ms).items())

    if not wanted:
        return []
    known = min(wanted, left(0))  # fewer where offsets at the beginning have no record any more
    first = _last_time(left, known, now_ms)
    if not wanted <= 2 * left(first) <= 4 * wanted:
        return _even_slices(begins, ends, wanted, slices)
    last = _last_time(left, 1, now_ms)
    cuts = [starts(first)]
    count = min(slices, last - first + 1)
    for number in range(1, count):
        at = starts(first + (last + 1 - first) * number // count)
        cuts.append({each: max(at[each], cuts[-1][each]) for each in ends})
    cuts.append(dict(ends))
    return _ranges(cuts)


def _last_time(left: Callable[[int], int], wanted: int, now_ms: int) -> int:
    """The last time from 0 to now at or after which there are so many records."""
    low, high = 0, now_ms + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if left(middle) >= wanted else (low, middle)
    return low


def _even_slices(begins: Offsets, ends: Offsets, records: int, slices: int) -> list[Ranges]:
    share = -(-records // len(ends))
    starts = {each: max(begins[each], ends[each] - share) for each in ends}
    return _ranges(
        [
            {each: starts[each] + (ends[each] - starts[each]) * number // slices for each in ends}
            for number in range(slices + 1)
        ]
    )


def _ranges(cuts: list[dict[InputPartition, int]]) -> list[Ranges]:
    """The ranges between each two cuts, without those that are empty."""
    found = [
        {each: (start, stop) for each, stop in after.items() if (start := before[each]) < stop}
        for before, after in pairwise(cuts)
    ]
    return [ranges for ranges in found if ranges]
