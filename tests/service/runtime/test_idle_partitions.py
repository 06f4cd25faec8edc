"""Partitions that get no records have a committed offset all the same, and keep it."""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from replayfilter import devbroker
from replayfilter.demo.kafka_io import publish, read_topic
from replayfilter.demo.stream import Record
from replayfilter.devbroker import DevBroker
from replayfilter.kafka.admin import Cluster
from tests.support.replay_service import prepare_replay_service
from tests.support.service_process import Checkpoint, ServiceProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NAME, TOPIC = "idle", "idle.in"
RETENTION = "offsets.retention.minutes=1\noffsets.retention.check.interval.ms=1000\n"


class Idle:
    """A service that reads two partitions, and records that are unique by their values."""

    def __init__(self, folder: Path, bootstrap: str, starting: str) -> None:
        self.bootstrap, self.cluster = bootstrap, Cluster(bootstrap)
        self.cluster.create({TOPIC: 2})
        self.config = prepare_replay_service(folder, bootstrap, NAME, TOPIC, 2, "none")
        text = self.config.read_text().replace("[replay]", "[replay]\nenabled = false")
        self.config.write_text(text.replace("[input]", f'[input]\nstarting = "{starting}"'))
        self.checkpoint = folder / NAME

    def publish(self, partition: int, values: Iterable[int]) -> None:
        """Write records to a partition."""
        texts = (b"%d-%d" % (partition, value) for value in values)
        records = (Record(partition, -1, b"k" + text, text, 1_700_000_000_000, [], "") for text in texts)
        publish(self.bootstrap, TOPIC, records)

    def committed(self) -> dict[int, int]:
        """The group's offset of each partition."""
        found = self.cluster.committed(NAME, [(TOPIC, 0), (TOPIC, 1)], stable=False)
        return {number: offset for (_, number), offset in found.items()}

    def stop(self, service: ServiceProcess) -> None:
        """End the service as an operator does."""
        service.process.send_signal(signal.SIGTERM)
        assert service.end(60) == 0, service.tail()

    def delivered(self) -> Counter[bytes | None]:
        """How often each value can be read."""
        return Counter(record.value for record in read_topic(self.bootstrap, f"{NAME}.unique"))


def expected(*parts: tuple[int, range]) -> dict[bytes, int]:
    """Each value once."""
    return {b"%d-%d" % (partition, value): 1 for partition, values in parts for value in values}


@pytest.fixture
def own_broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[DevBroker]:
    """A broker that deletes offsets after a minute."""
    monkeypatch.setattr(devbroker, "_SERVER", devbroker._SERVER + RETENTION)
    with DevBroker() as running:
        yield running


@pytest.mark.timeout(600)
def test_from_committed_goes_on_in_an_idle_partition(bootstrap: str, tmp_path: Path) -> None:
    idle = Idle(tmp_path, bootstrap, "latest")
    idle.publish(0, range(100))
    with ServiceProcess(idle.config) as service:
        service.await_change(lambda: Checkpoint(idle.checkpoint).committed() >= 0)
        idle.publish(1, range(50))
        service.await_change(lambda: idle.committed().get(1, 0) >= 50)
        idle.stop(service)
    shutil.rmtree(idle.checkpoint)
    idle.publish(0, range(100, 120))
    with ServiceProcess(idle.config, "--once", "--from-committed") as service:
        assert service.end() == 0, service.tail()
    assert idle.delivered() == expected((1, range(50)), (0, range(100, 120)))


@pytest.mark.timeout(600)
def test_offsets_of_an_idle_partition_do_not_expire(own_broker: DevBroker, tmp_path: Path) -> None:
    idle = Idle(tmp_path, own_broker.bootstrap, "earliest")
    idle.publish(0, range(100))
    with ServiceProcess(idle.config) as service:
        service.await_change(lambda: idle.committed().get(0, 0) >= 100)
        for number in range(80):
            idle.publish(1, [number])
            time.sleep(1)
        service.await_change(lambda: idle.committed().get(1, 0) >= 80)
        idle.stop(service)
    idle.publish(0, range(100, 110))
    with ServiceProcess(idle.config, "--once") as service:
        assert service.end() == 0, service.tail()
    assert idle.delivered() == expected((0, range(110)), (1, range(80)))
