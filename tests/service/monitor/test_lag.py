"""Lag against a real broker: transaction markers, waiting times, and what Spark has finished."""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # not in its stubs

from replayfilter.core.input_partition import InputPartition
from replayfilter.core.rules import Rules
from replayfilter.devbroker import DevBroker
from replayfilter.formats import KeySpec
from replayfilter.kafka.admin import Cluster
from replayfilter.service.monitor.lag_poller import LagPoller
from replayfilter.service.monitor.status import Phase, Status
from replayfilter.spark.pipeline_settings import PipelineSettings
from tests.support.batches import batch
from tests.support.service_process import wait_for

NAMES = itertools.count()


class Clock:
    """A clock that the test sets."""

    now = 5_000.0

    def __call__(self) -> float:
        return self.now


def poller_on(
    broker: DevBroker, partitions: int = 2, finished: dict[int, int] | None = None
) -> tuple[LagPoller, Status, Clock, str]:
    """A poller for a new topic; it is not started."""
    name = f"lag{next(NAMES)}"
    Cluster(broker.bootstrap).create({name: partitions})
    settings = PipelineSettings(
        service=name, checkpoint="", bootstrap=broker.bootstrap, topics=(name,), outputs={}, output_pids={},
        keys=KeySpec("json", ("id",), "ts", "ms"), rules=Rules(period=1, span=1), shards=1, lanes=1,
    )  # fmt: skip
    status, clock = Status(name, 120.0, {}, 5_000.0), Clock()
    done: dict[InputPartition, int] = {(name, part): end for part, end in (finished or {}).items()}
    return LagPoller(settings, status, done, print, clock), status, clock, name


def write(
    broker: DevBroker, topic: str, count: int, transactional: bool = False, timestamp: int = 4_990_000
) -> None:
    """Write records to partition 0."""
    settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap}
    producer = Producer(settings | ({"transactional.id": topic} if transactional else {}))
    if transactional:
        producer.init_transactions()
        producer.begin_transaction()
    for _ in range(count):
        producer.produce(topic, b"{}", partition=0, timestamp=timestamp)
    producer.commit_transaction() if transactional else producer.flush(20)


def commit(broker: DevBroker, group: str, offset: int) -> None:
    """Commit for partition 0."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(group, 0, offset)], asynchronous=False)
    consumer.close()


def lags(poller: LagPoller) -> list[tuple[int, int, float | None]]:
    return [(lag.next, lag.records, lag.seconds) for lag in poller.lags()]


def test_a_record_waits_since_its_timestamp_or_since_its_arrival(broker: DevBroker) -> None:
    poller, _, clock, name = poller_on(broker)
    write(broker, name, 10)
    assert lags(poller) == [(0, 10, 10.0), (0, 0, 0.0)], "written before the first poll: since its timestamp"
    clock.now = 5_030.0
    write(broker, name, 5)
    assert lags(poller) == [(0, 15, 40.0), (0, 0, 0.0)]
    commit(broker, name, 10)
    clock.now = 5_037.0
    assert lags(poller) == [(10, 5, 7.0), (0, 0, 0.0)], "seen to arrive at 5030"
    commit(broker, name, 15)
    assert lags(poller) == [(15, 0, 0.0), (0, 0, 0.0)]


def test_a_marker_at_the_end_does_not_count_once_spark_has_finished_it(broker: DevBroker) -> None:
    poller, status, _, name = poller_on(broker)
    write(broker, name, 3, transactional=True)
    commit(broker, name, 3)
    assert poller.lags()[0].records == 1, "the marker's offset, which no group commits"
    done = batch(0, 5_001.0, unique=3)
    done.ends[name] = {0: 4, 1: 0}
    status.add_batch(done)
    assert [lag.records for lag in poller.lags()] == [0, 0]


def test_after_a_start_the_finished_offsets_come_from_the_checkpoint(broker: DevBroker) -> None:
    poller, _, _, name = poller_on(broker, finished={0: 4, 1: 0})
    write(broker, name, 3, transactional=True)
    commit(broker, name, 3)
    assert [lag.records for lag in poller.lags()] == [0, 0]


def test_records_of_an_open_transaction_do_not_count(broker: DevBroker) -> None:
    poller, _, _, name = poller_on(broker)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"{name}-open"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, b"{}", partition=0)
    producer.flush(20)
    assert poller.lags()[0].records == 0
    producer.commit_transaction()
    assert poller.lags()[0].records == 2


def test_records_behind_an_open_transaction_are_held_back_since_it_was_seen(broker: DevBroker) -> None:
    poller, _, clock, name = poller_on(broker)

    def held_back() -> list[tuple[int, float]]:
        return [(lag.held_back, lag.held_back_seconds) for lag in poller.lags()]

    write(broker, name, 3)
    assert held_back() == [(0, 0.0), (0, 0.0)], "records that wait for the service are not held back"
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"{name}-other"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, b"{}", partition=0)
    producer.flush(20)
    assert held_back() == [(1, 0.0), (0, 0.0)]
    write(broker, name, 10)
    clock.now += 30
    found = poller.lags()[0]
    assert (found.records, found.held_back, found.held_back_seconds) == (3, 11, 30.0)
    producer.commit_transaction()
    wait_for(lambda: held_back() == [(0, 0.0), (0, 0.0)], 30, "the transaction has ended")
    producer.begin_transaction()
    producer.produce(name, b"{}", partition=0)
    producer.flush(20)
    clock.now += 30
    assert held_back() == [(1, 0.0), (0, 0.0)], "another transaction"
    producer.abort_transaction()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_poller_reports_when_kafka_stops_answering_and_recovers() -> None:
    with DevBroker() as own, ExitStack() as held:
        poller, status, clock, name = poller_on(own)
        write(own, name, 4)
        status.enter(Phase.RUNNING, clock.now)
        held.enter_context(poller)
        deadline = time.monotonic() + 30
        while status.waiting != 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert status.waiting == 4
        own.kill()
        while not status.kafka_error and time.monotonic() < deadline + 60:
            time.sleep(0.1)
        assert status.kafka_error
        own.restart()
        write(own, name, 3)
        deadline = time.monotonic() + 60
        while status.waiting != 7 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert (status.waiting, status.kafka_error) == (7, "")


def test_partitions_that_are_added_later_have_a_lag(broker: DevBroker) -> None:
    poller, _, _, name = poller_on(broker, partitions=1)
    assert len(poller.lags()) == 1
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(name, 3)])[name].result(20)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(name, b"{}", partition=2)
    assert producer.flush(20) == 0
    assert [(lag.partition, lag.records) for lag in poller.lags()] == [(0, 0), (1, 0), (2, 1)]
