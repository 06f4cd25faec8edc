"""Refusals: records that Kafka did not accept, with messages that name the record and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaError, Message

from replayfilter.core.input_partition import InputPartition
from replayfilter.errors import DeliveryError
from replayfilter.kafka.chunk import Chunk, Headers

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
_BATCH_REMEDY = (
    "the topic's max.message.bytes is lower than at the last start; start again, so that it is read again, "
    "or set batch.size in [kafka.options] to it"
)
_FRAMING_BYTES = 100  # at most: what a batch of one record has besides its key, value and headers


class Refusals:
    """The first refused record of a transaction; later ones are only its consequences.

    ``largest_batch``: the bytes up to which the producer fills a batch. This object must not refer to the
    producer: delivery callbacks of records in flight refer to it, so a reference back would keep the producer
    alive for ever.
    """

    def __init__(self, largest_batch: int, lane: int | None = None) -> None:
        self._largest_batch, self._lane = largest_batch, lane
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

        ``offset`` is its input offset, None if unknown; ``size`` is the bytes of key, value and headers.
        """
        if self._first is None and error.code() not in _CONSEQUENCES:
            remedy = _REMEDIES.get(error.code(), "check that the topic's brokers are up")
            shown_offset = "?" if offset is None else offset
            record = f"the record from {input_partition[0]}[{input_partition[1]}] offset {shown_offset}"
            refused = f"{record} for {topic}[{partition}] ({size} bytes of key, value and headers)"
            fits_a_batch = size + _FRAMING_BYTES <= self._largest_batch
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE and fits_a_batch:
                refused = (
                    f"a batch of up to {self._largest_batch} bytes for {topic}[{partition}], with {record}"
                )
                remedy = _BATCH_REMEDY
            self._first = f"Kafka refused {refused}: {error.str()}; {remedy}, then try the task again"

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
        offset, headers = next(((row[0], row[6]) for row in chunk.rows() if row[1:5] == sent), (None, None))
        self.add(chunk.input_partition, offset, topic, partition, size_of(key, value, headers), error)


def size_of(key: bytes | None, value: bytes | None, headers: Headers | None) -> int:
    """The bytes of a record's key, value and headers."""
    in_headers = sum(len(name) + len(content or b"") for name, content in headers or ())
    return len(key or b"") + len(value or b"") + in_headers
