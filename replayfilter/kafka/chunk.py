"""Chunks: consecutive records of one input partition on their way to the output topics, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from typing import NamedTuple

from replayfilter.core.input_partition import InputPartition

Headers = list[tuple[str, str | bytes | None]]
Row = tuple[int, str, int, bytes | None, bytes | None, int, Headers | None]

FIRST_MS = 1  # written instead of timestamp 0 ms, which librdkafka replaces by the current time


class Chunk(NamedTuple):
    """n records of one input partition in input order: n items in each column, plain Python values.

    ``offsets`` are input offsets, ascending. ``topics`` and ``partitions`` are the output topic and partition
    of each record. A null key or value is None, an empty one b"". ``timestamps_ms`` are int milliseconds, -1
    for none. ``headers`` is None when no record has any.

    >>> chunk = Chunk(("in", 3), [7, 9], ["out"] * 2, [3, 3], [b"a", None], [b"{}", b""], [5, -1])
    >>> list(chunk.rows(1))
    [(9, 'out', 3, None, b'', -1, None)]
    """

    input_partition: InputPartition
    offsets: Sequence[int]
    topics: Sequence[str]
    partitions: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_ms: Sequence[int]
    headers: Sequence[Headers | None] | None = None

    def rows(self, first: int = 0) -> Iterator[Row]:
        """The records from row ``first`` on: offset, topic, partition, key, value, timestamp, headers."""
        headers = repeat(None, len(self.offsets)) if self.headers is None else self.headers
        where, what = (self.offsets, self.topics, self.partitions), (self.keys, self.values)
        return islice(zip(*where, *what, self.timestamps_ms, headers, strict=True), first, None)
