"""The producer that the code under test gets: the calls of confluent-kafka, on the model of the broker.

Each request has two points, before and after it takes effect, so that a process can die, freeze or lose its
connection on either side. After a lost connection a request fails although it may have taken effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from replayfilter.core.input_partition import InputPartition
from tests.sim import world
from tests.sim.broker import Broker, Record, failure

Settings = Mapping[str, Any]
_Answer = TypeVar("_Answer")
QUEUE = 7  # records that a producer queues before it raises BufferError
SESSION_S = 45.0
DELIVERY_S = 120.0  # a record in a transaction that isn't written by then has failed
_LOST = (
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
)


def request(name: str, effect: Callable[[Broker], _Answer], limit: float = 60.0) -> _Answer:
    """Send a request, with its points; raises a timeout while the process has no connection."""
    sim = world.running()
    sim.point(f"{name}: before")
    _check_connection(limit)
    answer = effect(sim.broker)
    sim.point(f"{name}: after")
    _check_connection(limit)
    return answer


def _check_connection(limit: float) -> None:
    sim = world.running()
    cut = max(sim.process.cut_until, sim.away_until) - sim.clock
    if cut > 0:
        sim.sleep(min(cut, limit))
        raise failure(KafkaError._TIMED_OUT, retriable=True)


class SimProducer:
    """A producer, with a transactional id or without."""

    def __init__(self, settings: Settings, logger: object = None) -> None:
        self._name = settings.get("transactional.id", "")
        self._owner: tuple[int, int] | None = None
        self._queue: list[tuple[InputPartition, Record, Any]] = []
        self._state = "new"  # ready, open, ending
        self._fatal: KafkaError | None = None
        self._broken = False  # a record failed: only abort helps

    def init_transactions(self, timeout: float = -1) -> None:
        self._raise_fatal()
        sim, until = world.running(), world.running().clock + 60.0
        while (owner := request("init", lambda broker: broker.init(self._name))) is None:
            sim.sleep(0.02)  # CONCURRENT_TRANSACTIONS
            if sim.clock > until:
                raise failure(KafkaError._TIMED_OUT, retriable=True)
        self._owner, self._state = owner, "ready"

    def begin_transaction(self) -> None:
        self._raise_fatal()
        if self._state != "ready":
            raise failure(KafkaError._STATE)
        world.running().point("begin")
        self._state = "open"

    def produce(self, topic: str, value: Any = None, key: Any = None, partition: int = -1, on_delivery: Any = None, callback: Any = None, timestamp: int = 0, headers: Any = None) -> None:  # fmt: skip  # noqa: E501
        self._raise_fatal()
        if self._name and self._state != "open":
            raise failure(KafkaError._STATE)
        if len(self._queue) >= QUEUE:
            raise BufferError
        report = on_delivery or callback
        headers = [(name, each) for name, each in headers] if headers else None
        self._queue.append(((topic, partition), Record(key, value, timestamp, headers), report))

    def poll(self, timeout: float = 0) -> int:
        """Some of the queue is sent, in any order of partitions."""
        self._raise_fatal()
        sim = world.running()
        if timeout or sim.random.random() < 0.3:
            self._send(sim.random.randint(1, len(self._queue)) if self._queue else 0)
        self._raise_fatal()
        return 0

    def flush(self, timeout: float = -1) -> int:
        if self._fatal is None:
            self._send(len(self._queue))
        self._raise_fatal()
        return len(self._queue)

    def purge(self) -> None:
        self._queue.clear()

    def __len__(self) -> int:
        return len(self._queue)

    def _send(self, count: int) -> None:
        """Send the first records of the queue, one partition after the other."""
        batch, self._queue = self._queue[:count], self._queue[count:]
        for at in dict.fromkeys(each[0] for each in batch):
            sent = [each for each in batch if each[0] == at]
            code = self._send_to(at, [record for _, record, _ in sent])
            if code is not None:
                self._broken = True
                for _, record, report in sent:
                    if report is not None:
                        self._report(report, KafkaError._FENCED if self._fatal else code, at, record)

    def _send_to(self, at: InputPartition, records: list[Record]) -> int | None:
        """Send records until they are written, once; the code of the error after which they are given up."""
        sim, written = world.running(), False

        def write(broker: Broker) -> None:
            nonlocal written
            if self._name:
                broker.write(self._name, self._owner or (0, 0), at, records)
            else:
                for record in records:
                    broker.append(at, record)
            written = True

        until = sim.clock + DELIVERY_S
        while not written:
            try:
                request("produce", write)
            except KafkaException as error:
                if error.args[0].code() in _LOST:
                    self._fatal = error.args[0]
                if self._fatal or (self._name and sim.clock > until and not written):
                    return int(error.args[0].code())
        return None

    def _report(self, report: Any, code: int, at: InputPartition, record: Record) -> None:
        message = SimpleNamespace(
            topic=lambda: at[0], partition=lambda: at[1], key=lambda: record.key,
            value=lambda: record.value, headers=lambda: record.headers,
        )  # fmt: skip
        report(KafkaError(code), message)

    def send_offsets_to_transaction(
        self, offsets: list[TopicPartition], group: bytes, timeout: float = -1
    ) -> None:
        self._raise_fatal()
        if self._state != "open" or self._broken:
            raise failure(KafkaError._STATE)
        wanted = {(each.topic, each.partition): (each.offset, each.metadata or "") for each in offsets}
        service = json.loads(group)[0]
        self._step(
            "send offsets",
            lambda broker: broker.send_offsets(self._name, self._owner or (0, 0), service, group, wanted),
        )

    def commit_transaction(self, timeout: float = -1) -> None:
        self._raise_fatal()
        if self._state not in ("open", "ending") or self._broken:
            raise failure(KafkaError._STATE)
        if self._state == "open":
            self.flush()
            if self._broken:
                raise failure(KafkaError._STATE)
        self._state = "ending"
        self._end(True)

    def abort_transaction(self, timeout: float = -1) -> None:
        self._raise_fatal()
        if self._state != "open":
            raise failure(KafkaError._STATE)
        self.purge()
        self._end(False)
        self._broken = False

    def _end(self, commit: bool) -> None:
        name = "commit" if commit else "abort"
        self._step(name, lambda broker: broker.end(self._name, self._owner or (0, 0), commit))
        self._state = "ready"

    def _step(self, name: str, effect: Callable[[Broker], object]) -> None:
        try:
            request(name, effect)
        except KafkaException as error:
            if error.args[0].code() in _LOST:
                self._fatal = error.args[0]
                raise failure(KafkaError._FENCED, fatal=True) from None
            raise

    def _raise_fatal(self) -> None:
        if world.running().process.dead:
            world.running().point("dead")
        if self._fatal is not None:
            raise failure(KafkaError._FENCED, fatal=True)

    def list_topics(self, topic: str, timeout: float = -1) -> Any:
        found = request("metadata", lambda broker: len(broker.topics[topic]))
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=range(found))})
