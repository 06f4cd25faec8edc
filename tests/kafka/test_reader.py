"""Bounded reads on a real broker: which records come, when a range is done, and what is reported."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from replayfilter.errors import BrokerError, ConfigError
from replayfilter.kafka.client_settings import client_settings
from replayfilter.kafka.reader import RangeReader, _runs, partition_of
from tests.support.topics import new_topic


def reader(bootstrap: str) -> RangeReader:
    return RangeReader(client_settings(bootstrap), "reader-test")


def offsets(messages: Iterable[Message]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for message in messages:
        found.setdefault(partition_of(message)[1], []).append(int(message.offset() or 0))
    return found


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    """Partitions 0 and 1 have 100 records each, partition 2 has none."""
    name = new_topic(bootstrap, "ranges", 3)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(200):
        producer.produce(name, str(number), partition=number % 2)
    assert producer.flush(20) == 0
    return name


def test_only_the_records_of_the_ranges_come_each_partition_in_order(bootstrap: str, topic: str) -> None:
    with reader(bootstrap) as consumer:
        found = offsets(consumer.read({(topic, 0): (10, 20), (topic, 1): (95, 100), (topic, 2): (0, 0)}))
    assert found == {0: list(range(10, 20)), 1: list(range(95, 100))}


def test_a_range_beyond_the_end_is_done_at_the_end(bootstrap: str, topic: str) -> None:
    with reader(bootstrap) as consumer:
        started = time.monotonic()
        assert offsets(consumer.read({(topic, 1): (98, 500), (topic, 2): (0, 500)})) == {1: [98, 99]}
        assert time.monotonic() - started < 10


def test_one_reader_reads_several_times_and_may_stop_early(bootstrap: str, topic: str) -> None:
    with reader(bootstrap) as consumer:
        assert next(consumer.read({(topic, 0): (0, 100)})).offset() == 0
        assert offsets(consumer.read({(topic, 0): (50, 53)})) == {0: [50, 51, 52]}
        assert offsets(consumer.read({(topic, 0): (7, 9)})) == {0: [7, 8]}


def test_the_first_records_of_each_range(bootstrap: str, topic: str) -> None:
    ranges = {(topic, 0): (5, 100), (topic, 1): (99, 100), (topic, 2): (0, 9)}
    with reader(bootstrap) as consumer:
        assert offsets(consumer.read(ranges, per_partition=2)) == {0: [5, 6], 1: [99]}
        assert offsets(consumer.read_available(ranges, 10, per_partition=1)) == {0: [5], 1: [99]}


def test_aborted_and_pending_records_and_markers_are_left_out(bootstrap: str) -> None:
    name = new_topic(bootstrap, "ranges-txn")
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(20)
    for commits in (True, False, True):  # offsets 0, 2 and 4; the markers are 1, 3 and 5
        producer.begin_transaction()
        producer.produce(name, b"x")
        producer.flush(20)
        producer.commit_transaction(20) if commits else producer.abort_transaction(20)
    producer.begin_transaction()
    producer.produce(name, b"pending")
    producer.flush(20)
    with reader(bootstrap) as consumer:
        deadline = time.monotonic() + 10
        while (found := offsets(consumer.read({(name, 0): (0, 7)}))) != {0: [0, 4]}:
            assert time.monotonic() < deadline, found  # the last marker may not be written yet
    producer.abort_transaction(20)


def test_a_deleted_start_is_an_error_or_skipped(bootstrap: str) -> None:
    name = new_topic(bootstrap, "ranges-deleted")
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(10):
        producer.produce(name, b"x")
    producer.flush(20)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(name, 0, 6)]).values():
        future.result(20)
    ranges = {(name, 0): (2, 10)}
    with reader(bootstrap) as consumer:
        with pytest.raises(BrokerError, match=rf"{name}-0 can't be read: .*; check that"):
            list(consumer.read(ranges))
        assert consumer.read_available(ranges, 5) == []
    with RangeReader(client_settings(bootstrap), "reader-test", offset_reset="earliest") as lenient:
        assert offsets(lenient.read(ranges)) == {0: [6, 7, 8, 9]}


def test_a_missing_topic(bootstrap: str) -> None:
    """The client reports nothing about it, so the limit on silence does."""
    ranges = {("no-such-topic", 0): (0, 1)}
    with reader(bootstrap) as consumer:
        with pytest.raises(BrokerError, match=r"from no-such-topic-0 for 2 s; .*that the topic exists"):
            list(consumer.read(ranges, silence_s=2))
        assert consumer.read_available(ranges, 1) == []


def test_a_broker_that_is_away_is_reported_after_the_limit() -> None:
    with reader("127.0.0.1:1") as consumer:
        with pytest.raises(BrokerError, match="nothing arrived from orders-0 for 1 s"):
            list(consumer.read({("orders", 0): (0, 1)}, silence_s=1))
        started = time.monotonic()
        assert consumer.read_available({("orders", 0): (0, 1)}, 0.5) == []
        assert time.monotonic() - started < 5


def test_settings_that_the_client_refuses() -> None:
    with pytest.raises(ConfigError, match=r"no\.such\.setting"):
        RangeReader({"bootstrap.servers": "127.0.0.1:1", "no.such.setting": "1"}, "reader-test")


def test_records_and_ends_of_partitions_in_one_poll() -> None:
    """A KafkaError raises TypeError when it is compared with None."""
    record = Message(topic="t", partition=0, offset=1, value=b"")
    end = Message(topic="t", partition=0, offset=2, error=KafkaError(KafkaError._PARTITION_EOF))
    runs = _runs([end, record, record, end])
    found = [(partition, error is None, len(run)) for partition, error, run in runs]
    assert found == [(("t", 0), False, 1), (("t", 0), True, 2), (("t", 0), False, 1)]
