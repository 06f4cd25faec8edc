"""Lanes: exactly-once delivery of one task's part of a micro-batch in one Kafka transaction.

A lane is a transactional id, ``<service>-<lane>``, and always carries the same input partitions.
Everything a batch writes for them and their next input offsets (consumer group = service name) are
committed together, so Kafka itself knows how far each input partition was delivered. One
:class:`Lanes` lives in each worker process, and every task does:

    with lanes.open(lane, sources) as delivery:        # (1) own the lane, so that earlier owners are fenced
        delivery.committed(source)                     # (2) read after owning; (3) rows below it are left out
        delivery.write(Run(source, offsets, topics, partitions, keys, values, timestamps_ms, headers))
        stats = delivery.commit({source: next_offset})  # (4) outputs and offsets, or nothing at all

A ``source`` is an input partition ``(topic, partition)``. Leaving the block without :meth:`Delivery.commit`
aborts. Every failure is a :class:`~replayfilter.errors.DeliveryError`: try the whole task again.

Why that is enough. Kafka lets a commit through only if nobody initialised the same id since (1), and
whoever did so before can't commit after. So nothing was delivered between (2) and (4) by anybody else.

A producer kept from an earlier batch skips (1) and (2): if its commit succeeds then it was the owner all
along, and the offsets it committed last are still the right ones. If it was fenced in between, it can't
commit, whatever it left out. To find that out before the task's rows have been used up, ``open`` sends
the offsets it committed last once more: a fenced producer is told so there, in about 2 ms, is thrown away,
and the task starts again at (1). A fence that comes later costs the attempt, never a record.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Producer

from replayfilter.errors import ConfigError, DeliveryError
from replayfilter.kafka.chunk import FIRST_MS, Chunk, InputPartition
from replayfilter.kafka.client_settings import Settings, client_settings
from replayfilter.kafka.offsets import GroupOffsets
from replayfilter.kafka.refusals import Refusals
from replayfilter.kafka.transactions import (
    STEP_LIMIT_S,
    LaneStats,
    abort,
    commit,
    discard,
    initialise,
    is_fence,
    send_offsets,
    unwrap_fatal,
)

TAKEOVERS_MAX = 3  # producers one open() uses up before it gives in to another task that keeps fencing it
DECIDED_LIMIT_S = 2.0  # after a failed commit, for the offsets to say whether it went through all the same
SETTLE_S = 0.08  # a new producer connects in the background; asked earlier, it waits 500 ms instead
FLUSH_STEP_S = 1.0  # between two looks at failed records while the last ones are sent
QUEUE_FULL_WAIT_S = 0.1  # a full queue drains in the background; poll returns when something was sent

# Chosen by measurement: 200,000 records of 200 bytes to one partition, 2 cores with the broker on them.
_PRODUCER: Settings = {
    "compression.type": "lz4",  # no more CPU than none, a fraction of the bytes
    "linger.ms": 20,  # full batches; a commit flushes at once, so a small transaction doesn't wait
    "batch.size": 1_000_000,  # bytes; 100,000 cost twice the CPU, 16,384 four times
    "queue.buffering.max.messages": 200_000,  # records in flight, about 300 bytes each besides the payload
    "queue.buffering.max.kbytes": 65_536,  # payload in flight: bounds a worker's memory to about twice this
    "message.max.bytes": 32_000_000,  # half the queue, so that each record fits; the topic decides
    "transaction.timeout.ms": 300_000,  # a dead owner holds readers back at most this long
    "delivery.timeout.ms": 120_000,  # a record that isn't acknowledged by then fails the attempt
    "retry.backoff.ms": 10,  # the markers of the last transaction take 10 ms; 100 (default) would wait it out
}
_PINNED: Settings = {
    "enable.idempotence": True,
    "acks": "all",
    "allow.auto.create.topics": False,
    "delivery.report.only.error": True,
}
# librdkafka reports each fenced producer as fatal, and here that is everyday life: whoever wants to
# see its log configures this logger.
_log = logging.getLogger("replayfilter.librdkafka")
_log.addHandler(logging.NullHandler())


@dataclass(slots=True)
class _Standby:
    producer: Producer
    made: float  # time.monotonic()


@dataclass(slots=True)
class _Owner:
    """A producer that has initialised the lane, and the next offsets that it knows of."""

    producer: Producer
    delivered: dict[InputPartition, int]


class Lanes:
    """All lanes that one worker process delivers to; not for use by several threads at once.

    ``service`` names the consumer group and begins the transactional ids. ``options`` are the user's
    client settings in Kafka's own names. Raises :class:`ConfigError` for settings that can't be used.
    """

    def __init__(self, bootstrap: str, service: str, options: Mapping[str, str] | None = None) -> None:
        self.service = service
        self._producing = _PRODUCER | client_settings(bootstrap, options, produces=True) | _PINNED
        try:
            self.offsets = GroupOffsets(client_settings(bootstrap, options), service)
        except KafkaException as error:
            raise _refused_setting(error) from error
        self._standbys: dict[int, _Standby] = {}
        self._owners: dict[int, _Owner] = {}

    def prepare(self, lanes: Iterable[int]) -> None:
        """Make a standby for each of these lanes that has none; it connects in the background.

        Taking a lane over costs 4-8 ms with a standby, and about 90 ms without.
        """
        for lane in lanes:
            if lane not in self._standbys:
                self._standbys[lane] = self._make(lane)

    def open(self, lane: int, sources: Iterable[InputPartition] = ()) -> Delivery:
        """Own ``lane`` and begin a delivery to it.

        ``sources`` are the input partitions of this delivery as far as they are known: their offsets
        are read in one request here, others when they are first asked for.
        """
        stats = LaneStats()
        sources = list(sources)
        owner = self._owners.pop(lane, None)
        begun = owner is not None and self._still_owns(owner, sources, stats)
        if owner is None or not begun:
            owner = _Owner(self._take_over(lane, stats), {})
        self.prepare([lane])  # for the next takeover: it connects while this delivery goes on
        delivery = Delivery(self, lane, owner, stats, begun)
        delivery.know(sources)
        return delivery

    def close(self) -> None:
        """Let all producers go; the lanes stay as they were last committed."""
        for owner in self._owners.values():
            discard(owner.producer)
        self._standbys.clear()
        self._owners.clear()

    def keep(self, lane: int, owner: _Owner) -> None:
        """Keep a producer that committed: it probably still owns the lane at the next batch."""
        self._owners[lane] = owner

    def _make(self, lane: int) -> _Standby:
        settings = self._producing | {"transactional.id": f"{self.service}-{lane}"}
        try:
            return _Standby(Producer(settings, logger=_log), time.monotonic())
        except KafkaException as error:
            raise _refused_setting(error) from error

    def _still_owns(self, owner: _Owner, sources: Sequence[InputPartition], stats: LaneStats) -> bool:
        """Whether a kept producer owns its lane, asked by sending what it committed last once more."""
        known = next(source for source in (*sources, *owner.delivered) if source in owner.delivered)
        try:
            owner.producer.begin_transaction()
            send_offsets(owner.producer, {known: owner.delivered[known]}, self.offsets.metadata, stats)
        except KafkaException as error:
            stats.fences += is_fence(error.args[0])
            discard(owner.producer)
            return False
        return True

    def _take_over(self, lane: int, stats: LaneStats) -> Producer:
        for _ in range(TAKEOVERS_MAX):
            standby = self._standbys.pop(lane, None) or self._make(lane)
            time.sleep(max(0.0, standby.made + SETTLE_S - time.monotonic()))
            try:
                initialise(standby.producer, stats)
            except KafkaException as error:
                discard(standby.producer)
                fault = error.args[0]
                if not is_fence(fault):
                    raise DeliveryError(
                        f"lane {self.service}-{lane} could not be taken over: {fault.str()}; check that the "
                        "broker is up and that the transactional id may be used, then try the task again",
                        lane,
                    ) from error
                stats.fences += 1
            else:
                stats.takeovers += 1
                return standby.producer
        raise DeliveryError(
            f"lane {self.service}-{lane} was taken by another task {TAKEOVERS_MAX} times in a row; "
            "make sure that only one service of this name runs, then try the task again",
            lane,
        )


class Delivery:
    """One lane's part of a batch, between :meth:`Lanes.open` and :meth:`commit`."""

    def __init__(self, lanes: Lanes, lane: int, owner: _Owner, stats: LaneStats, begun: bool) -> None:
        self.stats = stats
        self._lanes = lanes
        self._lane = lane
        self._owner: _Owner | None = owner
        self._begun = begun
        self._ends: dict[InputPartition, int] = {}  # what was given to write() so far, as next offsets
        self._refusals = Refusals()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owner is not None:
            self.abort()

    def know(self, sources: Iterable[InputPartition]) -> None:
        """Read the committed offsets of those sources that aren't known yet, in one request."""
        known = self._owned().delivered
        known.update(
            self._lanes.offsets.read({s for s in sources if s not in known}, self.stats, STEP_LIMIT_S)
        )

    def committed(self, source: InputPartition) -> int:
        """The first input offset of ``source`` that is not delivered yet."""
        delivered = self._owned().delivered
        if source not in delivered:
            self.know([source])
        return delivered[source]

    def write(self, run: Chunk) -> int:
        """Write a run's records in their order; returns how many were not left out as delivered before.

        Over all calls the offsets of a source must ascend (ValueError). The run's columns must not be
        changed before the commit: reports of failed records look into them. Raises
        :class:`DeliveryError` once Kafka has refused a record, of this run or of an earlier one.
        """
        if not len(run.offsets):
            return 0
        source, begins = run.source, run.offsets[0]
        if begins < self._ends.get(source, 0):
            raise ValueError(f"{source}: offset {begins} after {self._ends[source] - 1}: write in order")
        self._ends[source] = run.offsets[-1] + 1
        first = bisect_left(run.offsets, self.committed(source))
        left = len(run.offsets) - first
        if left:
            self._produce(run, first)
        self.stats.skipped += first
        self.stats.written += left
        return left

    def commit(self, next_offsets: Mapping[InputPartition, int]) -> LaneStats:
        """Commit everything written together with each source's next input offset; returns the counts.

        Offsets never go back: those already reached are left out, and with nothing left over there is no
        transaction at all. Raises :class:`DeliveryError` if it can't be known to be delivered.
        """
        owner = self._owned()
        for source, end in self._ends.items():
            if next_offsets.get(source, -1) < end:
                raise ValueError(f"{source}: next offset {next_offsets.get(source)} for rows up to {end - 1}")
        self.know(next_offsets)
        ahead = {source: end for source, end in next_offsets.items() if end > owner.delivered[source]}
        if not ahead:
            self._finish_empty()
            return self.stats
        try:
            self._begin()
            send_offsets(owner.producer, ahead, self._lanes.offsets.metadata, self.stats)
            with unwrap_fatal():
                while owner.producer.flush(FLUSH_STEP_S):  # ends, since each record is sent or fails in time
                    self._refusals.raise_first()
            self._refusals.raise_first()  # with a failed record, commit_transaction would wait out its limit
            commit(owner.producer, self.stats)
        except KafkaException as error:
            failed = error
        else:
            self.stats.transactions += 1
            owner.delivered.update(ahead)
            self._lanes.keep(self._lane, owner)
            self._owner = None
            return self.stats
        self.abort()  # here and below the client is asked, which an `except` is no place for: see apart()
        lost = self._lost(failed.args[0])
        self._refusals.raise_first()
        if not self._was_delivered(next_offsets):
            raise lost from failed
        return self.stats

    def abort(self) -> None:
        """Give up: nothing of this attempt will ever be read. The next attempt takes the lane anew."""
        owner, self._owner = self._owned(), None
        if self._begun:
            try:
                abort(owner.producer)
            except KafkaException as error:  # fenced, or no broker: the next owner's init aborts it
                _log.info("lane %s: abort left to the next owner: %s", self._lane, error.args[0].str())
        discard(owner.producer)

    def _owned(self) -> _Owner:
        if self._owner is None:
            raise ValueError(f"lane {self._lane}: this delivery has ended; open the lane again")
        return self._owner

    def _begin(self) -> None:
        if not self._begun:
            self._owned().producer.begin_transaction()
            self._begun = True

    def _produce(self, run: Chunk, first: int) -> None:
        """The hot loop, from row ``first`` on: 0.7 us of Python's thread a record, 1.1 with two headers."""
        self._begin()
        producer, report = self._owned().producer, self._refusals.report_on(run)
        produce = producer.produce
        for offset, topic, number, key, value, stamp, headers in run.rows(first):
            try:
                produce(topic, value, key, number, report, None, stamp or FIRST_MS, headers)
                continue
            except BufferError:
                failed = None
            except KafkaException as error:
                failed = error
            if failed is None:  # the client is called outside of `except`: see transactions.apart
                late = (topic, value, key, number, report, None, stamp or FIRST_MS, headers)
                self._produce_late(producer, late)
            else:
                self._poll(producer)  # a report on an earlier record says more than "the transaction failed"
                size = len(key or b"") + len(value or b"")
                self._refusals.add(run.source, offset, topic, number, size, failed.args[0])
                self._refusals.raise_first()
                raise self._lost(failed.args[0]) from failed
        self._poll(producer)

    def _produce_late(self, producer: Producer, record: tuple[Any, ...]) -> None:
        """Wait for room in the queue: it comes, since each record is sent or fails by delivery.timeout.ms."""
        while True:
            self._poll(producer, QUEUE_FULL_WAIT_S)
            try:
                return producer.produce(*record)
            except BufferError:
                continue

    def _poll(self, producer: Producer, seconds: float = 0.0) -> None:
        """Take the reports of failed records; raises for them, and for a producer that was fenced."""
        try:
            with unwrap_fatal():
                producer.poll(seconds)
        except KafkaException as error:
            raise self._lost(error.args[0]) from error
        self._refusals.raise_first()

    def _lost(self, fault: KafkaError) -> DeliveryError:
        self.stats.fences += is_fence(fault)
        return DeliveryError(
            f"lane {self._lanes.service}-{self._lane} could not deliver {self.stats.written} records: "
            f"{fault.str()}; nothing of this attempt can be read, try the task again",
            self._lane,
        )

    def _finish_empty(self) -> None:
        """Nothing is left over: end the transaction that only asked for ownership, and keep the producer."""
        owner = self._owned()
        if self._begun:
            try:
                abort(owner.producer)
            except KafkaException:
                self._owner = None
                return discard(owner.producer)
        if owner.delivered:
            self._lanes.keep(self._lane, owner)
        self._owner = None

    def _was_delivered(self, next_offsets: Mapping[InputPartition, int]) -> bool:
        """After a failed commit: whether this attempt or another one went through all the same."""
        try:
            reached = self._lanes.offsets.read(next_offsets, self.stats, DECIDED_LIMIT_S)
        except DeliveryError:  # somebody's transaction is still open: not decided
            return False
        return all(reached[source] >= end for source, end in next_offsets.items())


def _refused_setting(error: KafkaException) -> ConfigError:
    reason = error.args[0].str()
    return ConfigError([f"kafka.options has a setting that the client refuses: {reason}; correct it"])
