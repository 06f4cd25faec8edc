"""What readers get of a Spark job's stamped records when the broker is away for too long for its producer."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from replayfilter import ReplayFilter
from replayfilter.devbroker import DevBroker
from tests.support.outage_job import LANES_TIMEOUT_MS, STOCK_TIMEOUT_MS
from tests.support.stamped_job import check_exact, fill
from tests.support.topics import new_topic, read_all, stamp_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(500)]


def run_with_an_outage(broker: DevBroker, folder: Path, source: str, target: str, sink: str) -> str:
    """Run the job; once it has written something, the broker is away until its producer gives up records.

    Returns what the job printed.
    """
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "watch", "log_level": 0}
    watch = Consumer(settings | {"isolation.level": "read_uncommitted"})

    def written() -> int:
        """The records in the target topic, also those of open transactions."""
        ends = [watch.get_watermark_offsets(TopicPartition(target, n), timeout=10)[1] for n in (0, 1)]
        return sum(ends)

    command = [sys.executable, "-m", "tests.support.outage_job"]
    command += [broker.bootstrap, str(folder), source, target, sink]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        while not written():
            assert job.poll() is None, job.communicate()[0]
            time.sleep(0.005)
        broker.kill()
        time.sleep((STOCK_TIMEOUT_MS if sink == "stock" else LANES_TIMEOUT_MS + 2_000) / 1000)
        broker.restart()
        output, _ = job.communicate(timeout=300)
    finally:
        job.kill()
        job.wait()
        watch.close()
    assert job.returncode == 0, output
    return output


def without_replays(messages: list[Message]) -> list[Message]:
    """What a reader that filters replays lets pass."""
    keep: dict[int | None, ReplayFilter] = defaultdict(ReplayFilter)
    return [message for message in messages if keep[message.partition()].accept(stamp_of(message))]


def test_write_stamped_loses_nothing(tmp_path: Path) -> None:
    with DevBroker() as broker:
        source, target = fill(broker.bootstrap, "raw", 2, 400_000), new_topic(broker.bootstrap, "stamped", 2)
        output = run_with_an_outage(broker, tmp_path, source, target, "lanes")
        assert "failed:" in output, "the outage hit no transaction"
        print(output[output.index("failed:") :])
        published, found = read_all(broker.bootstrap, source), read_all(broker.bootstrap, target)
    check_exact(published, found, 2)
    assert len(without_replays(found)) == len(found)


def test_the_stock_sink_loses_what_its_producer_gave_up(tmp_path: Path) -> None:
    """The reason for ``write_stamped``; if this fails, Spark's sink has become better."""
    with DevBroker() as broker:
        source, target = fill(broker.bootstrap, "raw", 2, 1_200), new_topic(broker.bootstrap, "stamped", 2)
        output = run_with_an_outage(broker, tmp_path, source, target, "stock")
        assert "failed:" in output
        published, found = read_all(broker.bootstrap, source), read_all(broker.bootstrap, target)
    passed = without_replays(found)
    values = {message.value() for message in published}
    lost = values - {message.value() for message in passed}
    print(f"{len(values)} records, {len(found)} written, {len(passed)} pass, {len(lost)} lost")
    assert {message.value() for message in found} == values
    assert lost
