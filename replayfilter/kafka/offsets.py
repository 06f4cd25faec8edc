"""A consumer group's committed offsets: how far each input partition was delivered."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from replayfilter.errors import DeliveryError
from replayfilter.kafka.chunk import InputPartition
from replayfilter.kafka.client_settings import Settings
from replayfilter.kafka.transactions import RETRY_S, LaneStats

_NOT_READY = {  # asked again: the coordinator moves, loads, or a commit is still pending
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
}


class GroupOffsets:
    """Reads the offsets of ``group`` with one consumer, which is kept: making one costs 50-100 ms.

    Raises KafkaException for settings that librdkafka refuses.
    """

    def __init__(self, settings: Settings, group: str) -> None:
        self.group = group
        self._consumer = Consumer(
            settings
            | {
                "group.id": group,
                "isolation.level": "read_committed",  # asks for stable offsets: waits for pending commits
                "enable.auto.commit": False,
                "retry.backoff.ms": 10,  # a pending commit takes about 10 ms; 100 is the default
                "log_level": 0,  # what fails is raised in words; it has no poll to hand a log out
            }
        )
        self.metadata: Any = self._consumer.consumer_group_metadata()

    def read(
        self, sources: Iterable[InputPartition], stats: LaneStats, limit: float
    ) -> dict[InputPartition, int]:
        """The group's stable next offsets, 0 where nothing was ever committed; waits for pending commits."""
        asked = [TopicPartition(topic, number) for topic, number in sources]
        if not asked:
            return {}
        deadline = time.monotonic() + limit
        while True:
            fault: KafkaError | None
            try:
                answers = self._consumer.committed(asked, timeout=max(0.1, deadline - time.monotonic()))
                fault = next((answer.error for answer in answers if answer.error), None)
            except KafkaException as error:
                fault = error.args[0]
            if fault is None:
                return {(answer.topic, answer.partition): max(answer.offset, 0) for answer in answers}
            if fault.code() not in _NOT_READY or time.monotonic() > deadline:
                raise DeliveryError(
                    f"the committed offsets of group {self.group!r} could not be read for {len(asked)} "
                    f"input partitions: {fault.str()}; check that the broker is up and that the group may be "
                    "read, then try the task again"
                )
            stats.retries += 1
            time.sleep(RETRY_S)
