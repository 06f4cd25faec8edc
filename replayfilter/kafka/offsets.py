"""The committed offsets of a consumer group: the next input offset of each partition."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from replayfilter.core.input_partition import InputPartition
from replayfilter.kafka.client_settings import Settings, refused_setting
from replayfilter.kafka.transactions import RETRY_S, LaneStats

_NOT_READY = {  # try again: the coordinator starts, moves or loads, or a commit is still pending
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


FIRST = "first"  # the text with an offset at which a service begins; it has delivered nothing before it
# What a read of stable offsets ends with while an open transaction may move them.
PENDING = {KafkaError._TIMED_OUT, KafkaError.UNSTABLE_OFFSET_COMMIT}


class Committed(NamedTuple):
    """A committed next offset, and the text that was committed with it."""

    offset: int
    metadata: str


class GroupOffsets:
    """Reads the committed offsets of one group.

    It keeps its consumer, since making one takes 50-100 ms. With ``stable`` a read waits until no open
    transaction contains offsets of these partitions; otherwise it returns those that are committed now.

    A consumer, not the admin client: while a coordinator loads, the admin client's call for committed
    offsets ends the process with a segmentation fault (librdkafka 2.16). Raises :class:`ConfigError` for
    settings that librdkafka refuses.
    """

    def __init__(self, settings: Settings, group: str, *, stable: bool = True) -> None:
        self.group = group
        reading: Settings = {
            "group.id": group,
            "isolation.level": "read_committed" if stable else "read_uncommitted",  # Kafka's RequireStable
            "enable.auto.commit": False,
            "retry.backoff.ms": 10,  # a pending commit takes about 10 ms; 100 is the default
            "log_level": 0,  # every failure is raised
        }
        try:
            self._consumer = Consumer(settings | reading)
        except KafkaException as error:
            raise refused_setting(error) from error
        self.metadata: Any = self._consumer.consumer_group_metadata()

    def read(
        self, partitions: Iterable[InputPartition], limit: float, stats: LaneStats | None = None
    ) -> dict[InputPartition, int]:
        """The group's next offsets; partitions that have none are left out. As :meth:`read_entries`."""
        return {at: entry.offset for at, entry in self.read_entries(partitions, limit, stats).items()}

    def read_entries(
        self, partitions: Iterable[InputPartition], limit: float, stats: LaneStats | None = None
    ) -> dict[InputPartition, Committed]:
        """The group's next offsets with their texts; partitions that have none are left out.

        Tries again for ``limit`` seconds while the group's coordinator isn't ready, and counts that in
        ``stats``. Raises KafkaException with the last error.
        """
        asked = [TopicPartition(topic, number) for topic, number in partitions]
        if not asked:
            return {}
        deadline = time.monotonic() + limit
        while True:
            failure: KafkaError | None
            try:
                found = self._consumer.committed(asked, timeout=max(0.1, deadline - time.monotonic()))
                failure = next((each.error for each in found if each.error), None)
            except KafkaException as error:
                failure = error.args[0]
            if failure is None:
                return {
                    (each.topic, each.partition): Committed(each.offset, each.metadata or "")
                    for each in found
                    if each.offset >= 0
                }
            if failure.code() not in _NOT_READY or time.monotonic() > deadline:
                raise KafkaException(failure)
            if stats is not None:
                stats.retries += 1
            time.sleep(RETRY_S)

    def close(self) -> None:
        """Close the consumer; no read may follow."""
        self._consumer.close()
