"""Lag against a real broker: transactions' markers, waiting since when, and what Spark has finished."""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from replayfilter.core.clock.expiry import Rules
from replayfilter.devbroker import DevBroker
from replayfilter.formats import KeySpec
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.chunk import InputPartition
from replayfilter.service.monitor.lag import LagWatch
from replayfilter.service.monitor.status import Phase, Status
from replayfilter.spark.pipeline_settings import PipelineSettings
from tests.service.monitor.test_status import batch

NAMES = itertools.count()


class Clock:
    """The time is what a test says."""

    now = 5_000.0

    def __call__(self) -> float:
        return self.now


def watch_on(
    broker: DevBroker, partitions: int = 2, finished: dict[int, int] | None = None
) -> tuple[LagWatch, Status, Clock, str]:
    """A watch, not started, on a new topic."""
    name = f"lag{next(NAMES)}"
    Cluster(broker.bootstrap).create({name: partitions})
    settings = PipelineSettings(
        service=name, checkpoint="", bootstrap=broker.bootstrap, topics=(name,), outputs={}, pids={},
        keys=KeySpec("json", ("id",), "ts", "ms"), rules=Rules(period=1, span=1), shards=1, lanes=1,
    )  # fmt: skip
    status, clock = Status(name, 120.0, {}, 5_000.0), Clock()
    done: dict[InputPartition, int] = {(name, part): end for part, end in (finished or {}).items()}
    return LagWatch(settings, {name: partitions}, status, done, print, clock), status, clock, name


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


def lags(watch: LagWatch) -> list[tuple[int, int, float | None]]:
    return [(lag.next, lag.records, lag.seconds) for lag in watch.lags()]


def test_waiting_since_the_record_s_timestamp_or_its_arrival(broker: DevBroker) -> None:
    watch, _, clock, name = watch_on(broker)
    write(broker, name, 10)
    assert lags(watch) == [(0, 10, 10.0), (0, 0, 0.0)], "there before the watch: by its timestamp"
    clock.now = 5_030.0
    write(broker, name, 5)
    assert lags(watch) == [(0, 15, 40.0), (0, 0, 0.0)]
    commit(broker, name, 10)
    clock.now = 5_037.0
    assert lags(watch) == [(10, 5, 7.0), (0, 0, 0.0)], "seen to arrive at 5030"
    commit(broker, name, 15)
    assert lags(watch) == [(15, 0, 0.0), (0, 0, 0.0)]


def test_a_marker_at_the_end_does_not_wait_once_spark_is_through(broker: DevBroker) -> None:
    watch, status, _, name = watch_on(broker)
    write(broker, name, 3, transactional=True)
    commit(broker, name, 3)
    assert watch.lags()[0].records == 1, "the marker's offset, which no group commits"
    done = batch(0, 5_001.0, unique=3)
    done.ends[name] = {0: 4, 1: 0}
    status.batch(done)
    assert [lag.records for lag in watch.lags()] == [0, 0]


def test_after_a_start_the_checkpoint_says_what_spark_was_through_with(broker: DevBroker) -> None:
    watch, _, _, name = watch_on(broker, finished={0: 4, 1: 0})
    write(broker, name, 3, transactional=True)
    commit(broker, name, 3)
    assert [lag.records for lag in watch.lags()] == [0, 0]


def test_an_open_transaction_does_not_wait(broker: DevBroker) -> None:
    watch, _, _, name = watch_on(broker)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"{name}-open"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, b"{}", partition=0)
    producer.flush(20)
    assert watch.lags()[0].records == 0
    producer.commit_transaction()
    assert watch.lags()[0].records == 2


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_thread_says_when_kafka_is_silent_and_goes_on_when_it_is_back() -> None:
    with DevBroker() as own, ExitStack() as held:
        watch, status, clock, name = watch_on(own)
        write(own, name, 4)
        status.enter(Phase.RUNNING, clock.now)
        held.enter_context(watch)
        deadline = time.monotonic() + 30
        while status.waiting != 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert status.waiting == 4
        own.kill()
        while not status.kafka_fault and time.monotonic() < deadline + 60:
            time.sleep(0.1)
        assert status.kafka_fault
        own.restart()
        write(own, name, 3)
        deadline = time.monotonic() + 60
        while status.waiting != 7 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert (status.waiting, status.kafka_fault) == (7, "")
