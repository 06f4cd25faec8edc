"""Topics for tests on the run's broker: made under names of their own, and read back whole."""

from __future__ import annotations

import itertools
import os
import time

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from replayfilter.core.stamp import STAMP_HEADER, Stamp
from replayfilter.kafka.admin import Cluster

_number = itertools.count()


def new_topic(bootstrap: str, name: str, partitions: int = 1, **config: str) -> str:
    """A new topic, whose name begins with ``name``; ``config`` with underscores for the dots."""
    topic = f"{name}-{os.getpid()}-{next(_number)}"
    if config:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(30)
    Cluster(bootstrap).create({topic: partitions})  # waits until a topic can be written to
    return topic


def read_all(bootstrap: str, topic: str, seconds: float = 60) -> list[Message]:
    """What a read_committed reader sees of a topic, each partition in its order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "read-all",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    try:
        left = set(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
        found, deadline = [], time.monotonic() + seconds
        while left:
            assert time.monotonic() < deadline, f"{topic}: not at the end of partitions {left}"
            for message in consumer.consume(5_000, timeout=0.2):
                error = message.error()
                if error is None:
                    found.append(message)
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left.discard(message.partition())
        return found
    finally:
        consumer.close()


def stamp_of(message: Message, where: str = "key") -> Stamp | None:
    """The stamp in a message's key, or in its last header of that name."""
    if where == "key":
        return Stamp.from_bytes(message.key())
    return Stamp.from_bytes(dict(message.headers() or []).get(STAMP_HEADER))
