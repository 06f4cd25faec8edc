"""Input partitions: the (topic, partition) pairs that a service reads.

The order of decision within a batch is (topic, partition, offset), so these pairs sort as they should.
"""

from __future__ import annotations

import xxhash

InputPartition = tuple[str, int]  # topic and partition


def partition_hash(topic: str, partition: int) -> int:
    """A number for an input partition, as the state has it: 63 bits of XXH3-64.

    >>> partition_hash("orders", 0) == partition_hash("orders", 1)
    False
    """
    return xxhash.xxh3_64_intdigest(f"{topic}\0{partition}".encode()) >> 1
