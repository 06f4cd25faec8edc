"""Publishes the demo's stream and reads the output topics back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in its stubs

from replayfilter.demo.check import ConsumerRecord
from replayfilter.demo.stream import Headers, Record
from replayfilter.errors import BrokerError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.client_settings import client_settings
from replayfilter.kafka.reader import RangeReader

FLUSH_SECONDS = 60.0


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """Create a topic with one replica and wait until it exists. Raises BrokerError if Kafka refuses."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    try:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(timeout=30)
    except KafkaException as error:
        reason = error.args[0].str()
        raise BrokerError(f"topic {topic} can't be created on {bootstrap}: {reason}") from error


def publish(bootstrap: str, topic: str, records: Iterable[Record]) -> None:
    """Write the records in the given order, each to its partition. Raises BrokerError unless all arrive."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 3,  # no warnings about the first request, which a broker that just started delays
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
    left = producer.flush(FLUSH_SECONDS)
    if failed or left:
        reason = failed[0].str() if failed else f"no acknowledgement for {left} records"
        raise BrokerError(f"the stream can't be published to {topic} on {bootstrap}: {reason}")


def read_topic(bootstrap: str, topic: str) -> list[ConsumerRecord]:
    """Return all records of a topic that a read_committed consumer sees: partition by partition, in order.

    Raises BrokerError if the topic doesn't exist or can't be read.
    """
    cluster = Cluster(bootstrap)
    found = cluster.topics([topic])
    if topic not in found:
        raise BrokerError(f"there is no topic {topic!r} at {bootstrap}; correct its name")
    partitions = [(topic, number) for number in range(found[topic].partitions)]
    begins, ends = cluster.beginning_offsets(partitions), cluster.end_offsets(partitions)
    ranges = {partition: (begins[partition], ends[partition]) for partition in partitions}
    with RangeReader(client_settings(bootstrap), "replayfilter-demo") as reader:
        records = [_consumer_record(message) for message in reader.read(ranges)]
    return sorted(records, key=lambda record: record.partition)  # partitions arrive interleaved


def _consumer_record(message: Message) -> ConsumerRecord:
    headers = cast("Headers", message.headers() or [])
    partition, time_ms = int(message.partition() or 0), message.timestamp()[1]
    return ConsumerRecord(partition, message.key(), message.value(), time_ms, headers)
