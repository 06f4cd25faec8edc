"""Topics for tests on the shared broker: created under unique names, and read back completely."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from replayfilter.core.stamp import STAMP_HEADER, Stamp
from replayfilter.kafka.admin import Cluster

_number = itertools.count()


def new_topic(bootstrap: str, name: str, partitions: int = 1, **config: str) -> str:
    """A new topic whose name begins with ``name``; in ``config``, underscores stand for dots."""
    topic = f"{name}-{os.getpid()}-{next(_number)}"
    if config:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(30)
    Cluster(bootstrap).create({topic: partitions})  # waits until the topic can be written to
    return topic


def read_all(bootstrap: str, *topics: str, seconds: float = 60) -> list[Message]:
    """All that a read_committed consumer sees of these topics; the records of a partition are in order.

    It has its own read loop, so that the tests don't check the project's reader with itself.
    """
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
        left = {
            (topic, number)
            for topic in topics
            for number in consumer.list_topics(topic, timeout=10).topics[topic].partitions
        }
        consumer.assign([TopicPartition(topic, number, 0) for topic, number in left])
        found, deadline = [], time.monotonic() + seconds
        while left:
            assert time.monotonic() < deadline, f"the end of these partitions was not reached: {left}"
            for message in consumer.consume(5_000, timeout=0.2):
                error = message.error()
                if error is None:
                    found.append(message)
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left.discard((str(message.topic()), int(message.partition() or 0)))
        return found
    finally:
        consumer.close()


def stamp_of(message: Message, where: str = "key") -> Stamp | None:
    """The stamp in a message's key, or in its last stamp header."""
    found: Any = message.key() if where == "key" else dict(message.headers() or []).get(STAMP_HEADER)
    return Stamp.from_bytes(found)
