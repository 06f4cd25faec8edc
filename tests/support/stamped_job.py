"""The scenario that stamps were invented for: a job that writes at least once, killed again and again."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.support.topics import new_topic, read_all

KILLS = 15


def fill(bootstrap: str, name: str, partitions: int, records: int) -> str:
    """A new topic with records ``topic partition number``, whose keys are 20 bytes and no stamps."""
    topic = new_topic(bootstrap, name, partitions)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(records):
        place = number % partitions
        value = f"{topic} {place} {number // partitions}"
        producer.produce(topic, value, f"\xff{number:018d}".encode()[:20].ljust(20), partition=place)
    assert producer.flush(30) == 0
    return topic


def run_job(
    bootstrap: str, source: str, target: str, folder: Path, *, name: str = "A", stamp: str = "key",
    kills: int = KILLS,
) -> int:  # fmt: skip
    """Run the job, killed in mid-batch and started over from its checkpoint; returns the kills that hit."""
    rng = random.Random()
    watch = Consumer({"bootstrap.servers": bootstrap, "group.id": "watch"})
    partitions = watch.list_topics(target, timeout=10).topics[target].partitions

    def written() -> int:
        places = [TopicPartition(target, number) for number in partitions]
        return sum(watch.get_watermark_offsets(place, timeout=10)[1] for place in places)

    command = [sys.executable, "-m", "tests.support.job_process", bootstrap, source, target, name, stamp]
    command.append(str(folder / f"{name}-{source}.json"))
    hit = 0
    try:
        for _ in range(kills):
            before = written()
            process = subprocess.Popen(command)
            while written() == before and process.poll() is None:
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.12))
            hit += process.poll() is None
            process.kill()
            process.wait()
        subprocess.run(command, check=True, timeout=120)
    finally:
        watch.close()
    return hit


def check_exact(sources: Sequence[Message], found: Sequence[Message], partitions: int) -> None:
    """Every source record is in ``found`` once, on its partition, in order; AssertionError if not."""
    expected: dict[str, list[bytes]] = defaultdict(list)
    for message in sources:
        expected[f"{message.topic()} {message.partition()}"].append(message.value() or b"")
    rows: dict[str, list[bytes]] = defaultdict(list)
    for message in found:
        topic, place, _ = (message.value() or b"").decode().split()
        assert message.partition() == int(place) % partitions
        rows[f"{topic} {place}"].append(message.value() or b"")
    assert rows.keys() == expected.keys()
    for source, values in expected.items():
        if rows[source] != values:
            missing, extra = set(values) - set(rows[source]), len(rows[source]) - len(set(rows[source]))
            raise AssertionError(f"{source}: {len(missing)} missing {sorted(missing)[:3]}, {extra} too many")


def contents(bootstrap: str, *topics: str) -> list[Message]:
    """The records of several topics."""
    return [message for topic in topics for message in read_all(bootstrap, topic)]
