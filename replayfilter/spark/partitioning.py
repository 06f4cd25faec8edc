"""Numbers that must not change as long as a checkpoint lives: ids of shards and lanes; and the outputs' pids.

Spark puts a row into partition ``pmod(hash(id), n)``. The ids are chosen so that each one gets a partition of
its own; with the ids 0, 1, 2, ... some partitions would get two shards and others none.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import xxhash

from replayfilter.core.stamp import producer_id
from replayfilter.kafka.admin import Topic

SPARK_SEED = 42  # of Spark's hash() and of its hash partitioning
_U32 = 0xFFFF_FFFF


@cache
def partition_ids(count: int) -> tuple[int, ...]:
    """For each of ``count`` partitions, in order, the smallest id that Spark hashes into it.

    >>> partition_ids(2)
    (2, 0)
    """
    ids: dict[int, int] = {}
    candidate = 0
    while len(ids) < count:
        ids.setdefault(spark_hash(candidate) % count, candidate)
        candidate += 1
    return tuple(ids[partition] for partition in range(count))


def spark_hash(value: int) -> int:
    """Spark's ``hash`` of one INT column: Murmur3 x86 32 with seed 42, as a signed 32-bit number.

    >>> spark_hash(1)
    -559580957
    """
    k = _rotated(value * 0xCC9E2D51 & _U32, 15) * 0x1B873593 & _U32
    h = (_rotated(SPARK_SEED ^ k, 13) * 5 + 0xE6546B64) & _U32
    h ^= 4  # bytes hashed
    h = (h ^ h >> 16) * 0x85EBCA6B & _U32
    h = (h ^ h >> 13) * 0xC2B2AE35 & _U32
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _U32


@cache
def assigned_index(topic: str, partition: int, count: int) -> int:
    """The index, of ``count``, that an input partition always has; a topic's partitions are spread evenly."""
    return (xxhash.xxh3_64_intdigest(topic.encode()) + partition) % count


def output_pid(cluster_id: str, input_id: str, service: str, output: Topic) -> int:
    """The pid in the stamps of ``service`` on records of an input topic, given by its id, in an output topic.

    A reader of two outputs may see their records in any order, and so may a reader of a topic that got more
    partitions: *input partition % count* moves. Each output and each count is therefore a source of its own.
    """
    return producer_id(cluster_id, input_id, service, output.id, str(output.partitions))


def output_pids(
    cluster_id: str, service: str, input_ids: Mapping[str, str], outputs: Mapping[str, Topic]
) -> dict[str, dict[str, int]]:
    """The pid of each output topic and input topic, by their names."""
    return {
        name: {topic: output_pid(cluster_id, id_, service, output) for topic, id_ in input_ids.items()}
        for name, output in outputs.items()
    }
