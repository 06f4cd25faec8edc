"""A model of Kafka: logs, transactions with epochs and fencing, and one kind of consumer group.

What it takes from Kafka, because the proof of exactly once rests on it:

- A transactional id has a (producer id, epoch). ``init`` raises the epoch, so that every earlier owner is
  refused from then on, and ends what the earlier owner left open. An id that is not used for a week is
  forgotten.
- The end of a transaction is decided and confirmed at once. It takes effect in each partition on
  its own, when its marker is written there. Until then its records hold back ``read_committed`` readers, and
  its offsets are *pending*.
- Offsets with a membership are taken only from the current member; without one, from anybody. A static member
  that joins with the same instance id takes the place of the earlier one.
- Transactions that are open for too long are aborted; offsets of a group without members expire.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from replayfilter.core.input_partition import InputPartition

TRANSACTION_S = 300.0  # transaction.timeout.ms of the lanes
ID_EXPIRY_S = 7 * 86_400.0  # transactional.id.expiration.ms
RETENTION_S = 7 * 86_400.0  # offsets.retention.minutes
SLOW, SLOWEST_S = 0.15, 20.0  # transactions whose markers take long, as while a broker is away, and how long
Producer = tuple[int, int]  # producer id, epoch


def failure(code: int, *, retriable: bool = False, fatal: bool = False) -> KafkaException:
    """An error as librdkafka raises it."""
    return KafkaException(KafkaError(code, None, fatal, retriable, False))


@dataclass(eq=False)
class Transaction:
    """``outcome`` None while it is open; then it takes effect ``at`` one partition after the other."""

    began_at: float
    due: float  # its markers are not written before
    outcome: bool | None = None
    partitions: list[InputPartition] = field(default_factory=list)
    offsets: dict[InputPartition, tuple[int, str]] = field(default_factory=dict)
    marked: set[InputPartition] = field(default_factory=set)
    group: Group | None = None  # whose offsets are pending
    ended: bool = False  # all markers are written


class Record(NamedTuple):
    """A record in a log."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Any


class Entry(NamedTuple):
    """What has an offset: a record, or a transaction's marker (no record)."""

    record: Record | None
    transaction: Transaction | None


@dataclass(eq=False)
class Log:
    """One partition."""

    at: InputPartition
    entries: list[Entry] = field(default_factory=list)
    start: int = 0

    def stable_end(self) -> int:
        """The last stable offset: before the first record whose transaction has no marker here yet."""
        for offset, (record, transaction) in enumerate(self.entries):
            if record and transaction and self.at not in transaction.marked:
                return offset
        return len(self.entries)

    def committed(self, start: int = 0, end: int | None = None) -> Iterator[tuple[int, Record]]:
        """What a read_committed reader sees."""
        for offset in range(
            max(start, self.start), min(self.stable_end(), len(self.entries) if end is None else end)
        ):
            record, transaction = self.entries[offset]
            if record and (transaction is None or transaction.outcome):
                yield offset, record


@dataclass
class TransactionalId:
    """Who owns the id, and its transaction."""

    producer: Producer
    used_at: float
    transaction: Transaction | None = None


@dataclass
class Group:
    """A consumer group: its static members, and its committed and pending offsets."""

    generation: int = 0
    members: dict[str, str] = field(default_factory=dict)  # instance id -> member id
    offsets: dict[InputPartition, tuple[int, str]] = field(default_factory=dict)
    used_at: float = 0.0  # when it last had a member, or offsets were committed

    def check(self, membership: bytes) -> None:
        """Raise unless offsets may be committed with this membership."""
        instance, member, generation = json.loads(membership)
        if not member:
            return
        if instance in self.members and self.members[instance] != member:
            raise failure(KafkaError.FENCED_INSTANCE_ID)
        if member not in self.members.values():
            raise failure(KafkaError.UNKNOWN_MEMBER_ID)
        if generation != self.generation:
            raise failure(KafkaError.ILLEGAL_GENERATION)


class Broker:
    """The whole cluster. Each method is one request: it has its effect at once or raises KafkaException."""

    def __init__(self, random: Random, now: Callable[[], float]) -> None:
        self._random, self._now = random, now
        self.topics: dict[str, list[Log]] = {}
        self.ids: dict[str, TransactionalId] = {}
        self.groups: dict[str, Group] = {}
        self._ending: list[Transaction] = []  # decided, but not all markers are written
        self._numbers = 0

    # -- topics ----------------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int) -> None:
        """A topic, or more partitions for it."""
        logs = self.topics.setdefault(topic, [])
        logs += [Log((topic, number)) for number in range(len(logs), partitions)]

    def log(self, at: InputPartition) -> Log:
        """The log of a partition."""
        return self.topics[at[0]][at[1]]

    def append(self, at: InputPartition, record: Record) -> None:
        """Write a record without a transaction."""
        self.log(at).entries.append(Entry(record, None))

    # -- transactions ----------------------------------------------------------------------------------

    def init(self, name: str) -> Producer | None:
        """Own a transactional id. None: try again, since its last transaction has not ended yet."""
        self.pass_time()
        held = self.ids.get(name)
        if held is None:
            self._numbers += 1
            held = self.ids[name] = TransactionalId((self._numbers, -1), self._now())
        if held.transaction is not None and held.transaction.outcome is None:
            self._end(held, False)
            held.producer = held.producer[0], held.producer[1] + 1
        if held.transaction is not None and not held.transaction.ended:
            return None
        held.producer = held.producer[0], held.producer[1] + 1
        held.used_at, held.transaction = self._now(), None
        return held.producer

    def write(self, name: str, producer: Producer, at: InputPartition, records: Iterable[Record]) -> None:
        """Write records in the transaction of an id."""
        transaction = self._open(name, producer)
        if at not in transaction.partitions:
            transaction.partitions.append(at)
        self.log(at).entries.extend(Entry(record, transaction) for record in records)

    def send_offsets(
        self,
        name: str,
        producer: Producer,
        group: str,
        membership: bytes,
        offsets: dict[InputPartition, tuple[int, str]],
    ) -> None:
        """Add a group's offsets to the transaction of an id."""
        transaction = self._open(name, producer)
        found = self.groups.setdefault(group, Group())
        found.check(membership)
        transaction.group = found
        transaction.offsets |= offsets

    def end(self, name: str, producer: Producer, commit: bool) -> bool:
        """End the transaction of an id; False: try again, since an earlier one has not ended yet."""
        self.pass_time()
        held = self._owned(name, producer)
        transaction = held.transaction
        if transaction is None or (transaction.ended and transaction.outcome != commit):
            if transaction is None and not commit:
                return True
            raise failure(KafkaError.INVALID_TXN_STATE)
        if transaction.outcome is None:
            self._end(held, commit)
        elif transaction.outcome != commit:
            raise failure(KafkaError.INVALID_TXN_STATE)
        return True

    def _owned(self, name: str, producer: Producer) -> TransactionalId:
        held = self.ids.get(name)
        if held is None or held.producer[0] != producer[0]:
            raise failure(KafkaError.INVALID_PRODUCER_ID_MAPPING)
        if held.producer != producer:
            raise failure(KafkaError.PRODUCER_FENCED)
        held.used_at = self._now()
        return held

    def _open(self, name: str, producer: Producer) -> Transaction:
        self.pass_time()
        held = self._owned(name, producer)
        if held.transaction is not None and held.transaction.outcome is not None:
            while not held.transaction.ended:  # CONCURRENT_TRANSACTIONS: the client tries again by itself
                self._write_marker()
            held.transaction = None
        if held.transaction is None:
            held.transaction = Transaction(self._now(), self._now())
        return held.transaction

    def _end(self, held: TransactionalId, commit: bool) -> None:
        assert held.transaction is not None
        held.transaction.outcome = commit
        if self._random.random() < SLOW:
            held.transaction.due += self._random.random() * SLOWEST_S
        self._ending.append(held.transaction)

    def _write_marker(self) -> None:
        """Let one transaction that is decided take effect in one more place."""
        due = [each for each in self._ending if each.due <= self._now()]
        transaction = self._random.choice(due or self._ending)
        group = transaction.group
        open_ = [at for at in transaction.partitions if at not in transaction.marked]
        if group is not None and (not open_ or self._random.random() < 0.3):
            if transaction.outcome:
                group.offsets |= transaction.offsets
                group.used_at = self._now()
            transaction.group = None
        elif open_:
            at = self._random.choice(open_)
            transaction.marked.add(at)
            self.log(at).entries.append(Entry(None, transaction))
        if transaction.group is None and len(transaction.marked) == len(transaction.partitions):
            transaction.ended = True
            self._ending.remove(transaction)

    def pass_time(self) -> None:
        """What the brokers do by themselves: markers, timeouts, expiry."""
        now = self._now()
        while any(each.due <= now for each in self._ending) and self._random.random() < 0.6:
            self._write_marker()
        for name, held in list(self.ids.items()):
            transaction = held.transaction
            if transaction is not None and transaction.outcome is None:
                if now - transaction.began_at > TRANSACTION_S:
                    self._end(held, False)
                    held.producer = held.producer[0], held.producer[1] + 1
            elif now - held.used_at > ID_EXPIRY_S:
                del self.ids[name]
        for group in self.groups.values():
            if not group.members and now - group.used_at > RETENTION_S:
                pending = {at for each in self._group_transactions(group) for at in each.offsets}
                group.offsets = {at: each for at, each in group.offsets.items() if at in pending}

    def settle(self) -> None:
        """Write all markers."""
        while self._ending:
            self._write_marker()

    # -- groups ----------------------------------------------------------------------------------------

    def committed(
        self, group: str, partitions: Iterable[InputPartition], stable: bool
    ) -> dict[InputPartition, tuple[int, str]]:
        """The committed offsets. With ``stable`` none may be pending."""
        self.pass_time()
        found = self.groups.setdefault(group, Group())
        wanted = set(partitions)
        if stable and any(wanted & each.offsets.keys() for each in self._group_transactions(found)):
            raise failure(KafkaError.UNSTABLE_OFFSET_COMMIT, retriable=True)
        return {at: found.offsets[at] for at in wanted if at in found.offsets}

    def _group_transactions(self, group: Group) -> list[Transaction]:
        held = [each.transaction for each in self.ids.values() if each.transaction is not None]
        return [each for each in {*held, *self._ending} if each.group is group]

    def commit(self, group: str, membership: bytes, offsets: dict[InputPartition, tuple[int, str]]) -> None:
        """Commit offsets without a transaction."""
        found = self.groups.setdefault(group, Group())
        found.check(membership)
        found.offsets |= offsets
        found.used_at = self._now()

    def join(self, group: str, instance: str) -> bytes:
        """Join as a static member, in the place of the one that has it; the new membership."""
        found = self.groups.setdefault(group, Group())
        self._numbers += 1
        if instance not in found.members:
            found.generation += 1
        found.members[instance] = f"{instance}-{self._numbers}"
        return json.dumps([instance, found.members[instance], found.generation]).encode()

    def expire_member(self, group: str, member: str) -> None:
        """End the session of a member that was not seen for a while."""
        found = self.groups.setdefault(group, Group())
        kept = {instance: each for instance, each in found.members.items() if each != member}
        if kept != found.members:
            found.members, found.generation = kept, found.generation + 1
            found.used_at = self._now()
