"""Two services of one name with different numbers of lanes: the one that started last delivers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from replayfilter.demo.kafka_io import publish, read_topic
from replayfilter.demo.stream import Record
from replayfilter.devbroker import DevBroker
from replayfilter.kafka.admin import Cluster
from tests.support.replay_service import prepare_replay_service
from tests.support.service_process import ServiceProcess, paced, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NAME, TOPIC, PARTITIONS = "twice", "twice.in", 4
PER_SECOND = 1_000.0
# What a frozen service has begun may hold the next one back for as long as its transaction lasts.
TIMEOUTS = '[kafka.options]\n"transaction.timeout.ms" = "30000"\n"delivery.timeout.ms" = "20000"\n'
REPLACED = 4


def numbered() -> Iterator[Record]:
    """Records without stamps, which all are unique."""
    number = 0
    while True:
        value = b"%d" % number
        yield Record(number % PARTITIONS, -1, b"k" + value, value, 1_700_000_000_000, [], "")
        number += 1


def until(ended: threading.Event, records: Iterator[Record], published: list[bytes]) -> Iterator[Record]:
    """The records until the event is set; their values are added to ``published``."""
    for record in records:
        if ended.is_set():
            return
        published.append(record.value or b"")
        yield record


class Hosts:
    """A broker, a stream that is published all the time, and hosts that have a checkpoint each."""

    def __init__(self, folder: Path, running: ExitStack) -> None:
        self.folder, self.running = folder, running
        self.bootstrap = running.enter_context(DevBroker()).bootstrap
        self.cluster = Cluster(self.bootstrap)
        self.cluster.create({TOPIC: PARTITIONS})
        self.published: list[bytes] = []
        self._ended = threading.Event()
        stream = until(self._ended, paced(numbered(), PER_SECOND), self.published)
        aside = running.enter_context(ThreadPoolExecutor(1))
        running.callback(self._ended.set)
        self._publishing = aside.submit(publish, self.bootstrap, TOPIC, stream)

    def start(self, host: str, lanes: int, *arguments: str) -> ServiceProcess:
        """Start the service on a host, which has the given number of lanes."""
        (folder := self.folder / host).mkdir()
        config = prepare_replay_service(folder, self.bootstrap, NAME, TOPIC, PARTITIONS, "none")
        text = config.read_text().replace("[kafka]", f"shards = {lanes}\n[kafka]")
        config.write_text(text.replace("[replay]", "[replay]\nenabled = false") + TIMEOUTS)
        return self.running.enter_context(ServiceProcess(config, *arguments))

    def delivered(self) -> int:
        """How many records the group has behind it."""
        inputs = [(TOPIC, number) for number in range(PARTITIONS)]
        return sum(self.cluster.committed(NAME, inputs, stable=False).values())

    def finish(self, service: ServiceProcess) -> None:
        """End the stream, wait until all of it is delivered, and stop the service."""
        self._ended.set()
        self._publishing.result()
        service.await_change(lambda: self.delivered() >= len(self.published))
        service.process.send_signal(signal.SIGTERM)
        assert service.end(60) == 0, service.tail()

    def assert_exactly_once(self) -> None:
        """Each published record can be read once."""
        found = Counter(record.value for record in read_topic(self.bootstrap, f"{NAME}.unique"))
        twice = sum(count > 1 for count in found.values())
        missing = len(self.published) - len(found)
        assert (twice, missing) == (0, 0), f"of {len(self.published)}: {twice} twice, {missing} missing"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with ExitStack() as running:
        yield Hosts(tmp_path, running)


@pytest.mark.timeout(600)
def test_the_service_that_started_first_ends(hosts: Hosts) -> None:
    first = hosts.start("a", 4)
    first.await_change(lambda: hosts.delivered() > 2_000)
    second = hosts.start("b", 2, "--from-committed")
    wait_for(lambda: first.process.poll() is not None, 60, f"both work\n{second.tail()}")
    at_end = hosts.delivered()
    assert first.process.returncode == REPLACED, first.tail()
    assert f'another service named "{NAME}" has started' in first.tail()
    second.await_change(lambda: hosts.delivered() > at_end + 2_000)
    hosts.finish(second)
    hosts.assert_exactly_once()


@pytest.mark.timeout(600)
def test_a_frozen_service_commits_nothing_once_another_has_taken_over(hosts: Hosts) -> None:
    frozen = hosts.start("a", 4)
    frozen.await_change(lambda: hosts.delivered() > 2_000)
    pids = frozen.pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    second = hosts.start("b", 3, "--from-committed")
    at_freeze = hosts.delivered()
    second.await_change(lambda: hosts.delivered() > at_freeze + 5_000)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert frozen.end(60) == REPLACED, frozen.tail()
    time.sleep(2)
    hosts.finish(second)
    hosts.assert_exactly_once()
