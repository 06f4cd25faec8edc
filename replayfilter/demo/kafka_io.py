"""Publishing the demo's stream and reading the output topics back."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in its stubs

from replayfilter.demo.check import Found
from replayfilter.demo.stream import Headers, Record
from replayfilter.errors import BrokerError

READ_SECONDS = 60.0


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """Create a topic of one replica and wait until it is there; BrokerError if that is refused."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    try:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(timeout=30)
    except KafkaException as error:
        reason = error.args[0].str()
        raise BrokerError(f"The topic {topic} can't be created on {bootstrap}: {reason}") from error


def publish(bootstrap: str, topic: str, records: Iterable[Record]) -> None:
    """Write the records, each to its partition and in the given order; BrokerError unless all arrive."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 3,  # a broker that has just started lets the first request wait; no news
        }
    )
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    for number, record in enumerate(records):
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            partition=record.partition,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
            on_delivery=delivered,
        )
        if number % 1_000 == 0:
            producer.poll(0)
    left = producer.flush(READ_SECONDS)
    if failed or left:
        reason = failed[0].str() if failed else f"no answer for {left} records"
        raise BrokerError(f"The stream could not be published to {topic} on {bootstrap}: {reason}")


def read_topic(bootstrap: str, topic: str) -> list[Found]:
    """All records of a topic that a read_committed reader sees, partition by partition, each in its order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo-check",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        return _read_to_end(consumer, topic, set(partitions))
    finally:
        consumer.close()


def _read_to_end(consumer: Consumer, topic: str, unfinished: set[int]) -> list[Found]:
    found: list[Found] = []
    deadline = time.monotonic() + READ_SECONDS
    while unfinished:
        if time.monotonic() > deadline:
            raise BrokerError(f"Reading {topic} took over {READ_SECONDS:.0f} s; is a transaction still open?")
        for message in consumer.consume(10_000, timeout=0.2):
            error = message.error()
            if error is None:
                found.append(_found(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard(_partition(message))
            else:
                raise BrokerError(f"{topic} can't be read: {error.str()}")
    return sorted(found, key=lambda record: record.partition)  # brokers answer for partitions in any order


def _found(message: Message) -> Found:
    headers = cast(Headers, message.headers() or [])
    return Found(_partition(message), message.key(), message.value(), message.timestamp()[1], headers)


def _partition(message: Message) -> int:
    return cast(int, message.partition())
