"""How far a service was when it was killed: its consumer group, and the phase of its last batch."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from replayfilter.demo.walkthrough import PARTITIONS
from tests.support.service_process import Checkpoint

_LOADING = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)


class Group:
    """The service's consumer group: how far each input partition has been delivered."""

    def __init__(self, bootstrap: str, name: str) -> None:
        # With read_committed, it would wait for the transactions that the killed service left open.
        settings = {"bootstrap.servers": bootstrap, "group.id": name, "isolation.level": "read_uncommitted"}
        self._consumer, self.name = Consumer(settings), name

    def offsets(self) -> list[int]:
        """The next offset of each input partition; 0 for none yet."""
        asked = [TopicPartition(self.name, partition) for partition in range(PARTITIONS)]
        deadline = time.monotonic() + 30
        while True:
            try:
                return [max(0, at.offset) for at in self._consumer.committed(asked, timeout=30)]
            except KafkaException as error:  # a new broker's coordinator takes a while
                if error.args[0].code() not in _LOADING or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def close(self) -> None:
        self._consumer.close()


def interrupted_phase(checkpoint: Checkpoint, group: Group) -> str:
    """What the kill interrupted, according to Spark's logs and the delivered offsets."""
    batch = checkpoint.started()
    if batch == checkpoint.committed():
        return "no batch in flight"
    end = checkpoint.end_offsets(batch).get(group.name, {})
    start = checkpoint.end_offsets(batch - 1).get(group.name, {}) if batch else {}
    work = [p for p in range(PARTITIONS) if end.get(str(p), 0) > start.get(str(p), 0)]
    delivered = [p for p in work if group.offsets()[p] >= end[str(p)]]
    if not delivered:
        return "batch in flight, nothing delivered"
    if len(delivered) < len(work):
        return "batch in flight, part of it delivered"
    return "batch delivered, not committed"
