"""``redrive --execute`` killed again and again: the same command continues, and nothing is written twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from replayfilter.core.replay.marks import ReplayFilter
from replayfilter.core.stamp import Stamp
from replayfilter.kafka.admin import Cluster
from tests.support.service_process import wait_for
from tests.support.topics import new_topic, read_all, stamp_of

RECORDS, PARTITIONS, KILLS = 40_000, 4, 4
SEED = 20_251_122


def kill_after(command: list[str], written: Callable[[], int], target: int) -> None:
    """Start the command, and kill it once so many records are written."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        wait_for(lambda: written() >= target or process.poll() is not None, 60, "no progress", 0.002)
        assert process.poll() is None, process.communicate()[0]
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_in_the_middle_and_started_again(bootstrap: str, tmp_path: Path) -> None:
    topic = new_topic(bootstrap, "redrive-kill", PARTITIONS)
    error = new_topic(bootstrap, "redrive-kill.error", PARTITIONS)
    config = tmp_path / "service.toml"
    config.write_text(
        f'[service]\nname = "{topic}"\ncheckpoint = "{tmp_path}"\n[kafka]\nbootstrap = "{bootstrap}"\n'
        f'[input]\ntopics = ["{topic}"]\n[dedup]\nenabled = false\n'
        f'[output]\nunique = "{topic}.unique"\nerror = "{error}"\n'
    )
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(RECORDS):
        headers = [("rf-reason", b"empty"), ("__connect.errors.topic", topic.encode())]
        place = ("__connect.errors.partition", b"%d" % (number % PARTITIONS))
        key = Stamp(77, number % PARTITIONS, number).to_bytes()
        producer.produce(error, b"%d" % number, key, number % PARTITIONS, headers=[*headers, place])
        producer.poll(0)
    assert producer.flush(60) == 0

    command = [sys.executable, "-m", "replayfilter", "redrive", str(config), "--execute"]
    cluster, chance = Cluster(bootstrap), random.Random(SEED)
    places = [(topic, number) for number in range(PARTITIONS)]

    def written() -> int:
        return sum(cluster.written_ends(places).values())

    was_open = 0
    for _ in range(KILLS):
        before = written()
        kill_after(command, written, before + chance.randrange(500, 8_000))
        was_open += written() > sum(cluster.end_offsets(places).values())
    assert was_open, "no kill was in the middle of a transaction"
    last = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert last.returncode == 0, last.stderr
    assert f"this job: {RECORDS:,} records written" in last.stdout

    found = read_all(bootstrap, topic)
    assert Counter(int(message.value() or b"") for message in found) == Counter(range(RECORDS))
    by_partition: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    replays = ReplayFilter()
    for message in found:
        by_partition[int(message.partition() or 0)].append(int(message.value() or b""))
        stamp = stamp_of(message)
        assert stamp is not None
        assert stamp.pid != 77
        assert replays.accept(stamp)
    for number, values in by_partition.items():
        assert values == list(range(number, RECORDS, PARTITIONS)), "in order, where they came from"
