"""Categories: the clock for keys that have no order but arrive grouped, such as a file's or a load's name.

Rules:
- Each input partition has its own order: that in which categories first appeared in it. Replays and
  errors don't make a category appear.
- A category is closed in an input partition once more than ``period`` others have appeared in it after;
  a record of a closed category is expired.
- Keys are remembered by category, whatever the input partition, until it is closed in every one where it
  appeared. With match ``window`` a key is a duplicate if any category still remembered has it when the
  batch begins, or takes it in the batch.
- Of closed categories the last ``CLOSED_KEPT`` are known by input partition; one that comes back later
  than that counts as new.

A category is an int64, a hash of its key.
"""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

from replayfilter.core.columns import Columns

CLOSED_KEPT = 1_000  # categories an input partition; 8 bytes each, written with every batch


class Categories:
    """The categories of every input partition, the latest last, while a batch is decided."""

    def __init__(self, columns: Columns | None = None) -> None:
        self._order: dict[int, dict[int, int]] = {}  # input -> category -> its number, in ascending order
        if columns is not None:
            ends = np.cumsum(columns["category_count"]).tolist()
            names = columns["category_name"].tolist()
            inputs = zip(columns["category_input"].tolist(), columns["category_next"].tolist(), strict=True)
            start = 0
            for (place, after), end in zip(inputs, ends, strict=True):
                numbers = range(after - (end - start), after)
                self._order[place] = dict(zip(names[start:end], numbers, strict=True))
                start = end

    def columns(self) -> Columns:
        """As they are kept in the state: ``category_name`` int64[n] by input, with counts and numbers."""
        known = list(self._order.values())
        return {
            "category_input": np.array(list(self._order), np.int64),
            "category_count": np.array([len(order) for order in known], np.int64),
            "category_next": np.array([_next(order) for order in known], np.int64),
            "category_name": np.array([name for order in known for name in order], np.int64),
        }

    def advance(
        self, topic: str, partition: int, names: NDArray[np.int64], counts: NDArray[np.bool_], period: int
    ) -> NDArray[np.bool_]:
        """bool[n]: which of n records, in input order, are of a closed category.

        ``counts`` bool[n] says which of them make a category appear; the others' answers mean nothing.
        """
        order = self._order.setdefault(_input(topic, partition), {})
        number = np.zeros(len(names), np.int64)
        counted = np.flatnonzero(counts)
        found, first, inverse = np.unique(names[counted], return_index=True, return_inverse=True)
        latest = _next(order) - 1
        numbers = np.zeros(len(found), np.int64)
        for at in np.argsort(first).tolist():
            name = int(found[at])
            if name not in order:
                order[name] = _next(order)
            numbers[at] = order[name]
        number[counted] = numbers[inverse]
        points = np.maximum.accumulate(np.where(counts, number, latest)) if len(names) else number
        return np.asarray(np.maximum(points, latest) - number > period)

    def open(self, period: int) -> set[int]:
        """The categories that are open in at least one input partition; forgets the oldest closed ones."""
        still: set[int] = set()
        for place, order in self._order.items():
            latest = _next(order) - 1
            still.update(name for name, number in order.items() if latest - number <= period)
            if len(order) > period + 1 + CLOSED_KEPT:
                self._order[place] = dict(list(order.items())[-(period + 1 + CLOSED_KEPT) :])
        return still


def _next(order: dict[int, int]) -> int:
    return order[next(reversed(order))] + 1 if order else 0


def _input(topic: str, partition: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{topic}\0{partition}".encode()) >> 1
