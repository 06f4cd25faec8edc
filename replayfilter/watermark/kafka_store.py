"""The table in Kafka: a compacted topic that one server at a time may write.

Each row is a record. Its key is a JSON list such as ``["origin", "web", "host-7"]``, its value a JSON object.
All servers use one transactional id. The one that takes the lease initialises it. From then on Kafka refuses
every commit of the one before, even if that one was only paused and knows nothing of it. Reports are
committed in groups, one transaction per group, with the heartbeat.

To take the lease, a server

1. reads to the end, and goes on only if no heartbeat came since it last looked;
2. initialises the transactional id: an open transaction of the server before is ended;
3. reads to the end again. A heartbeat that came before 2 means that the other server is alive, and may still
   answer from its table: it is left to take its lease again, and this one remains a standby;
4. commits a lease with the next epoch, which fails if another server has done 2 since.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from replayfilter.core.watermark.stages import Lows
from replayfilter.errors import BrokerError, WatermarkError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.client_settings import lane_settings, refused_setting
from replayfilter.kafka.compacted import CompactedTopic
from replayfilter.kafka.transactions import LaneStats, commit, discard, initialise, is_fence, unwrap_fatal
from replayfilter.watermark.snapshots import PartitionReport, time_or_none
from replayfilter.watermark.stage_row import DeclaredBy, StoredOrigin
from replayfilter.watermark.store import (
    HISTORY_INTERVAL_US,
    FencedError,
    HistoryPoint,
    Lease,
    StoredStage,
    thin_out,
)
from replayfilter.watermark.table import Changes

# librdkafka logs every fence as a fatal error, but here it is how a server learns that it was replaced.
_log = logging.getLogger("replayfilter.librdkafka")
_log.addHandler(logging.NullHandler())

VERSION = 1
_TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",  # a start reads what is not compacted yet
    "segment.bytes": str(64 * 2**20),  # only closed segments are compacted
}
_LEASE_KEY = b'["lease"]'
_FLUSH_STEP_S = 1.0  # a refused record is noticed at this interval
_QUEUE_FULL_WAIT_S = 0.1
_DELIVERY_TIMEOUT_MS = "15000"  # clients wait for 10 s, and then report again

_Value = TypeVar("_Value")


class _LeaseValue(msgspec.Struct):
    version: int
    epoch: int
    beat: int
    owner: str


class _StageValue(msgspec.Struct):
    input_low: int
    output_low: int
    moved_us: int | None


class _OriginValue(msgspec.Struct):
    progress: int
    since_us: int
    idle: bool
    partition: str | None
    declared_by: DeclaredBy


class _PartitionValue(msgspec.Struct):
    low: int | None
    oldest: int | None
    backlog: int | None
    session: int
    sequence: int
    reported_us: int


class _HistoryValue(msgspec.Struct):
    at_us: int
    input_low: int | None
    output_low: int | None
    front: int | None


class KafkaStore:
    """The store in a topic; see store.py.

    Creates the topic if it is missing. Raises WatermarkError if it can't be a store, and BrokerError if Kafka
    can't be reached or refuses a request.
    """

    remedy = "the server tries again; nothing that it has acknowledged is lost"
    failures: tuple[type[Exception], ...] = (BrokerError, WatermarkError)

    def __init__(self, topic: str, bootstrap: str, options: Mapping[str, str]) -> None:
        self.name = f"server.store = kafka:{topic}"
        self.epoch = 0
        self._topic, self._bootstrap, self._options = topic, bootstrap, options
        self._prepare_topic()
        self._producer: Producer | None = None  # while this server has the lease
        self._refused: list[KafkaError] = []
        self._note = partial(
            _note, self._refused
        )  # not a method, with which a producer would keep itself alive
        self._beat, self._owner = 0, ""
        self._stored: dict[str, StoredStage] = {}
        self._history: dict[str, deque[HistoryPoint]] = {}
        self._history_lock = threading.Lock()
        self._compacted = CompactedTopic(topic, bootstrap, options)
        try:
            self.lease()  # an error here is one of the config: better now than in the log
        except BaseException:
            self._compacted.close()
            raise

    def _prepare_topic(self) -> None:
        cluster, topic = Cluster(self._bootstrap, self._options), self._topic
        cluster.create({topic: 1}, settings=_TOPIC_SETTINGS)
        partitions = cluster.topics([topic])[topic].partitions
        policy = cluster.settings([topic])[topic].get("cleanup.policy")
        if partitions != 1:
            raise WatermarkError(
                f"{self.name}: the topic has {partitions} partitions, but a store needs exactly 1, for "
                "the order of its records; use another topic, which the server creates if it is missing"
            )
        if policy != "compact":
            raise WatermarkError(
                f"{self.name}: the topic has cleanup.policy = {policy}, with which Kafka deletes what the "
                'server still needs; use a topic of its own, or set the policy of this one to "compact"'
            )

    def close(self) -> None:
        """Close the clients."""
        self._drop_producer()
        self._compacted.close()

    # ---- the lease -------------------------------------------------------------------------------

    def lease(self) -> Lease:
        """The present lease."""
        self._compacted.catch_up()
        return self._read_lease()

    def _read_lease(self) -> Lease:
        value = self._compacted.rows.get(_LEASE_KEY)
        if value is None:
            return Lease(0, 0, "")
        found = self._decode(_LEASE_KEY, value, _LeaseValue)
        if found.version != VERSION:
            raise WatermarkError(
                f"{self.name}: has version {found.version}, this program needs {VERSION}; use another "
                "topic, or the version of replayfilter that wrote this one"
            )
        return Lease(found.epoch, found.beat, found.owner)

    def take_lease(self, seen: Lease, owner: str) -> bool:
        """Take the lease, if it is still as it was when ``seen`` was read."""
        if self.lease() != seen:
            return False
        self._drop_producer()
        self._producer = self._take_over()
        self._compacted.catch_up(wait_for_open=True)
        if self._read_lease() != seen:
            self._drop_producer()
            return False
        self.epoch, self._beat, self._owner = seen.epoch + 1, 0, owner
        try:
            with self.transaction():
                pass
        except FencedError:
            return False
        self._stored = self._decode_rows()
        self._compacted.forget()  # from now on this server writes; once it doesn't, it reads all of it again
        return True

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction with a heartbeat. Raises FencedError if this server no longer has the lease."""
        producer = self._producer
        if producer is None:
            raise FencedError
        failed: KafkaError | None = None
        try:
            producer.begin_transaction()
            self._put_lease(self._owner)
            yield
            with unwrap_fatal():
                while producer.flush(_FLUSH_STEP_S) and not self._refused:
                    pass
            if not self._refused:  # with a refused record, commit_transaction waits until its limit
                commit(producer, LaneStats())
        except KafkaException as error:
            failed = error.args[0]
        except BaseException:
            self._drop_producer()  # the next owner's init_transactions ends the transaction
            raise
        if failed is None and not self._refused:
            return
        reason = failed or self._refused[0]
        self._drop_producer()
        if is_fence(reason):
            raise FencedError
        raise BrokerError(
            f"Kafka at {self._bootstrap} did not take a transaction of the table: {reason.str()}; check that "
            "the brokers are up, and that the topic and the transactional id may be written"
        )

    def release_lease(self) -> None:
        """Give the lease up, so that the next server can take it at once."""
        self._owner = ""
        with self.transaction():
            pass

    def _take_over(self) -> Producer:
        """A producer that owns the transactional id; all earlier ones are fenced."""
        largest = Cluster(self._bootstrap, self._options).max_message_bytes([self._topic])
        options = {"delivery.timeout.ms": _DELIVERY_TIMEOUT_MS, **self._options}
        settings = lane_settings(self._bootstrap, options, largest) | {
            "transactional.id": f"replayfilter-watermark-{self._topic}",
            "log_level": 0,  # every failure is raised
        }
        try:
            producer = Producer(settings, logger=_log)
        except KafkaException as error:
            raise refused_setting(error) from error
        failed: KafkaError | None = None
        try:
            initialise(producer, LaneStats())
        except KafkaException as error:
            failed = error.args[0]
        if failed is not None:
            discard(producer)
            raise BrokerError(
                f"Kafka at {self._bootstrap} did not give this server the transactional id "
                f"{settings['transactional.id']}: {failed.str()}; check that the brokers are up, and "
                "that the id may be used"
            )
        self._refused.clear()
        return producer

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(KafkaException):
                discard(producer)

    # ---- the table -------------------------------------------------------------------------------

    def load(self, stage: str) -> StoredStage:
        """A stage as it was stored when the lease was taken; empty if it is new. Only once per lease."""
        return self._stored.pop(stage, StoredStage(Lows(), None, [], {}))

    def write(self, changes: Mapping[str, Changes]) -> None:
        """Write changes, within a transaction."""
        for stage, change in changes.items():
            self._put(["stage", stage], _StageValue(change.lows.input, change.lows.output, change.moved_us))
            for name in change.removed:
                self._put(["origin", stage, name], None)
            for origin in change.origins:
                value = _OriginValue(
                    origin.progress, origin.since_us, origin.idle, origin.partition, origin.declared_by
                )
                self._put(["origin", stage, origin.name], value)
            for name, part in change.partitions.items():
                self._put(["partition", stage, name], None if part is None else _partition_value(part))

    def add_history(self, at_us: int, points: Mapping[str, tuple[Lows, int]], keep_us: int) -> None:
        """Add a point for each stage (lows, largest event time). Forget points older than ``keep_us``.

        The keys are those of a ring, so a new point takes the place of the oldest one.
        """
        slot = at_us // HISTORY_INTERVAL_US % (keep_us // HISTORY_INTERVAL_US + 1)
        with self._history_lock:
            for stage, (lows, front) in points.items():
                times = (time_or_none(each) for each in (lows.input, lows.output, front))
                value = _HistoryValue(at_us, *times)
                self._put(["history", stage, slot], value)
                kept = self._history.setdefault(stage, deque())
                kept.append((at_us, value.input_low, value.output_low, value.front))
                while kept[0][0] < at_us - keep_us:
                    kept.popleft()

    def history(self, stage: str, since_us: int, points: int) -> list[HistoryPoint]:
        """The history of a stage since a time, reduced to about ``points`` points."""
        with self._history_lock:
            kept = [point for point in self._history.get(stage, ()) if point[0] >= since_us]
        return thin_out(kept, points)

    # ---- records ---------------------------------------------------------------------------------

    def _put_lease(self, owner: str) -> None:
        value = msgspec.json.encode(_LeaseValue(VERSION, self.epoch, self._beat, owner))
        self._produce(_LEASE_KEY, value)
        self._beat += 1

    def _put(self, key: list[str | int], value: msgspec.Struct | None) -> None:
        """Write a row, or delete it."""
        self._produce(msgspec.json.encode(key), None if value is None else msgspec.json.encode(value))

    def _produce(self, key: bytes, value: bytes | None) -> None:
        assert self._producer is not None
        while True:
            try:
                return self._producer.produce(self._topic, value, key, 0, self._note)
            except BufferError:
                pass
            with unwrap_fatal():
                self._producer.poll(_QUEUE_FULL_WAIT_S)

    def _decode_rows(self) -> dict[str, StoredStage]:
        """What the topic has of each stage, also of those that the config no longer has."""
        stored: dict[str, StoredStage] = {}
        history: dict[str, list[HistoryPoint]] = {}

        def stage_of(name: str) -> StoredStage:
            return stored.setdefault(name, StoredStage(Lows(), None, [], {}))

        for key, value in self._compacted.rows.items():
            match self._decode(key, key, list[str | int]):
                case ["stage", str(stage)]:
                    row = self._decode(key, value, _StageValue)
                    lows = Lows(row.input_low, row.output_low)
                    stored[stage] = stage_of(stage)._replace(lows=lows, moved_us=row.moved_us)
                case ["origin", str(stage), str(name)]:
                    origin = self._decode(key, value, _OriginValue)
                    stage_of(stage).origins.append(StoredOrigin(name, *msgspec.structs.astuple(origin)))
                case ["partition", str(stage), str(name)]:
                    part = self._decode(key, value, _PartitionValue)
                    stage_of(stage).partitions[name] = PartitionReport(*msgspec.structs.astuple(part))
                case ["history", str(stage), int()]:
                    point = self._decode(key, value, _HistoryValue)
                    history.setdefault(stage, []).append(msgspec.structs.astuple(point))
                case _:  # the lease; or of a later version
                    pass
        with self._history_lock:
            self._history = {stage: deque(sorted(points)) for stage, points in history.items()}
        return stored

    def _decode(self, key: bytes, data: bytes, type_: type[_Value]) -> _Value:
        try:
            return msgspec.json.decode(data, type=type_)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WatermarkError(
                f"{self.name}: the record with the key {key[:80]!r} was not written by a watermark server "
                f"({error}); use a topic of its own for the store"
            ) from None


def _partition_value(part: PartitionReport) -> _PartitionValue:
    return _PartitionValue(part.low, part.oldest, part.backlog, part.session, part.sequence, part.reported_us)


def _note(refused: list[KafkaError], error: KafkaError | None, message: Message) -> None:
    """A delivery report; only those of records that were not delivered come."""
    if error is not None:
        refused.append(error)
