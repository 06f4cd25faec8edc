"""Refusals: records that Kafka would not take, told in words that name the record and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaError, Message

from replayfilter.errors import DeliveryError
from replayfilter.kafka.chunk import Chunk, InputPartition

_AFTERMATH = {  # dropped because another record failed, or because the producer lost its lane
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
    KafkaError._UNKNOWN_PARTITION: "start the service again, so that it counts the topic's partitions anew",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "let the service's principal write to the topic",
}


class Refusals:
    """The first record of a transaction that was refused; the others only follow from it.

    Knows no producer: the reports of records in flight hold it, and a producer that holds itself
    through them would never go.
    """

    def __init__(self) -> None:
        self._first: str | None = None

    def add(
        self,
        source: InputPartition,
        offset: int | None,
        topic: str,
        number: int,
        size: int,
        fault: KafkaError,
    ) -> None:
        """Note a refused record; ``size`` is bytes of key and value, ``offset`` None if it isn't known."""
        if self._first is None and fault.code() not in _AFTERMATH:
            remedy = _REMEDIES.get(fault.code(), "check that the topic's brokers are up")
            place = "?" if offset is None else offset
            self._first = (
                f"Kafka refused the record from {source[0]}[{source[1]}] offset {place} for {topic}[{number}]"
                f" ({size} bytes of key and value): {fault.str()}; {remedy}, then try the task again"
            )

    def report_on(self, run: Chunk) -> Callable[[KafkaError | None, Message], None]:
        """The delivery report of a whole run: one callable for all rows, as one each costs 1 us."""
        return partial(self._find, run)

    def raise_first(self) -> None:
        """Raise :class:`DeliveryError` if a record was refused."""
        if self._first is not None:
            raise DeliveryError(self._first)

    def _find(self, run: Chunk, fault: KafkaError | None, message: Message) -> None:
        if fault is None or self._first is not None or fault.code() in _AFTERMATH:
            return
        topic, number = message.topic() or "?", message.partition() or 0
        key, value = message.key(), message.value()
        sent = (topic, number, key, value)  # the report of a failed record has no timestamp
        offset = next((row[0] for row in run.rows() if row[1:5] == sent), None)
        self.add(run.source, offset, topic, number, len(key or b"") + len(value or b""), fault)
