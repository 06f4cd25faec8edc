"""Publishes an endless dirty stream to try things out; `docker compose up` feeds the service with it.

    python -m replayfilter.demo.feed --create BOOTSTRAP     creates the topic if it is missing
    python -m replayfilter.demo.feed BOOTSTRAP              publishes until it is stopped

If the topic is empty, it first receives six hours of history at once, so that there is something to see.
After that, event time follows the clock: 200 records per second, and an upstream job crashes every few
minutes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import count, islice
from typing import NoReturn

from replayfilter.demo.kafka_io import create_topic, publish
from replayfilter.demo.stream import SPAN_MS, Record, generate, iter_records
from replayfilter.errors import BrokerError
from replayfilter.kafka.admin import Cluster

TOPIC, PARTITIONS = "orders", 4
HISTORY = 50_000
PER_SECOND = 200
CRASH_EVERY_MS = 150_000
FLUSH_RECORDS = 10 * PER_SECOND
"""After this many records the feeder waits until all have arrived; if one has not, it exits with an error."""


def endless_stream(start_ms: int) -> Iterator[Record]:
    """Yield records forever, with timestamps from ``start_ms`` (Unix time in ms) on."""
    records = PER_SECOND * SPAN_MS // 1000
    for number in count(1):
        end_ms = start_ms + number * SPAN_MS
        crashes = SPAN_MS // CRASH_EVERY_MS
        yield from iter_records(records, end_ms=end_ms, seed=end_ms, partitions=PARTITIONS, crashes=crashes)


def in_real_time(records: Iterator[Record]) -> Iterator[Record]:
    """Yield the same records, each no earlier than its timestamp."""
    for record in records:
        if (early := record.timestamp_ms / 1000 - time.time()) > 0.02:
            time.sleep(early)
        yield record


def feed(bootstrap: str) -> NoReturn:
    """Publish forever. Raises BrokerError if a record can't be delivered."""
    cluster = Cluster(bootstrap)
    partitions = [(TOPIC, partition) for partition in range(PARTITIONS)]
    now_ms = int(time.time() * 1000)
    if not any(cluster.end_offsets(partitions).values()):
        publish(bootstrap, TOPIC, generate(HISTORY, end_ms=now_ms, partitions=PARTITIONS))
        print(
            f"published {HISTORY:,} records of the last {SPAN_MS // 3_600_000} hours to {TOPIC}", flush=True
        )
    live = in_real_time(endless_stream(now_ms))
    while True:
        publish(bootstrap, TOPIC, islice(live, FLUSH_RECORDS))


def main(arguments: list[str]) -> int:
    """Create the topic or publish; return the exit code."""
    *option, bootstrap = arguments or [""]
    if option not in ([], ["--create"]) or not bootstrap:
        print("usage: python -m replayfilter.demo.feed [--create] BOOTSTRAP", file=sys.stderr)
        return 2
    try:
        if not option:
            feed(bootstrap)
        elif not Cluster(bootstrap).topics([TOPIC]):
            create_topic(bootstrap, TOPIC, PARTITIONS)
    except BrokerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
