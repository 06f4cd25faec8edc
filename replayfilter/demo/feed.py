"""A dirty stream that doesn't end, for trying things out: what `docker compose up` feeds the service with.

    python -m replayfilter.demo.feed --create BOOTSTRAP     makes the topic, if it is missing
    python -m replayfilter.demo.feed BOOTSTRAP              publishes until it is ended

An empty topic first gets the story of the last six hours at once, so that there is something to see; from
then on event time is the clock's, 200 records a second, with a crash of an upstream job every few minutes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import count, islice
from typing import NoReturn

from replayfilter.demo.kafka_io import create_topic, publish
from replayfilter.demo.stream import SPAN_MS, Record, generate, tell
from replayfilter.errors import BrokerError
from replayfilter.kafka.admin import Cluster

TOPIC, PARTITIONS = "orders", 4
HISTORY = 50_000
PER_SECOND = 200
CRASH_EVERY_MS = 150_000
SLICE = 10 * PER_SECOND
"""Records in one go: after so many each is known to have arrived, or the feeder ends with an error."""


def stories(start_ms: int) -> Iterator[Record]:
    """Records without end from ``start_ms`` (Unix time) on, each with the time to publish it."""
    records = PER_SECOND * SPAN_MS // 1000
    for number in count(1):
        end_ms = start_ms + number * SPAN_MS
        crashes = SPAN_MS // CRASH_EVERY_MS
        yield from tell(records, end_ms=end_ms, seed=end_ms, partitions=PARTITIONS, crashes=crashes)


def in_time(records: Iterator[Record]) -> Iterator[Record]:
    """The same, none before its timestamp."""
    for record in records:
        if (early := record.timestamp_ms / 1000 - time.time()) > 0.02:
            time.sleep(early)
        yield record


def feed(bootstrap: str) -> NoReturn:
    """Publish for ever; BrokerError if Kafka is silent for too long."""
    cluster = Cluster(bootstrap)
    sources = [(TOPIC, partition) for partition in range(PARTITIONS)]
    now_ms = int(time.time() * 1000)
    if not any(cluster.ends(sources).values()):
        publish(bootstrap, TOPIC, generate(HISTORY, end_ms=now_ms, partitions=PARTITIONS))
        print(f"{HISTORY:,} records of the last {SPAN_MS // 3_600_000} hours are in {TOPIC}", flush=True)
    live = in_time(stories(now_ms))
    while True:
        publish(bootstrap, TOPIC, islice(live, SLICE))


def main(arguments: list[str]) -> int:
    """Create the topic, or publish; the exit code."""
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
