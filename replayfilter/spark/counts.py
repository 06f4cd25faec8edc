"""The closed list of what is counted in each batch.

Every delivery task and every shard yields rows of counts. A row is one text, JSON with the counts that aren't
0, and the batch's progress carries all rows. The driver combines them, by sum or by maximum. Aggregates in
Spark would have to be planned, sent and set up again in each batch, which costs more than the few rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import pyarrow as pa

from replayfilter.core.stats import STATS, Aggregate, Stat
from replayfilter.spark.error_reasons import REASONS

_COUNTS = (
    Stat("unique", "records routed to unique"),
    Stat("duplicate", "records routed to duplicate, conflicts too"),
    Stat("conflict", "duplicates with other content than the records that they repeat"),
    Stat("expired", "records routed to expired"),
    Stat("error", "records routed to error, for any reason"),
    Stat("replay", "replays"),
    *(Stat(f"error_{reason}", f"records routed to error with the reason {reason}") for reason in REASONS),
    Stat("unstamped", "records without a valid stamp, if stamps are read"),
    Stat("unlikely_stamps", "records with 20 bytes for a stamp that no stamping producer writes"),
    Stat("bytes", "bytes of payloads between decode and deliver"),
    Stat("written", "records handed to Kafka in transactions"),
    Stat("skipped", "records left out because an earlier attempt had delivered them"),
    Stat("transactions", "transactions committed"),
    Stat("takeovers", "times that a worker took over a lane from another one"),
    Stat("fences", "times that a worker found its lane taken over by another one"),
    Stat("retries", "steps of a transaction repeated because the broker was not ready"),
    Stat("newest_ms", "largest record timestamp, in milliseconds since the epoch; 0 if none", Aggregate.MAX),
    Stat("delay_ms", "milliseconds from the smallest record timestamp to delivery, by the workers' clocks",
         Aggregate.MAX),
    Stat("watermark_us", "low watermark after the batch, in microseconds since the epoch; 0 if not known",
         Aggregate.MAX),
    Stat("decode_us", "microseconds spent in decode, over all tasks"),
    Stat("route_us", "microseconds spent in route, over all shards"),
    Stat("deliver_us", "microseconds spent in writing and committing, over all lanes"),
    Stat("cache_hits", "runs found in the host's cache"),
    Stat("cache_misses", "runs read from Spark's state"),
    *(Stat(f"state_{stat.name}", stat.meaning, stat.aggregate) for stat in STATS),
)  # fmt: skip
COUNTS = {count.name: count for count in _COUNTS}
ROUTES = ("unique", "duplicate", "expired", "error", "replay")  # each record is counted in one of these

# Who holds the low watermark back (core/watermark/laggards.py), as text. All shards know the same, so only
# the first one reports it; in all other rows, and without a low watermark, the text is empty.
LAGGARDS = "laggards"

ROW = "row"
SCHEMA = f"{ROW} STRING NOT NULL"
_ARROW_SCHEMA = pa.schema([pa.field(ROW, pa.string(), nullable=False)])


def records_in(counts: Mapping[str, int]) -> int:
    """How many records a batch with these counts had."""
    return sum(counts.get(route, 0) for route in ROUTES)


def count_row(counts: Mapping[str, int], laggards: str = "") -> pa.RecordBatch:
    """A batch with one row of counts; those not given are 0. KeyError for a name that is not on the list."""
    unknown = counts.keys() - COUNTS.keys()
    if unknown:
        raise KeyError(f"not on the list of counts: {sorted(unknown)}")
    row = {name: int(count) for name, count in counts.items() if count} | {LAGGARDS: laggards}
    return pa.RecordBatch.from_pydict({ROW: [json.dumps(row)]}, schema=_ARROW_SCHEMA)


def total(rows: Iterable[str]) -> dict[str, int | str]:
    """The counts of a batch from all of its rows: every count, and the laggards."""
    parsed = [json.loads(row) for row in rows]
    found: dict[str, int | str] = {LAGGARDS: max((row[LAGGARDS] for row in parsed), default="")}
    for name, count in COUNTS.items():
        values = [row.get(name, 0) for row in parsed]
        found[name] = max(values, default=0) if count.aggregate is Aggregate.MAX else sum(values)
    return found
