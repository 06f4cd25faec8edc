"""Admission: how far the next batch goes, when there is more to read than one batch may take.

A backlog that fits is taken whole. A larger one is shared among the input partitions in proportion to what
each has to offer, so that all of them advance at the same relative speed, and none waits for another.
"""

from __future__ import annotations

from collections.abc import Mapping

from replayfilter.core.input_partition import InputPartition

Offsets = Mapping[InputPartition, int]


def next_ends(starts: Offsets, ends: Offsets, limit: int) -> dict[InputPartition, int]:
    """Where the next batch ends in each partition of ``ends``, at most ``limit`` offsets after ``starts``.

    ``starts``: the next offset to read, for every partition of ``ends``. ``ends``: the offset after the last
    record that can be read. Each partition with a backlog gets at least one offset, so with more partitions
    than ``limit`` a batch has more than ``limit``.

    >>> next_ends({("t", 0): 0, ("t", 1): 10}, {("t", 0): 300, ("t", 1): 110}, 40)
    {('t', 0): 30, ('t', 1): 20}
    """
    backlog = {partition: max(0, end - starts[partition]) for partition, end in ends.items()}
    total = sum(backlog.values())
    if total <= limit:
        return {partition: starts[partition] + size for partition, size in backlog.items()}
    return {
        partition: starts[partition] + min(size, max(1, size * limit // total)) if size else starts[partition]
        for partition, size in backlog.items()
    }
