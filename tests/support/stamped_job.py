"""The scenario that stamps are made for: an at-least-once job that is killed again and again."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.support.topics import new_topic

KILLS = 15


def fill(bootstrap: str, name: str, partitions: int, records: int) -> str:
    """A new topic with records ``topic partition number``; their keys are 20 bytes but not stamps."""
    topic = new_topic(bootstrap, name, partitions)
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True}
    producer = Producer(settings | {"queue.buffering.max.messages": 1_000_000})
    for number in range(records):
        partition = number % partitions
        value = f"{topic} {partition} {number // partitions}"
        producer.produce(topic, value, f"\xff{number:018d}".encode()[:20].ljust(20), partition=partition)
    assert producer.flush(30) == 0
    return topic


def run_job(
    bootstrap: str, source: str, target: str, folder: Path, *, name: str = "A", stamp: str = "key",
    kills: int = KILLS, program: Sequence[str] = (sys.executable, "-m", "tests.support.job_process"),
) -> int:  # fmt: skip
    """Run the job to the end, killed and restarted several times.

    ``program`` takes the arguments of job_process.py. Returns how many of the kills hit the job while it was
    working.
    """
    rng = random.Random()
    watch = Consumer({"bootstrap.servers": bootstrap, "group.id": "watch"})
    partitions = watch.list_topics(target, timeout=10).topics[target].partitions

    def written() -> int:
        return sum(
            watch.get_watermark_offsets(TopicPartition(target, number), timeout=10)[1]
            for number in partitions
        )

    command = [*program, bootstrap, source, target, name, stamp, str(folder / f"{name}-{source}.json")]
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


def check_exact(published: Sequence[Message], found: Sequence[Message], partitions: int) -> None:
    """Check that every input record is in ``found`` once, on its partition and in order."""
    expected: dict[str, list[bytes]] = defaultdict(list)
    for message in published:
        expected[f"{message.topic()} {message.partition()}"].append(message.value() or b"")
    rows: dict[str, list[bytes]] = defaultdict(list)
    for message in found:
        topic, partition, _ = (message.value() or b"").decode().split()
        assert message.partition() == int(partition) % partitions
        rows[f"{topic} {partition}"].append(message.value() or b"")
    assert rows.keys() == expected.keys()
    for name, values in expected.items():
        if rows[name] != values:
            missing, extra = set(values) - set(rows[name]), len(rows[name]) - len(set(rows[name]))
            raise AssertionError(f"{name}: {len(missing)} missing {sorted(missing)[:3]}, {extra} too many")
