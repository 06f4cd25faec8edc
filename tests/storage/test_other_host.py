"""A service whose checkpoint is on another file system is killed or frozen; another host goes on.

Afterwards every record must be in exactly one topic, once, and in source order: `compare` checks each record.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from replayfilter.demo.check import compare
from replayfilter.demo.kafka_io import create_topic, publish, read_topic
from replayfilter.demo.stream import OUTPUTS, expected_routes, generate
from replayfilter.demo.walkthrough import PARTITIONS, write_config
from tests.support.interruption import Group
from tests.support.service_process import ServiceProcess, paced

pytestmark = [pytest.mark.spark, pytest.mark.storage, pytest.mark.slow]

RECORDS = 30_000  # more than are published before the takeover; the rest follows at the end
PER_SECOND = 200.0
REPLACED = 4  # exit code of a service that has been replaced


class Moved:
    """A service that moves from host to host, and its stream, slow until ``hurry`` is set."""

    def __init__(self, name: str, storage: str, bootstrap: str, folder: Path) -> None:
        self.name, self._storage, self._bootstrap, self._folder = name, storage, bootstrap, folder
        self.hurry, self._seed = Event(), int(time.time())
        self._stream = generate(RECORDS, end_ms=self._seed * 1000, seed=self._seed)
        for topic in (name, *(f"{name}.{route}" for route in OUTPUTS)):
            create_topic(bootstrap, topic, PARTITIONS)
        self.group = Group(bootstrap, name)

    def publish(self, aside: ThreadPoolExecutor) -> Future[None]:
        return aside.submit(publish, self._bootstrap, self.name, paced(self._stream, PER_SECOND, self.hurry))

    def host(self, host: str, batch_records: int, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The config of the service at another host: with folders of its own."""
        (folder := self._folder / host).mkdir()
        monkeypatch.setenv("TMPDIR", str(folder))
        config = write_config(folder, self._bootstrap, self.name, batch_records)
        text = config.read_text().replace(f"{folder}/checkpoint", f"{self._storage}/checkpoints/{self.name}")
        config.write_text(text)
        return config

    def await_delivery(self, service: ServiceProcess) -> None:
        """Wait until more records are delivered."""
        service.await_change(partial(self._has_moved, self.group.offsets()), every=0.05)

    def _has_moved(self, before: list[int]) -> bool:
        return self.group.offsets() != before

    def is_delivered(self) -> bool:
        """Whether all of the stream is delivered."""
        return sum(self.group.offsets()) == len(self._stream)

    def assert_exactly_once(self) -> None:
        self.group.close()
        outputs = {route: read_topic(self._bootstrap, f"{self.name}.{route}") for route in OUTPUTS}
        expected = expected_routes(self._stream, end_ms=self._seed * 1000)
        for verdict in compare(self._stream, expected, outputs).values():
            assert verdict.ok, f"seed {self._seed}, {verdict}"


@pytest.mark.timeout(900)
def test_a_killed_service_goes_on_at_another_host(
    storage: str,
    bootstrap: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    moved = Moved(f"moved-{storage.partition(':')[0]}", storage, bootstrap, tmp_path)
    with ThreadPoolExecutor(1) as aside:
        publishing = moved.publish(aside)
        try:
            with ServiceProcess(moved.host("a", 2_000, monkeypatch)) as service:
                moved.await_delivery(service)
                time.sleep(random.uniform(0, 1))
                service.kill(service.pids())
        finally:
            moved.hurry.set()
        publishing.result()
    config = moved.host("b", 10_000, monkeypatch)
    with ServiceProcess(config, "--once") as service:
        assert service.end() == 0, service.tail()
    moved.assert_exactly_once()
    if storage.startswith("s3a:"):
        requests = request.getfixturevalue("s3_server").requests_per_batch(f"checkpoints/{moved.name}")
        print(f"{requests:.1f} requests per batch")

    command = [sys.executable, "-m", "replayfilter", "state", str(config)]
    state = subprocess.run(command, capture_output=True, text=True, check=False)
    assert " keys in " in state.stdout, state.stdout + state.stderr


@pytest.mark.timeout(900)
def test_a_frozen_service_delivers_nothing_once_another_host_has_taken_over(
    hdfs: str, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = Moved("frozen-hdfs", hdfs, bootstrap, tmp_path)
    with ThreadPoolExecutor(1) as aside:
        publishing = moved.publish(aside)
        try:
            with ServiceProcess(moved.host("a", 2_000, monkeypatch)) as frozen:
                moved.await_delivery(frozen)
                pids = frozen.pids()
                for pid in pids:
                    os.kill(pid, signal.SIGSTOP)
                with ServiceProcess(moved.host("b", 10_000, monkeypatch)) as second:
                    second.await_batch()  # offsets may also move by what the first one had already sent
                    for pid in pids:
                        os.kill(pid, signal.SIGCONT)
                    assert frozen.end(60) == REPLACED, frozen.tail()
                    moved.hurry.set()
                    publishing.result()
                    second.await_change(moved.is_delivered)
                    second.process.send_signal(signal.SIGTERM)
                    assert second.end(60) == 0, second.tail()
        finally:
            moved.hurry.set()
    moved.assert_exactly_once()
