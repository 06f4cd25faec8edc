"""Lanes: exactly-once delivery of one task's part of a micro-batch in one Kafka transaction.

A lane is a transactional id, ``<service>-<lane>``, and always carries the same input partitions. Everything
that a batch writes for them is committed together with their next input offsets, in the consumer group with
the service's name. Kafka itself therefore knows how far each input partition was delivered. Each worker
process has one :class:`Lanes`, and every task does this:

    with lanes.open(lane, partitions) as delivery:      # (1) own the lane: earlier owners are fenced
        delivery.committed(partition)                   # (2) read the offsets, after (1)
        delivery.write(chunk)                           # (3) leaves out records below those offsets
        stats = delivery.commit({partition: next_offset})   # (4) records and offsets, or nothing

Leaving the block without :meth:`Delivery.commit` aborts. A failure is a
:class:`~replayfilter.errors.DeliveryError`, after which the whole task may be tried again, or a
:class:`~replayfilter.errors.ServiceReplaced`.

Why this is enough: Kafka accepts a commit only if nobody has initialised the same id since (1), and whoever
initialised it before (1) can't commit afterwards. Nothing was delivered by anyone else between (2) and (4).
Another service with other lanes is kept out by the membership that each commit carries: see membership.py.

A producer that is kept from an earlier batch skips (1) and (2). If its commit succeeds, it has been the
owner all along, and the offsets that it committed last are still right. If it was fenced in between, it
can't commit, whatever it left out. To notice that before the task has used up its rows, ``open`` sends the
offsets that it committed last once more, which takes about 2 ms and fails for a fenced producer. Such a
producer is dropped, and the task starts again at (1). A fence after that costs the attempt, but no record.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Producer

from replayfilter.core.input_partition import InputPartition
from replayfilter.errors import DeliveryError, ReplayfilterError, ServiceReplaced
from replayfilter.kafka.chunk import FIRST_MS, Chunk
from replayfilter.kafka.client_settings import client_settings, lane_settings
from replayfilter.kafka.membership import is_replaced, replaced
from replayfilter.kafka.offsets import PENDING, GroupOffsets
from replayfilter.kafka.producer_limits import largest_batch
from replayfilter.kafka.refusals import Refusals, size_of
from replayfilter.kafka.standbys import Standbys
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

# Each producer has some threads of its own. A lane seldom comes back to a worker before another one had it.
KEPT_OWNERS = 8
TAKEOVERS_MAX = 3  # takeovers that one open() tries while another task keeps fencing the lane
OUTCOME_LIMIT_S = 2.0  # after a failed commit, to read from the offsets whether it went through after all
FLUSH_STEP_S = 1.0  # failed records are noticed at this interval while the last ones are sent
QUEUE_FULL_WAIT_S = 0.1  # a full queue empties in the background; poll returns when something was sent

_log = logging.getLogger("replayfilter.librdkafka")
_OPEN_TRANSACTION = (
    "perhaps an earlier service of this name has left a transaction open, which Kafka ends after its "
    "transaction.timeout.ms (5 minutes)"
)


@dataclass(slots=True)
class _Owner:
    """A producer that has initialised the lane, and the committed next offsets that it knows."""

    producer: Producer
    committed: dict[InputPartition, int]


class Lanes:
    """All lanes that one worker process delivers to; not for use by several threads at once.

    ``service`` is the name of the consumer group and the start of the transactional ids; ``options`` are the
    user's, in Kafka's own names; ``max_message_bytes`` as in :func:`lane_settings`. ``kept_owners`` lanes,
    those used last, keep their producer. Raises :class:`ConfigError` for settings that can't be used.
    """

    def __init__(
        self,
        bootstrap: str,
        service: str,
        options: Mapping[str, str] | None = None,
        *,
        max_message_bytes: int | None = None,
        kept_owners: int = KEPT_OWNERS,
    ) -> None:
        self.service = service
        self._kept_owners = kept_owners
        self.max_message_bytes = max_message_bytes
        self.settings = lane_settings(bootstrap, options, max_message_bytes)
        self.standbys = Standbys(self.settings, service)
        self.offsets = GroupOffsets(client_settings(bootstrap, options), service)
        self.membership: Any = self.offsets.metadata
        self._owners: dict[int, _Owner] = {}

    def join(self, membership: bytes) -> None:
        """Deliver with this membership of the group from now on: see membership.py.

        Producers that were kept with another one are dropped. Another service may have delivered since then.
        """
        if membership != self.membership:
            self._drop_owners()
            self.membership = membership

    def open(self, lane: int, partitions: Iterable[InputPartition] = ()) -> Delivery:
        """Own ``lane`` and begin a delivery to it.

        ``partitions`` are the input partitions of this delivery, as far as they are known. Their offsets are
        read here in one request; those of others are read when they are first needed.
        """
        stats = LaneStats()
        partitions = list(partitions)
        owner = self._owners.pop(lane, None)
        begun = owner is not None and self._still_owns(owner, partitions, stats)
        if owner is None or not begun:
            owner = _Owner(self._take_over(lane, stats), {})
        self.standbys.prepare([lane])  # for the next takeover: it connects while this delivery goes on
        delivery = Delivery(self, lane, owner, stats, begun)
        delivery.load_offsets(partitions)
        return delivery

    def close(self) -> None:
        """Drop all producers; the lanes stay as they were last committed."""
        self._drop_owners()
        self.standbys.clear()

    def _drop_owners(self) -> None:
        for owner in self._owners.values():
            discard(owner.producer)
        self._owners.clear()

    def keep_owner(self, lane: int, owner: _Owner) -> None:
        """Keep a producer that committed: it probably still owns the lane at the next batch."""
        self._owners[lane] = owner
        while len(self._owners) > self._kept_owners:
            discard(self._owners.pop(next(iter(self._owners))).producer)

    def committed(
        self, partitions: Iterable[InputPartition], stats: LaneStats, limit: float
    ) -> dict[InputPartition, int]:
        """The committed next offset of each input partition, 0 if it has none; waits for pending commits."""
        wanted = list(partitions)
        try:
            found = self.offsets.read(wanted, limit, stats)
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            wait = f"; {_OPEN_TRANSACTION}" if reason.code() in PENDING else ""
            raise DeliveryError(
                f"the committed offsets of group {self.service!r} can't be read for {len(wanted)} input "
                f"partitions: {reason.str()}{wait}; check that the broker is up and that the group may be "
                "read, then try the task again"
            ) from error
        return {partition: found.get(partition, 0) for partition in wanted}

    def _still_owns(self, owner: _Owner, partitions: Sequence[InputPartition], stats: LaneStats) -> bool:
        """Whether a kept producer still owns its lane: it sends an offset again that it committed last."""
        known = next(each for each in (*partitions, *owner.committed) if each in owner.committed)
        try:
            owner.producer.begin_transaction()
            send_offsets(owner.producer, {known: owner.committed[known]}, self.membership, stats)
        except KafkaException as error:
            stats.fences += is_fence(error.args[0])
            discard(owner.producer)
            if is_replaced(error.args[0]):
                raise replaced(self.service) from error
            return False
        return True

    def _take_over(self, lane: int, stats: LaneStats) -> Producer:
        for _ in range(TAKEOVERS_MAX):
            producer = self.standbys.take(lane)
            try:
                initialise(producer, stats)
            except KafkaException as error:
                discard(producer)
                reason = error.args[0]
                if not is_fence(reason):
                    raise DeliveryError(
                        f"lane {self.service}-{lane} could not be taken over: {reason.str()}; check that the "
                        "broker is up and that the transactional id may be used, then try the task again",
                        lane,
                    ) from error
                stats.fences += 1
            else:
                stats.takeovers += 1
                return producer
        raise DeliveryError(
            f"lane {self.service}-{lane} was taken by another task {TAKEOVERS_MAX} times in a row; "
            "make sure that only one service of this name runs, then try the task again",
            lane,
        )


class Delivery:
    """One lane's part of a batch, from :meth:`Lanes.open` to :meth:`commit`."""

    def __init__(self, lanes: Lanes, lane: int, owner: _Owner, stats: LaneStats, begun: bool) -> None:
        self.stats = stats
        self._lanes = lanes
        self._lane = lane
        self._owner: _Owner | None = owner  # None once the delivery has ended
        self._begun = begun  # whether the producer has a transaction open
        self._ends: dict[InputPartition, int] = {}  # next offset after the records given to write()
        self._refusals = Refusals(largest_batch(lanes.settings), lane)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owner is not None:
            self.abort()

    def load_offsets(self, partitions: Iterable[InputPartition]) -> None:
        """Read the committed offsets of those partitions that aren't known yet, in one request."""
        known = self._get_owner().committed
        missing = {partition for partition in partitions if partition not in known}
        known.update(self._lanes.committed(missing, self.stats, STEP_LIMIT_S))

    def committed(self, partition: InputPartition) -> int:
        """The first offset of this input partition that is not delivered yet."""
        known = self._get_owner().committed
        if partition not in known:
            self.load_offsets([partition])
        return known[partition]

    def write(self, chunk: Chunk) -> int:
        """Write a chunk's records in their order, without those that were delivered before.

        Returns how many were written. Over all calls the offsets of an input partition must ascend
        (ValueError). The chunk's columns must not be changed before the commit, since error messages quote
        them. Raises :class:`DeliveryError` once Kafka has refused a record of this chunk or an earlier one.
        """
        if not len(chunk.offsets):
            return 0
        partition, start = chunk.input_partition, chunk.offsets[0]
        if start < self._ends.get(partition, 0):
            last = self._ends[partition] - 1
            raise ValueError(f"{partition}: offset {start} after {last}: write in order")
        self._ends[partition] = chunk.offsets[-1] + 1
        first = bisect_left(chunk.offsets, self.committed(partition))
        count = len(chunk.offsets) - first
        if count:
            self._produce(chunk, first)
        self.stats.skipped += first
        self.stats.written += count
        return count

    def commit(self, next_offsets: Mapping[InputPartition, int], text: str = "") -> LaneStats:
        """Commit everything written together with each partition's next input offset; returns the counts.

        ``text`` is stored with the offsets.
        Offsets never go back: partitions that have already reached theirs are left out, and if none remains
        there is no transaction. Raises :class:`DeliveryError` unless the records are known to be delivered.
        """
        owner = self._get_owner()
        for partition, end in self._ends.items():
            if next_offsets.get(partition, -1) < end:
                given = next_offsets.get(partition)
                raise ValueError(f"{partition}: next offset {given} for rows up to {end - 1}")
        self.load_offsets(next_offsets)
        ahead = {each: end for each, end in next_offsets.items() if end > owner.committed[each]}
        if not ahead:
            self._end_without_commit()
            return self.stats
        try:
            self._begin()
            send_offsets(owner.producer, ahead, self._lanes.membership, self.stats, text)
            with unwrap_fatal():
                while owner.producer.flush(FLUSH_STEP_S):  # ends, since each record is sent or fails in time
                    self._refusals.raise_first()
            self._refusals.raise_first()  # with a failed record, commit_transaction waits until its limit
            commit(owner.producer, self.stats)
        except KafkaException as error:
            failed = error
        else:
            self.stats.transactions += 1
            owner.committed.update(ahead)
            self._lanes.keep_owner(self._lane, owner)
            self._owner = None
            return self.stats
        self.abort()  # the client is not called inside of `except`: see transactions.call_in_thread
        problem = self._failure(failed.args[0])
        self._refusals.raise_first()
        if isinstance(problem, ServiceReplaced) or not self._was_delivered(next_offsets):
            raise problem from failed
        return self.stats

    def abort(self) -> None:
        """Give up: nobody will ever read anything of this attempt. The next attempt takes the lane again."""
        owner, self._owner = self._get_owner(), None
        if self._begun:
            try:
                abort(owner.producer)
            except KafkaException as error:  # fenced, or no broker: the next owner's init aborts it
                _log.info("lane %s: the next owner will abort: %s", self._lane, error.args[0].str())
        discard(owner.producer)

    def _get_owner(self) -> _Owner:
        if self._owner is None:
            raise ValueError(f"lane {self._lane}: this delivery has ended; open the lane again")
        return self._owner

    def _begin(self) -> None:
        if not self._begun:
            self._get_owner().producer.begin_transaction()
            self._begun = True

    def _produce(self, chunk: Chunk, first: int) -> None:
        """Produce the rows from ``first`` on. Hot: 0.7 us of Python per record, 1.1 with two headers."""
        self._begin()
        producer, report = self._get_owner().producer, self._refusals.callback_for(chunk)
        produce = producer.produce
        for offset, topic, partition, key, value, timestamp, headers in chunk.rows(first):
            try:
                produce(topic, value, key, partition, report, None, timestamp or FIRST_MS, headers)
                continue
            except BufferError:
                failed = None
            except KafkaException as error:
                failed = error
            # the client is not called inside of `except`: see transactions.call_in_thread
            if failed is None:
                record = (topic, value, key, partition, report, None, timestamp or FIRST_MS, headers)
                self._produce_when_free(producer, record)
            else:
                self._poll(producer)  # an earlier record's error says more than "the transaction failed"
                size = size_of(key, value, headers)
                self._refusals.add(chunk.input_partition, offset, topic, partition, size, failed.args[0])
                self._refusals.raise_first()
                raise self._failure(failed.args[0]) from failed
        self._poll(producer)

    def _produce_when_free(self, producer: Producer, record: tuple[Any, ...]) -> None:
        """Wait for room in the queue; it comes, since records are sent or fail by delivery.timeout.ms."""
        while True:
            self._poll(producer, QUEUE_FULL_WAIT_S)
            try:
                producer.produce(*record)
            except BufferError:
                continue
            return

    def _poll(self, producer: Producer, seconds: float = 0.0) -> None:
        """Run delivery callbacks; raises if a record was refused or the producer was fenced."""
        try:
            with unwrap_fatal():
                producer.poll(seconds)
        except KafkaException as error:
            raise self._failure(error.args[0]) from error
        self._refusals.raise_first()

    def _failure(self, error: KafkaError) -> ReplayfilterError:
        self.stats.fences += is_fence(error)
        if is_replaced(error):
            return replaced(self._lanes.service)
        return DeliveryError(
            f"lane {self._lanes.service}-{self._lane} could not deliver {self.stats.written} records: "
            f"{error.str()}; nothing of this attempt can be read, try the task again",
            self._lane,
        )

    def _end_without_commit(self) -> None:
        """End a delivery that has nothing to commit; the producer is kept."""
        owner, self._owner = self._get_owner(), None
        if self._begun:  # by Lanes.open, to check the ownership
            try:
                abort(owner.producer)
            except KafkaException:
                discard(owner.producer)
                return
        if owner.committed:
            self._lanes.keep_owner(self._lane, owner)

    def _was_delivered(self, next_offsets: Mapping[InputPartition, int]) -> bool:
        """After a failed commit: whether it, or another attempt at this batch, went through after all."""
        try:
            reached = self._lanes.committed(next_offsets, self.stats, OUTCOME_LIMIT_S)
        except DeliveryError:  # a transaction is still open, so the outcome is not known
            return False
        return all(reached[partition] >= end for partition, end in next_offsets.items())
