"""The closed list of what each shard counts in each batch, and how the numbers of all shards are combined."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from replayfilter.core.clock.periods import BUCKETS


class Aggregate(Enum):
    """How the numbers of all shards become one number for the service."""

    SUM = auto()  # every shard counts its own
    MAX = auto()  # every shard knows the same number


LATE_ROUTES = ("unique", "duplicate", "expired")
# How late records are, by route, and how far apart duplicates: the counts of the buckets of clock/periods.py.
LENGTHS = {
    name: [f"{name}_{bucket}" for bucket in range(BUCKETS)]
    for name in (*(f"late_{route}" for route in LATE_ROUTES), "apart")
}


@dataclass(frozen=True, slots=True)
class Stat:
    """A number that every shard reports after every batch."""

    name: str
    meaning: str
    aggregate: Aggregate = Aggregate.SUM


STATS = (
    Stat("sources", "sources with a mark", Aggregate.MAX),
    Stat("gaps", "gaps in this batch: offsets above mark + 1", Aggregate.MAX),
    Stat("forgotten", "marks removed in this batch because they were idle", Aggregate.MAX),
    Stat("spread", "sources seen in more than one input partition", Aggregate.MAX),
    Stat("keys", "dedup keys remembered"),
    Stat("bytes", "bytes of runs in the state"),
    Stat("memory", "bytes in memory: runs with their Bloom filters, marks and directory"),
    Stat("runs", "runs"),
    Stat("buckets", "buckets"),
    Stat("evicted", "keys that expired with their bucket in this batch"),
    *(
        Stat(name, f"records that are as late, or duplicates as far apart, as bucket {bucket} says")
        for names in LENGTHS.values()
        for bucket, name in enumerate(names)
    ),
    Stat("false_hits", "digests that passed a Bloom filter in this batch and were not in its run"),
)
