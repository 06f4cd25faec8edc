"""The stamping producer compared with confluent-kafka's own: ``python -m benchmarks.producer``.

Both take turns and write the same values to the same partitions with the same settings. The bare producer
writes a constant key of 20 bytes, too. CPU time is that of this process: the client's and not the broker's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from replayfilter.client.producer import StampingProducer
from replayfilter.devbroker import DevBroker
from replayfilter.kafka.admin import Cluster

PARTITIONS = 4
VALUE = b'{"event_id":"0123456789abcdef0123456789abcdef","ts":1700000000000,"rest":"' + b"x" * 124 + b'"}'
POLL_EVERY = 1_000  # records, as users of the bare producer do


def bare(settings: dict[str, Any], topic: str, records: int) -> None:
    """Write without stamps. The settings are as safe as those of the stamping producer."""
    producer = Producer({**settings, "acks": "all", "enable.idempotence": True, "linger.ms": 20,
                         "batch.size": 1_000_000, "delivery.report.only.error": True})  # fmt: skip
    failed = []

    def report(error: object, message: object) -> None:
        failed.append((error, message))

    key = b"12345678901234567890"
    for offset in range(records // PARTITIONS):
        for partition in range(PARTITIONS):
            while True:
                try:
                    producer.produce(topic, VALUE, key, partition, on_delivery=report)
                    break
                except BufferError:
                    producer.poll(0.1)
        if offset % (POLL_EVERY // PARTITIONS) == 0:
            producer.poll(0)
    assert not producer.flush(), "not all records were sent"
    assert not failed


def stamping(settings: dict[str, Any], topic: str, records: int) -> None:
    """Write the same with stamps."""
    with StampingProducer(settings, topic, 7) as producer:
        for offset in range(records // PARTITIONS):
            for partition in range(PARTITIONS):
                producer.produce(partition, offset, VALUE)


def main() -> None:
    """Print one line per run, then the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=500_000, help="per run")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    sides = {"bare": bare, "stamping": stamping}
    speed: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    with DevBroker() as broker:
        settings: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap}
        admin = AdminClient(settings)
        for number in range(-1, options.rounds):  # the first round warms up
            for name, write in sides.items():
                topic = f"bench-{name}-{number}"
                Cluster(broker.bootstrap).create({topic: PARTITIONS})
                wall, busy = time.perf_counter(), time.process_time()
                write(settings, topic, options.records)
                wall, busy = time.perf_counter() - wall, time.process_time() - busy
                admin.delete_topics([topic])[topic].result(30)
                if number < 0:
                    continue
                speed[name].append(options.records / wall)
                cpu[name].append(busy / options.records * 1e6)
                print(f"round {number + 1} {name:<9} {speed[name][-1]:>9,.0f} records/s"
                      f" {cpu[name][-1]:6.2f} CPU s per million")  # fmt: skip
    for name in sides:
        print(f"median  {name:<9} {statistics.median(speed[name]):>9,.0f} records/s"
              f" {statistics.median(cpu[name]):6.2f} CPU s per million")  # fmt: skip
    pairs = [ours / theirs for ours, theirs in zip(speed["stamping"], speed["bare"], strict=True)]
    print(f"stamping / bare: {statistics.median(pairs):.0%} of the speed (median of the rounds)")


if __name__ == "__main__":
    main()
