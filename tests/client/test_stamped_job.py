"""A job killed 15 times, then a plain filtering consumer: every record arrives once, in order."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from replayfilter import FilteringConsumer
from replayfilter.kafka.admin import Cluster
from tests.support.stamped_job import check_exact, fill, run_job
from tests.support.topics import new_topic, read_all


def read_filtered(bootstrap: str, topic: str, records: int, stamp: Any = "key") -> tuple[list[Message], int]:
    """The records that a filtering consumer returns, and the number of replays that it dropped."""
    settings = {"bootstrap.servers": bootstrap, "group.id": topic}
    found: list[Message] = []
    with FilteringConsumer(settings, stamp=stamp) as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 40
        while len(found) < records and time.monotonic() < deadline:
            found += consumer.consume(records - len(found), 1)
        found += consumer.consume(10_000, 1.5)
        return found, consumer.counts["replays"]


@pytest.mark.slow
@pytest.mark.parametrize(("partitions", "stamp"), [(4, "key"), (3, "key"), (8, "key"), (4, "header")])
def test_a_job_killed_15_times(bootstrap: str, tmp_path: Path, partitions: int, stamp: str) -> None:
    source = fill(bootstrap, "one", 4, 30_000)
    target = new_topic(bootstrap, "two", partitions)
    hit = run_job(bootstrap, source, target, tmp_path, stamp=stamp)
    found, replays = read_filtered(bootstrap, target, 30_000, stamp)
    check_exact(read_all(bootstrap, source), found, partitions)
    assert hit >= 12
    assert replays == len(read_all(bootstrap, target)) - 30_000 > 0


@pytest.mark.slow
def test_two_jobs_on_one_topic(bootstrap: str, tmp_path: Path) -> None:
    sources = [fill(bootstrap, "left", 4, 10_000), fill(bootstrap, "right", 3, 10_000)]
    target = new_topic(bootstrap, "both", 3)
    for source in sources:
        run_job(bootstrap, source, target, tmp_path, name="same-name", kills=5)
    found, replays = read_filtered(bootstrap, target, 20_000)
    check_exact(read_all(bootstrap, *sources), found, 3)
    assert replays > 0


@pytest.mark.slow
def test_an_upstream_topic_deleted_and_created_again(bootstrap: str, tmp_path: Path) -> None:
    """Its new records start at offset 0 again but are not replays: the pid depends on the topic's id."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

    source, target = fill(bootstrap, "remade", 2, 1_000), new_topic(bootstrap, "after", 2)
    run_job(bootstrap, source, target, tmp_path, kills=1)
    admin, cluster = AdminClient({"bootstrap.servers": bootstrap}), Cluster(bootstrap)
    admin.delete_topics([source])[source].result(20)
    while cluster.topics([source]):
        time.sleep(0.1)
    cluster.create({source: 2})
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(400):
        producer.produce(source, f"{source} {number % 2} {10_000 + number // 2}", partition=number % 2)
    producer.flush()
    (tmp_path / f"A-{source}.json").unlink()  # the job starts from the beginning too
    run_job(bootstrap, source, target, tmp_path, kills=1)
    found, _ = read_filtered(bootstrap, target, 1_400)
    assert len({m.value() for m in found}) == len(found) == 1_400
