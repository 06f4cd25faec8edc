"""Runs: consecutive records of one input partition on their way to the output topics, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from typing import NamedTuple

InputPartition = tuple[str, int]  # input topic and partition
Headers = list[tuple[str, str | bytes | None]]
Row = tuple[int, str, int, bytes | None, bytes | None, int, Headers | None]

FIRST_MS = 1  # written for the time 0 ms, which librdkafka can't send: it would put the current time


class Chunk(NamedTuple):
    """n records of one input partition in input order: n items in each column, plain Python values.

    ``offsets`` are input offsets, ascending. ``topics`` and ``partitions`` say where each record goes.
    Null and empty ``keys`` and ``values`` stay what they are. ``timestamps_ms`` are int milliseconds,
    -1 for none. ``headers`` is None when no record has any.

    >>> run = Run(("orders", 3), [7, 9], ["orders.unique"] * 2, [3, 3], [b"a", None], [b"{}", b""], [5, -1])
    >>> list(run.rows(1))
    [(9, 'orders.unique', 3, None, b'', -1, None)]
    """

    source: InputPartition
    offsets: Sequence[int]
    topics: Sequence[str]
    partitions: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_ms: Sequence[int]
    headers: Sequence[Headers | None] | None = None

    def rows(self, first: int = 0) -> Iterator[Row]:
        """The records from row ``first`` on, without the source."""
        headers = repeat(None, len(self.offsets)) if self.headers is None else self.headers
        where, what = (self.offsets, self.topics, self.partitions), (self.keys, self.values)
        return islice(zip(*where, *what, self.timestamps_ms, headers, strict=True), first, None)
