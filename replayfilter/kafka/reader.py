"""Reading stretches of a topic's partitions, as a read_committed reader sees them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from replayfilter.errors import BrokerError
from replayfilter.kafka.chunk import InputPartition
from replayfilter.kafka.client_settings import Settings

SILENCE_SECONDS = 60.0
AT_ONCE = 10_000


def read_ranges(settings: Settings, ranges: Mapping[InputPartition, tuple[int, int]]) -> Iterator[Message]:
    """The records with offsets in [start, end) of each partition, those of one partition in their order.

    ``settings``: of a consumer, without a group. Raises BrokerError if nothing comes for a minute.
    """
    waiting = {source: end for source, (start, end) in ranges.items() if start < end}
    if not waiting:
        return
    reading: Settings = {
        "group.id": "replayfilter-verify",  # a consumer must have one; nothing is committed to it
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "log_level": 0,
    }
    consumer = Consumer(settings | reading)
    try:
        consumer.assign([TopicPartition(*source, ranges[source][0]) for source in waiting])
        heard = time.monotonic()
        while waiting:
            for message in consumer.consume(AT_ONCE, 0.5):
                heard = time.monotonic()
                source = str(message.topic()), int(message.partition() or 0)
                if source not in waiting:
                    continue
                error = message.error()
                if error is None and int(message.offset() or 0) < waiting[source]:
                    yield message
                    if int(message.offset() or 0) + 1 < waiting[source]:
                        continue
                elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise BrokerError(f"{source[0]}-{source[1]} can't be read: {error.str()}; try again")
                del waiting[source]
                consumer.incremental_unassign([TopicPartition(*source)])
            if time.monotonic() - heard > SILENCE_SECONDS:
                names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(waiting)[:5])
                raise BrokerError(
                    f"nothing came from {names} for {SILENCE_SECONDS:.0f} s; is a transaction open there, or "
                    "a broker away? try again"
                )
    finally:
        consumer.close()
