"""Refusals: records that Kafka did not accept, with messages that name the record and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaError, Message

from replayfilter.core.input_partition import InputPartition
from replayfilter.errors import DeliveryError
from replayfilter.kafka.chunk import Chunk

_CONSEQUENCES = {  # the record was dropped because another one failed, or because the lane was lost
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError._FATAL,
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
}
_REMEDIES = {
    KafkaError.MSG_SIZE_TOO_LARGE: "raise max.message.bytes of the topic (and max.request.size in "
    "[kafka.options] above 32 MB)",
    KafkaError.INVALID_TIMESTAMP: "raise message.timestamp.after.max.ms of the topic",
    KafkaError._UNKNOWN_TOPIC: "create the topic (`replayfilter topics CONFIG`)",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "create the topic (`replayfilter topics CONFIG`)",
    KafkaError._UNKNOWN_PARTITION: "start the service again, so that it counts the topic's partitions again",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "let the service's principal write to the topic",
}


class Refusals:
    """The first refused record of a transaction; later ones are only its consequences.

    It must not refer to the producer. Delivery callbacks of records in flight refer to this object, so a
    reference back would keep the producer alive for ever.
    """

    def __init__(self, lane: int | None = None) -> None:
        self._lane = lane
        self._first: str | None = None

    def add(
        self,
        input_partition: InputPartition,
        offset: int | None,
        topic: str,
        partition: int,
        size: int,
        error: KafkaError,
    ) -> None:
        """Note a refused record for an output ``topic`` and ``partition``.

        ``offset`` is its input offset, None if unknown; ``size`` is the bytes of key and value.
        """
        if self._first is None and error.code() not in _CONSEQUENCES:
            remedy = _REMEDIES.get(error.code(), "check that the topic's brokers are up")
            shown_offset = "?" if offset is None else offset
            self._first = (
                f"Kafka refused the record from {input_partition[0]}[{input_partition[1]}] offset "
                f"{shown_offset} for {topic}[{partition}] ({size} bytes of key and value): {error.str()}; "
                f"{remedy}, then try the task again"
            )

    def callback_for(self, chunk: Chunk) -> Callable[[KafkaError | None, Message], None]:
        """The delivery callback of all records of a chunk; one object per record would cost 1 us each."""
        return partial(self._delivered, chunk)

    def raise_first(self) -> None:
        """Raise :class:`DeliveryError` if a record was refused."""
        if self._first is not None:
            raise DeliveryError(self._first, self._lane)

    def _delivered(self, chunk: Chunk, error: KafkaError | None, message: Message) -> None:
        if error is None or self._first is not None or error.code() in _CONSEQUENCES:
            return
        topic, partition = message.topic() or "?", message.partition() or 0
        key, value = message.key(), message.value()
        sent = (topic, partition, key, value)  # the message of a failed record has no timestamp
        offset = next((row[0] for row in chunk.rows() if row[1:5] == sent), None)
        size = len(key or b"") + len(value or b"")
        self.add(chunk.input_partition, offset, topic, partition, size, error)
