"""The membership of the group on a real broker: Kafka takes offsets only from whoever joined last."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.queues import Queue

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from replayfilter.errors import BrokerError, DeliveryError, ServiceReplaced
from replayfilter.kafka import lanes as lanes_module
from replayfilter.kafka import membership as module
from replayfilter.kafka.client_settings import Settings
from replayfilter.kafka.lanes import Lanes
from replayfilter.kafka.membership import Membership
from replayfilter.kafka.transactions import commit, send_offsets
from tests.support.lane_service import PARTITIONS, LaneService
from tests.support.service_process import wait_for

SPAWN = multiprocessing.get_context("spawn")


class Drivers:
    """The drivers of one service, each with the lanes of one worker."""

    def __init__(self, service: LaneService, running: ExitStack) -> None:
        self.service, self._running = service, running

    def start(self) -> tuple[Membership, Lanes]:
        """A driver that has joined the group, and lanes that carry its membership."""
        settings: Settings = {"bootstrap.servers": self.service.bootstrap, "heartbeat.interval.ms": 300}
        driver = self._running.enter_context(Membership(settings, self.service.name, [self.service.name]))
        lanes = self.service.lanes()
        lanes.join(driver.current())
        self._running.callback(lanes.close)
        return driver, lanes


@pytest.fixture
def service(bootstrap: str) -> LaneService:
    return LaneService(bootstrap)


@pytest.fixture
def drivers(service: LaneService) -> Iterator[Drivers]:
    with ExitStack() as running:
        yield Drivers(service, running)


def test_the_driver_that_joins_last_replaces_the_first(drivers: Drivers, service: LaneService) -> None:
    first, early = drivers.start()
    service.deliver(early, 0, 0, 10)
    partition = service.partitions(0)[0]
    begun = early.open(1, service.partitions(1))
    service.write(begun, 1, 0, 10)

    second, late = drivers.start()
    with pytest.raises(ServiceReplaced, match="another service named"):  # in a lane that nobody else takes
        begun.commit(dict.fromkeys(service.partitions(1), 10))
    with pytest.raises(ServiceReplaced):  # with the producer that it kept
        early.open(0, [partition])
    wait_for(lambda: first._replaced, 5, "the first driver doesn't notice")
    with pytest.raises(ServiceReplaced):
        first.current()
    second.check()
    for lane in (0, 1):
        service.deliver(late, lane, 0, 20)
    service.assert_exactly(20)


def test_offsets_that_were_accepted_before_are_waited_for(drivers: Drivers, service: LaneService) -> None:
    """The first service commits while the second one, with other lanes, is about to read the offsets."""
    _, early = drivers.start()
    partitions = service.partitions(0)
    begun = early.open(7, partitions)  # a lane that the second service hasn't got
    service.write(begun, 0, 0, 20)
    owner = begun._get_owner().producer
    send_offsets(owner, dict.fromkeys(partitions, 20), early.membership, begun.stats)
    owner.flush(20)
    _, late = drivers.start()
    finishing = threading.Timer(1.0, lambda: commit(owner, begun.stats))
    finishing.start()
    started = time.monotonic()
    stats = service.deliver(late, 0, 0, 30)
    assert time.monotonic() - started > 0.9
    assert (stats.written, stats.skipped) == (20, 40)
    finishing.join()
    service.assert_exactly(30, lanes=(0,))


def test_the_error_says_that_a_transaction_may_be_open(
    drivers: Drivers, service: LaneService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_module, "STEP_LIMIT_S", 0.5)
    _, early = drivers.start()
    partitions = service.partitions(0)
    begun = early.open(7, partitions)
    begun._begin()
    send_offsets(begun._get_owner().producer, dict.fromkeys(partitions, 20), early.membership, begun.stats)
    _, late = drivers.start()
    with pytest.raises(DeliveryError, match=r"left a transaction open"):
        late.open(0, partitions)
    begun.abort()
    service.deliver(late, 0, 0, 30)
    service.assert_exactly(30, lanes=(0,))


def test_new_partitions_need_a_new_membership(
    drivers: Drivers, service: LaneService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFRESH_MS", 200)
    driver, lanes = drivers.start()
    before = driver.current()
    service.deliver(lanes, 0, 0, 10)
    admin = AdminClient({"bootstrap.servers": service.bootstrap})
    admin.create_partitions([NewPartitions(service.name, PARTITIONS + 1)])[service.name].result(10)
    wait_for(lambda: driver.has_changed(before), 10, "the new partition isn't noticed")
    with pytest.raises(DeliveryError, match="generation"):
        service.deliver(lanes, 1, 0, 10)
    lanes.join(driver.current())
    for lane in (0, 1):
        service.deliver(lanes, lane, 0, 20)
    service.assert_exactly(20)


def hold(bootstrap: str, service: str, events: Queue[str]) -> None:
    """A driver in a process of its own; says what happens to its membership."""
    settings: Settings = {
        "bootstrap.servers": bootstrap,
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 500,
    }
    with Membership(settings, service, [service]) as driver:
        first = driver.current()
        events.put("joined")
        while not driver.has_changed(first):
            try:
                driver.check()
            except ServiceReplaced:
                events.put("replaced")
                return
            time.sleep(0.05)
        driver.ask()
        events.put("joined again")


@pytest.mark.parametrize(("others", "outcome"), [(True, "replaced"), (False, "joined again")])
def test_a_driver_that_was_frozen_for_longer_than_its_session(
    drivers: Drivers, service: LaneService, others: bool, outcome: str
) -> None:
    events: Queue[str] = SPAWN.Queue()
    frozen = SPAWN.Process(target=hold, args=(service.bootstrap, service.name, events))
    frozen.start()
    assert events.get(timeout=60) == "joined"
    assert frozen.pid is not None
    os.kill(frozen.pid, signal.SIGSTOP)
    second = drivers.start() if others else None
    time.sleep(9)
    os.kill(frozen.pid, signal.SIGCONT)
    assert events.get(timeout=30) == outcome
    frozen.join(30)
    if second is not None:
        driver, lanes = second
        time.sleep(2)
        driver.ask()
        service.deliver(lanes, 0, 0, 10)


def test_a_group_that_cannot_be_joined_is_a_broker_error() -> None:
    unreachable = Membership({"bootstrap.servers": "127.0.0.1:1"}, "nobody", ["nothing"])
    with unreachable, pytest.raises(BrokerError, match='could not join its consumer group "nobody"'):
        unreachable.current(limit=0.5)
