"""The closed list of what is counted in each batch; the query observes them, its progress carries them.

Every delivery task and every shard yields rows with one column for each count; a batch's value is the sum
of its rows, or the largest where all shards know the same. One more column is a text: where a low watermark
is kept, the first shard says in it who holds that back (core/laggards.py); in all other rows it is empty.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from replayfilter.core.routing import STATS, Route
from replayfilter.formats import Reason

STAMP_REASON = "stamp"  # found by decode, as those of the formats are
REASONS_OF_ROUTES = {Route.FUTURE: "future", Route.JUMP: "jump"}  # what only the shards can tell
REASONS = (*(reason.value for reason in Reason), STAMP_REASON, *REASONS_OF_ROUTES.values())

COUNTS: dict[str, str] = {
    "unique": "records routed to unique",
    "duplicate": "records routed to duplicate",
    "expired": "records routed to expired",
    "error": "records routed to error, whatever the reason",
    "replay": "replays",
    **{f"error_{reason}": f"records routed to error with the reason {reason}" for reason in REASONS},
    "unstamped": "records without a valid stamp, where stamps are read",
    "bytes": "bytes of the records' frames between decode and deliver",
    "written": "records handed to Kafka in transactions",
    "skipped": "records left out because an earlier attempt had delivered them",
    "transactions": "transactions committed",
    "takeovers": "times that a lane was taken over by another worker",
    "fences": "times that another owner had taken the lane",
    "retries": "steps of a transaction asked again because the broker wasn't ready",
    "newest_ms": "the largest timestamp of a record, milliseconds since the epoch; 0: none has one",
    "delay_ms": "from the smallest timestamp of a record to its delivery, milliseconds, by workers' clocks",
    "watermark_us": "the low watermark after the batch, microseconds since the epoch; 0: not known yet",
    "decode_us": "microseconds of work on decoding, over all tasks",
    "route_us": "microseconds of work on routing, over all shards",
    "deliver_us": "microseconds of work on writing and committing, over all lanes",
    "cache_hits": "runs found in a host's cache",
    "cache_misses": "runs read from Spark's state",
    **{f"state_{name}": meaning for name, meaning in STATS.items()},
}
_SAME = {f"state_{name}" for name, meaning in STATS.items() if "the same in every shard" in meaning}
LARGEST = _SAME | {"newest_ms", "delay_ms", "watermark_us"}

LAGGARDS = "laggards"  # the text's name

SCHEMA = ", ".join([*(f"{name} BIGINT NOT NULL" for name in COUNTS), f"{LAGGARDS} STRING NOT NULL"])
ARROW_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.int64(), nullable=False) for name in COUNTS),
        pa.field(LAGGARDS, pa.string(), nullable=False),
    ]
)


def count_row(counts: Mapping[str, int], laggards: str = "") -> pa.RecordBatch:
    """One row of counts; those not given are 0. KeyError for a name that is not on the list."""
    unknown = counts.keys() - COUNTS.keys()
    if unknown:
        raise KeyError(f"not on the list of counts: {sorted(unknown)}")
    row: dict[str, int | str] = {name: counts.get(name, 0) for name in COUNTS}
    return pa.RecordBatch.from_pylist([row | {LAGGARDS: laggards}], schema=ARROW_SCHEMA)
