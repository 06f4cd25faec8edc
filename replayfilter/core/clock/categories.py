"""Categories: the clock for expiry keys that have no order but arrive in groups, such as file names.

Categories are numbered in the order in which they first appear in an input partition, and these numbers
take the place of time: a category expires when enough others have appeared after it.

Rules:
- Each input partition has its own order. Replays and errors don't make a category appear.
- A category is closed in an input partition once more than ``period`` others have appeared there after it.
  A record of a closed category is expired.
- Keys are remembered by category, for all input partitions together, until the category is closed in every
  input partition where it appeared. With match ``window`` a record is a duplicate if its key is remembered
  in any category at the start of the batch, or is accepted in any category earlier in the batch.
- Per input partition, the last ``CLOSED_KEPT`` closed categories are known. One that comes back later than
  that counts as new.

A category is an int64, a hash of the expiry key.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.columns import Columns
from replayfilter.core.input_partition import partition_hash

CLOSED_KEPT = 1_000  # per input partition; 8 bytes each, written with every batch


class Categories:
    """The categories of every input partition, the newest last, while a batch is decided."""

    def __init__(self, columns: Columns | None = None) -> None:
        self._order: dict[int, dict[int, int]] = {}  # partition hash -> category -> number, ascending
        if columns is not None:
            ends = np.cumsum(columns["category_count"]).tolist()
            names = columns["category_name"].tolist()
            inputs = zip(columns["category_input"].tolist(), columns["category_next"].tolist(), strict=True)
            start = 0
            for (partition, after), end in zip(inputs, ends, strict=True):
                numbers = range(after - (end - start), after)
                self._order[partition] = dict(zip(names[start:end], numbers, strict=True))
                start = end

    def columns(self) -> Columns:
        """The columns of the state: ``category_name`` int64[n] by input partition, counts and numbers."""
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
        """bool[n]: which of n records of an input partition, in input order, are of a closed category.

        ``names`` int64[n]: their categories. ``counts`` bool[n]: the records that make a category appear;
        the results of the others mean nothing.
        """
        order = self._order.setdefault(partition_hash(topic, partition), {})
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

    def open_categories(self, period: int) -> set[int]:
        """The categories that are open in at least one input partition."""
        found: set[int] = set()
        for order in self._order.values():
            latest = _next(order) - 1
            found.update(name for name, number in order.items() if latest - number <= period)
        return found

    def forget_closed(self, period: int) -> None:
        """Forget all closed categories but the last ``CLOSED_KEPT`` of each input partition."""
        most = period + 1 + CLOSED_KEPT
        for partition, order in self._order.items():
            if len(order) > most:
                self._order[partition] = dict(list(order.items())[-most:])


def _next(order: dict[int, int]) -> int:
    return order[next(reversed(order))] + 1 if order else 0
