"""The stamping producer on a real broker: what it writes, what it refuses, and how it handles failures."""

from __future__ import annotations

import os
import re
import time
import warnings
from itertools import groupby
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from replayfilter.client.pids import pid_for_topic
from replayfilter.client.producer import PartitionsChanged, StampingProducer
from replayfilter.core.stamp import STAMP_HEADER, Stamp, partition_for, producer_id
from replayfilter.devbroker import DevBroker
from replayfilter.errors import BrokerError, ConfigError, DeliveryError, ReplayfilterError, StampError
from replayfilter.kafka.admin import Cluster
from tests.support.topics import new_topic, read_all, stamp_of

PID = -77


def settings(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap}


@pytest.mark.parametrize("where", ["key", "header"])
@pytest.mark.parametrize("sources", [1, 4, 7])
def test_each_record_has_its_stamp_and_lies_in_source_order(bootstrap: str, where: Any, sources: int) -> None:
    topic = new_topic(bootstrap, "stamped", 3)
    own = b"user" if where == "header" else None
    with StampingProducer(settings(bootstrap), topic, PID, stamp=where) as producer:
        for offset in range(0, 400, 2):
            for partition in range(sources):
                value = f"{partition}:{offset}"
                producer.produce(partition, offset, value, own, timestamp_ms=1_000 + offset)
    found = read_all(bootstrap, topic)
    assert len(found) == 200 * sources
    for message in found:
        stamp = stamp_of(message, where)
        assert stamp is not None
        assert stamp.pid == PID
        assert message.value() == f"{stamp.partition}:{stamp.offset}".encode()
        assert message.partition() == stamp.partition % 3 == partition_for(stamp.partition, 3)
        assert message.timestamp()[1] == 1_000 + stamp.offset
        assert where == "key" or message.key() == b"user"
    by_source = sorted(found, key=lambda m: (stamp_of(m, where) or Stamp(0, 0, 0)).partition)  # stable
    for _, rows in groupby(by_source, key=lambda m: stamp_of(m, where).partition):  # type: ignore[union-attr]
        assert [stamp_of(m, where).offset for m in rows] == list(range(0, 400, 2))  # type: ignore[union-attr]


def test_a_stamp_header_from_before_is_replaced_and_others_stay(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "headers")
    with StampingProducer(settings(bootstrap), topic, PID, stamp="header") as producer:
        producer.produce(0, 5, b"v", b"k", [("a", b"1"), (STAMP_HEADER, b"old"), ("a", None)])
    (message,) = read_all(bootstrap, topic)
    assert message.headers() == [("a", b"1"), ("a", None), (STAMP_HEADER, Stamp(PID, 0, 5).to_bytes())]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable.idempotence", False),
        ("enable.idempotence", "false"),
        ("acks", 1),
        ("acks", "0"),
        ("request.required.acks", 1),
        ("retries", 0),
        ("max.in.flight", 6),
        ("max.in.flight.requests.per.connection", "many"),
        ("enable.gapless.guarantee", False),
        ("queuing.strategy", "lifo"),
        ("message.timeout.ms", 300_000),
        ("delivery.timeout.ms", "1"),
        ("transactional.id", "mine"),
    ],
)
def test_settings_that_reorder_or_lose_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape(name)) as caught:
        StampingProducer({"bootstrap.servers": "127.0.0.1:1", name: value}, "t", PID)
    assert len(caught.value.errors) == 1
    assert repr(value) in caught.value.errors[0]


def test_all_errors_are_reported_at_once_and_safe_values_pass(bootstrap: str) -> None:
    with pytest.raises(ConfigError) as caught:
        StampingProducer({"acks": 1, "enable.idempotence": False}, "t", PID)
    assert len(caught.value.errors) == 2
    safe = {"acks": "-1", "enable.idempotence": "true", "max.in.flight": 5, "linger.ms": 0}
    StampingProducer(settings(bootstrap) | safe, new_topic(bootstrap, "safe"), PID).flush()


def test_offsets_that_go_back_are_refused_until_a_replay_is_announced(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "back")
    producer = StampingProducer(settings(bootstrap), topic, PID)
    producer.produce(0, 7, b"a")
    producer.produce(1, 3, b"b")
    with pytest.raises(StampError, match="offset 6 after 7 goes back"):
        producer.produce(0, 6, b"c")
    with pytest.raises(StampError, match="offset 7 was written already"):
        producer.produce(0, 7, b"c")
    producer.begin_replay(0)
    producer.produce(0, 6, b"c")
    with pytest.raises(StampError, match="goes back"):
        producer.produce(1, 2, b"d")
    producer.begin_replay()
    producer.produce(1, 0, b"d")
    producer.produce(0, 5, b"e")
    with pytest.raises(StampError, match="goes back"):
        producer.produce(0, 4, b"f")
    producer.flush()
    assert [m.value() for m in read_all(bootstrap, topic)] == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize(("partition", "offset"), [(1 << 31, 0), (0, 1 << 63)])
def test_numbers_that_do_not_fit_are_refused(bootstrap: str, partition: int, offset: int) -> None:
    producer = StampingProducer(settings(bootstrap), new_topic(bootstrap, "wide"), PID)
    with pytest.raises(StampError, match="out of range"):
        producer.produce(partition, offset, b"")
    with pytest.raises(StampError, match="out of range"):
        StampingProducer(settings(bootstrap), "t", 1 << 63)


def test_a_failed_record_stops_all_later_ones_so_that_none_overtakes_it(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "oversize", max_message_bytes="2000")
    producer = StampingProducer(settings(bootstrap) | {"linger.ms": 0}, topic, PID)
    for offset in range(5):
        producer.produce(0, offset, b"x")
    producer.flush()
    producer.produce(0, 5, b"x" * 5_000)
    with pytest.raises(DeliveryError, match="last checkpoint"):  # noqa: PT012
        for offset in range(6, 10_000):
            producer.produce(0, offset, b"x")
            producer.poll(0.001)
    with pytest.raises(DeliveryError):
        producer.flush()
    with pytest.raises(DeliveryError):
        producer.produce(0, 10_000, b"x")
    assert [stamp_of(m).offset for m in read_all(bootstrap, topic)] == list(range(5))  # type: ignore[union-attr]


@pytest.mark.parametrize("transactional_id", [None, "small-batches"])
def test_batches_are_no_larger_than_the_topic_takes(bootstrap: str, transactional_id: str | None) -> None:
    topic = new_topic(bootstrap, "small-batches", max_message_bytes="20000")
    producer = StampingProducer(settings(bootstrap), topic, PID, transactional_id=transactional_id)
    with producer.transaction() if transactional_id else producer:
        for offset in range(200):
            producer.produce(0, offset, os.urandom(1_000))
    assert len(read_all(bootstrap, topic)) == 200


def test_a_record_too_large_for_the_client_is_refused_alone(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "too-large")
    producer = StampingProducer(settings(bootstrap) | {"message.max.bytes": 2_000}, topic, PID)
    producer.produce(0, 1, b"x")
    with pytest.raises(DeliveryError, match="offset 2 is refused before it is sent"):
        producer.produce(0, 2, b"x" * 5_000)
    producer.produce(0, 2, b"y")  # nothing was written, so a smaller record may take its place
    producer.flush()
    assert [m.value() for m in read_all(bootstrap, topic)] == [b"x", b"y"]


@pytest.mark.slow
def test_an_outage_only_delays_and_no_record_overtakes_another() -> None:
    with DevBroker() as own:
        topic = new_topic(own.bootstrap, "outage")
        producer = StampingProducer(settings(own.bootstrap) | {"linger.ms": 0, "log_level": 0}, topic, PID)
        producer.produce(0, 0, b"x")
        producer.flush()
        own.kill()
        for offset in range(1, 200):
            producer.produce(0, offset, b"x")
        with pytest.raises(DeliveryError, match=r"\d+ records are not acknowledged after 2 s"):
            producer.flush(2)
        own.start()
        for offset in range(200, 400):
            producer.produce(0, offset, b"x")
        producer.flush()
        written = [stamp_of(m).offset for m in read_all(own.bootstrap, topic)]  # type: ignore[union-attr]
        assert written == list(range(400))


def test_a_flush_that_does_not_finish_raises(bootstrap: str) -> None:
    producer = StampingProducer(settings(bootstrap) | {"linger.ms": 900}, new_topic(bootstrap, "late"), PID)
    for offset in range(100_000):
        producer.produce(0, offset, b"x" * 100)
    with pytest.raises(DeliveryError, match=r"\d+ records are not acknowledged after 0 s"):
        producer.flush(0)
    producer.flush()


def test_a_full_queue_only_delays(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "full")
    with StampingProducer(settings(bootstrap) | {"queue.buffering.max.messages": 10}, topic, PID) as producer:
        for offset in range(300):
            producer.produce(0, offset, b"x")
    assert len(read_all(bootstrap, topic)) == 300


def test_every_delivery_is_reported_to_the_callback(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "reports", 2)
    reports: list[tuple[KafkaError | None, Message]] = []
    done = lambda error, message: reports.append((error, message))  # noqa: E731
    with StampingProducer(settings(bootstrap), topic, PID, on_delivery=done) as producer:
        for offset in range(500):
            producer.produce(offset % 2, offset, b"x")
    assert all(error is None for error, _ in reports)
    assert {message.key() for _, message in reports} == {Stamp(PID, n % 2, n).to_bytes() for n in range(500)}


def test_more_partitions_cause_a_warning_that_may_be_made_an_error(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "grows", 2)
    producer = StampingProducer(settings(bootstrap), topic, PID)
    producer.produce(2, 1, b"before")
    admin = AdminClient(settings(bootstrap))
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(10)
    deadline = time.monotonic() + 10
    while Cluster(bootstrap).topics([topic])[topic].partitions < 3:
        assert time.monotonic() < deadline
    with warnings.catch_warnings(), pytest.raises(PartitionsChanged):  # noqa: PT012
        warnings.simplefilter("error")
        producer.refresh()
    assert producer.partitions == 2
    producer._refresh_due = producer._maintenance_due = 0.0  # as if half a minute had passed
    with pytest.warns(PartitionsChanged, match=r"has 3 partitions now, it had 2.*replays"):
        producer.produce(2, 2, b"after")
    producer.flush()
    assert {m.value(): m.partition() for m in read_all(bootstrap, topic)} == {b"before": 0, b"after": 2}


def test_a_transaction_is_visible_completely_or_not_at_all(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "txn")
    producer = StampingProducer(settings(bootstrap), topic, PID, transactional_id=topic)
    with producer.transaction():
        producer.produce(0, 1, b"a")
    with pytest.raises(ZeroDivisionError), producer.transaction():  # noqa: PT012
        producer.produce(0, 2, b"lost")
        raise ZeroDivisionError
    with producer.transaction():
        producer.produce(0, 2, b"b")  # does not go back, since the aborted record was never written
    with pytest.raises(StampError, match="go into"):
        producer.produce(0, 3, b"c")
    assert [m.value() for m in read_all(bootstrap, topic)] == [b"a", b"b"]


@pytest.mark.slow
def test_a_block_that_fails_right_after_produce_leaves_a_good_producer(bootstrap: str) -> None:
    topic, sources = new_topic(bootstrap, "txn-aborts", 6), range(6)
    for number in range(40):
        producer = StampingProducer(
            settings(bootstrap) | {"linger.ms": number % 2 * 5},
            topic,
            PID,
            transactional_id=f"{topic}-{number % 5}",
        )
        for _ in range(3):
            with pytest.raises(ZeroDivisionError), producer.transaction():  # noqa: PT012
                for source in sources:
                    producer.produce(source, number, b"lost" * 500)
                time.sleep(number % 3 * 0.002)
                raise ZeroDivisionError
        with producer.transaction():
            for source in sources:
                producer.produce(source, number, b"kept")
    assert [message.value() for message in read_all(bootstrap, topic)] == [b"kept"] * 6 * 40


def test_a_transaction_commits_the_consumers_offsets_with_it(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "txn-offsets")
    consumer = Consumer(settings(bootstrap) | {"group.id": topic})
    producer = StampingProducer(settings(bootstrap), topic, PID, transactional_id=topic)
    with producer.transaction([TopicPartition(topic, 0, 41)], consumer.consumer_group_metadata()):
        producer.produce(0, 40, b"a")
    assert consumer.committed([TopicPartition(topic, 0)], timeout=10)[0].offset == 41
    consumer.close()


def test_a_record_that_fails_in_a_transaction_aborts_it_and_ends_the_producer(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "txn-fails", max_message_bytes="2000")
    producer = StampingProducer(settings(bootstrap), topic, PID, transactional_id=topic)
    with pytest.raises(DeliveryError), producer.transaction():
        producer.produce(0, 1, b"x" * 5_000)
    with pytest.raises(DeliveryError), producer.transaction():
        producer.produce(0, 1, b"shorter")
    again = StampingProducer(settings(bootstrap), topic, PID, transactional_id=topic)
    with again.transaction():
        again.produce(0, 1, b"shorter")
    assert [m.value() for m in read_all(bootstrap, topic)] == [b"shorter"]


def test_a_second_producer_of_the_same_transactional_id_fences_the_first(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "txn-fenced")
    first = StampingProducer(settings(bootstrap) | {"log_level": 0}, topic, PID, transactional_id=topic)
    with first.transaction():
        first.produce(0, 1, b"a")
    second = StampingProducer(settings(bootstrap), topic, PID, transactional_id=topic)
    with pytest.raises(DeliveryError), first.transaction():
        first.produce(0, 2, b"b")
    with second.transaction():
        second.produce(0, 2, b"c")
    assert [m.value() for m in read_all(bootstrap, topic)] == [b"a", b"c"]


def test_the_errors_name_what_is_wrong(bootstrap: str) -> None:
    with pytest.raises(BrokerError, match="no-such-topic"):
        StampingProducer(settings(bootstrap), "no-such-topic", PID)
    with pytest.raises(ReplayfilterError, match=r"no\.such\.setting"):
        StampingProducer(settings(bootstrap) | {"no.such.setting": 1}, "t", PID)
    with (
        pytest.raises(StampError, match="transactional_id"),
        StampingProducer(settings(bootstrap), new_topic(bootstrap, "plain"), PID).transaction(),
    ):
        pass


def test_a_topic_created_again_has_another_pid(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "remade")
    admin = AdminClient(settings(bootstrap))
    first = pid_for_topic(bootstrap, topic, "job")
    assert first == pid_for_topic(admin, topic, "job")
    cluster = Cluster(bootstrap)
    assert first == producer_id(cluster.id, cluster.topics([topic])[topic].id, "job")
    assert first != pid_for_topic(bootstrap, topic, "other job")
    admin.delete_topics([topic])[topic].result(10)
    deadline = time.monotonic() + 10
    while cluster.topics([topic]):
        assert time.monotonic() < deadline
    cluster.create({topic: 1})
    assert pid_for_topic(admin, topic, "job") != first
    with pytest.raises(BrokerError, match="no topic 'nowhere'"):
        pid_for_topic(bootstrap, "nowhere", "job")
