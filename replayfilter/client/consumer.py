"""A consumer that drops replays, and keeps its marks with its committed offsets.

    consumer = FilteringConsumer({"bootstrap.servers": "localhost:9092", "group.id": "billing"})
    consumer.subscribe(["orders"])
    while True:
        message = consumer.poll(1.0)      # no replay comes out
        if message is not None:
            handle(message)
            consumer.commit()             # offsets and marks, in one

A partition's marks are written into the metadata of its committed offset, so whoever takes the partition
over, in a rebalance or after a crash, has the marks that belong to the offset at which it goes on. What was
not committed is handed out again, as with any Kafka consumer; a replay is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self
from weakref import ref

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition

from replayfilter.client.offset_metadata import marks_from_text, marks_to_text
from replayfilter.core.replay.marks import ReplayFilter
from replayfilter.core.stamp import STAMP_HEADER, Stamp
from replayfilter.errors import BrokerError, ConfigError, StampError

METADATA_LIMIT = 4_095  # letters; Kafka's offset.metadata.max.bytes is 4096, and it takes one less
MARK_TTL_HOURS = 48
ANSWER_LIMIT_S = 30.0
_ROOM = 1 << 41  # room is kept for marks up to 2**42: a million records a second for fifty days

Place = tuple[str, int]  # topic and partition


class Store(Protocol):
    """A place of your own for offsets and marks, if metadata is too small or results are kept there too."""

    def load(self, topic: str, partition: int) -> tuple[int, str] | None:
        """The next offset and the marks last saved for a partition; None: nothing yet."""

    def save(self, entries: Mapping[Place, tuple[int, str]]) -> None:
        """Keep next offset and marks of each partition, all or none; one transaction with your results."""


class _Partition:
    """What is known of an assigned partition: the next offset, and the marks of the records before it."""

    def __init__(self, position: int, text: str | None) -> None:
        marks, self.seen = marks_from_text(text) if text else ({}, {})
        self.filter = ReplayFilter(marks)
        self.position = position
        self.committed = position

    def text(self, hour: int) -> str:
        """The marks for the metadata."""
        return marks_to_text(self.filter.marks, self.seen, hour)

    def forget(self, oldest: int) -> None:
        """Forget the marks of sources not seen since that hour."""
        for source in [source for source, hour in self.seen.items() if hour < oldest]:
            del self.seen[source], self.filter.marks[source]


class FilteringConsumer:
    """A confluent-kafka consumer whose ``poll`` leaves replays out.

    ``settings`` are confluent-kafka's, with a ``group.id``; ``enable.auto.commit`` is off, since offsets
    and marks move together in :meth:`commit` only (ConfigError if it is asked for), and without committed
    offsets it starts at the earliest record unless ``auto.offset.reset`` says otherwise. ``stamp``: "key"
    or "header". Records without a stamp pass. Marks idle for ``mark_ttl_hours`` are forgotten at a commit.

    ``metadata_limit``: letters that the broker takes, one less than its ``offset.metadata.max.bytes``: about
    400 sources a partition. ``store``: keep offsets and marks there instead.

    A source's records must lie in one partition, as :class:`StampingProducer` writes them.
    ``counts`` has ``passed``, ``replays``, ``unstamped`` and ``gaps``. Not for several threads at once.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        stamp: Literal["key", "header"] = "key",
        mark_ttl_hours: int = MARK_TTL_HOURS,
        metadata_limit: int = METADATA_LIMIT,
        store: Store | None = None,
    ) -> None:
        faults = []
        if stamp not in ("key", "header"):
            faults.append(f"stamp = {stamp!r}: stamps are in the 'key' or a 'header'")
        if str(settings.get("enable.auto.commit", False)).lower() not in ("false", "0"):
            faults.append(
                "setting enable.auto.commit of a filtering consumer: it would commit offsets without their "
                "marks; leave it out and call commit()"
            )
        if faults:
            raise ConfigError(faults)
        defaults = {"auto.offset.reset": "earliest"}
        try:
            self._consumer = Consumer(defaults | dict(settings) | {"enable.auto.commit": False})
        except KafkaException as error:
            raise ConfigError(
                [f"settings of a filtering consumer: {error.args[0].str()}; correct them"]
            ) from error
        strategy = str(settings.get("partition.assignment.strategy", ""))
        self._incremental = "cooperative" in strategy or settings.get("group.protocol") == "consumer"
        self._in_key = stamp == "key"
        self._ttl = mark_ttl_hours
        self._limit = metadata_limit
        self._store = store
        self._before_revoke: Callable[[], None] | None = None
        self._fault: BaseException | None = None  # of a callback: see _callback
        self._partitions: dict[Place, _Partition] = {}
        self._held: list[Message] = []
        self.counts = {"passed": 0, "replays": 0, "unstamped": 0, "gaps": 0}

    def subscribe(self, topics: Sequence[str], before_revoke: Callable[[], None] | None = None) -> None:
        """Join the group for these topics.

        A call to :meth:`poll` says that what was handed out before is handled: when the group takes
        partitions away in it, they are committed first. If you handle records later than that, give
        ``before_revoke``, which is called instead: finish or abort your work, and commit.
        """
        if before_revoke is not None:
            self._before_revoke = before_revoke
        self._consumer.subscribe(
            list(topics),
            on_assign=self._callback(FilteringConsumer._on_assign),
            on_revoke=self._callback(FilteringConsumer._on_revoke),
            on_lost=self._callback(FilteringConsumer._on_lost),
        )

    def poll(self, seconds: float = 1.0) -> Message | None:
        """The next record that is no replay; None if there is none within ``seconds``.

        Raises :class:`BrokerError` if reading fails, and :class:`StampError` before a record is handed out
        whose mark would have no room any more; what came before it can still be committed. A partition that
        can't be begun, or a failed ``before_revoke``, is raised by each later call: make a new consumer.
        """
        deadline = time.monotonic() + seconds
        while True:
            if not self._held:
                message = None if self._fault else self._consumer.poll(max(0.0, deadline - time.monotonic()))
                if self._fault is not None:
                    raise self._fault
                if message is None:
                    return None
                fault = message.error()
                if fault is not None:
                    if fault.code() == KafkaError._PARTITION_EOF:
                        continue
                    raise BrokerError(
                        f"{message.topic()}[{message.partition()}] can't be read: {fault.str()}; check the "
                        "topic and the right to read it"
                    )
                self._held.append(message)
            if self._passes(self._held[0]):
                return self._held.pop()
            self._held.pop()

    def consume(self, most: int, seconds: float = 1.0) -> list[Message]:
        """Up to ``most`` records that are no replays, as many as there are within ``seconds``."""
        found: list[Message] = []
        deadline = time.monotonic() + seconds
        while len(found) < most and (message := self.poll(max(0.0, deadline - time.monotonic()))) is not None:
            found.append(message)
        return found

    def offsets(self) -> list[TopicPartition]:
        """Next offsets with the marks in their metadata, for ``send_offsets_to_transaction``.

        Only for marks kept in metadata. After the transaction is committed call :meth:`committed`.
        """
        entries = self._entries(self._changed())
        return [TopicPartition(topic, number, *entry) for (topic, number), entry in entries.items()]

    def committed(self) -> None:
        """Say that what :meth:`offsets` gave is committed."""
        for state in self._partitions.values():
            state.committed = state.position

    def commit(self) -> None:
        """Commit the offsets after all records handed out so far, and the marks that belong to them.

        Raises :class:`BrokerError` if Kafka refuses, for instance because the partitions have moved on to
        another consumer, which then hands out the records again.
        """
        changed = self._changed()
        if not changed:
            return
        entries = self._entries(changed)
        if self._store is not None:
            self._store.save(entries)
        asked = [
            TopicPartition(topic, number, offset, text if self._store is None else "")
            for (topic, number), (offset, text) in entries.items()
        ]
        try:
            answers = self._consumer.commit(offsets=asked, asynchronous=False)
            fault = next((each.error for each in answers or () if each.error is not None), None)
        except KafkaException as error:
            fault = error.args[0]
        if fault is not None and self._store is None:  # to a store it is only for lag tools
            raise BrokerError(f"the offsets of {len(asked)} partitions can't be committed: {fault.str()}")
        for place in changed:
            self._partitions[place].committed = entries[place][0]

    def marks(self) -> dict[tuple[int, int], int]:
        """(pid, source partition) -> mark, of the assigned partitions."""
        return {
            source: mark for state in self._partitions.values() for source, mark in state.filter.marks.items()
        }

    def consumer_group_metadata(self) -> Any:
        """What ``send_offsets_to_transaction`` wants of the group."""
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        """Leave the group; partitions are committed as in a rebalance, whose faults are raised here."""
        known = self._fault
        self._consumer.close()
        if self._fault is not None and self._fault is not known:
            raise self._fault

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if kind is not None:
            self._before_revoke = lambda: None  # the record in hand may not be handled
        self.close()

    # -- partitions come and go --------------------------------------------------------------------

    def _callback(self, act: Callable[[Self, Consumer, list[TopicPartition]], None]) -> Callable[..., None]:
        """For the client: keeps nobody alive, and leaves what fails to the next poll.

        The client holds its callbacks, so with a plain method an object that nobody closed would live until
        the garbage collector finds it. And what a callback raises the client would hold for ever.
        """
        alive = ref(self)

        def call(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            if (me := alive()) is not None:
                try:
                    act(me, consumer, partitions)
                except BaseException as fault:
                    me._fault = fault

        return call

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Start where offset and marks were committed together: never one without the other."""
        if self._store is None:
            try:
                found = consumer.committed(partitions, timeout=ANSWER_LIMIT_S)
            except KafkaException as error:
                raise BrokerError(f"committed offsets can't be read: {error.args[0].str()}") from error
            loaded = {(at.topic, at.partition): (at.offset, at.metadata) for at in found if at.offset >= 0}
        else:
            places = [(at.topic, at.partition) for at in partitions]
            loaded = {place: kept for place in places if (kept := self._store.load(*place)) is not None}
        starts = []
        for at in partitions:
            offset, text = loaded.get((at.topic, at.partition), (OFFSET_INVALID, None))
            self._partitions[at.topic, at.partition] = _Partition(offset, text)
            starts.append(TopicPartition(at.topic, at.partition, offset))
        if self._incremental:
            consumer.incremental_assign(starts)
        else:
            consumer.assign(starts)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            (self._before_revoke or self.commit)()
        except BrokerError:
            pass  # not committed: the next owner starts at the older offset, with the marks of that one
        finally:
            self._drop(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._drop(partitions)  # another consumer may have them already

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        for at in partitions:
            self._partitions.pop((at.topic, at.partition), None)
        self._held = [m for m in self._held if (m.topic(), m.partition()) in self._partitions]

    # -- marks -------------------------------------------------------------------------------------

    def _passes(self, message: Message) -> bool:
        state = self._partitions[str(message.topic()), int(message.partition() or 0)]
        blob: Any = message.key()
        if not self._in_key:
            blob = next(
                (value for name, value in reversed(message.headers() or []) if name == STAMP_HEADER), None
            )
        stamp = Stamp.from_bytes(blob.encode() if isinstance(blob, str) else blob)
        if stamp is not None:
            self._make_room(state, stamp, message)
        gaps = state.filter.gaps
        passes = state.filter.accept(stamp)
        self.counts["gaps"] += state.filter.gaps - gaps
        self.counts["unstamped"] += stamp is None
        self.counts["passed" if passes else "replays"] += 1
        if stamp is not None:
            state.seen[stamp[:2]] = _hour()
        state.position = int(message.offset() or 0) + 1
        return passes

    def _make_room(self, state: _Partition, stamp: Stamp, message: Message) -> None:
        """Before a new source is let in: will its marks still fit beside the offset?"""
        if self._store is not None or stamp[:2] in state.filter.marks:
            return
        needed = self._letters([*state.filter.marks, stamp[:2]], state)
        if needed > self._limit:
            state.forget(_hour() - self._ttl)
            needed = self._letters([*state.filter.marks, stamp[:2]], state)
        if needed > self._limit:
            raise StampError(
                f"{message.topic()}[{message.partition()}] offset {message.offset()}: the marks of "
                f"{len(state.filter.marks) + 1} sources need {needed} letters of offset metadata, the limit "
                f"is {self._limit}; give FilteringConsumer a store=..., or raise offset.metadata.max.bytes "
                "of the brokers and metadata_limit"
            )

    def _letters(self, sources: list[tuple[int, int]], state: _Partition) -> int:
        """What the marks of these sources take at most, with room to grow and to age."""
        marks = {source: max(_ROOM, state.filter.marks.get(source, 0)) for source in sources}
        return len(marks_to_text(marks, dict.fromkeys(sources, _hour() - self._ttl), _hour()))

    def _changed(self) -> list[Place]:
        return [place for place, state in self._partitions.items() if state.position != state.committed]

    def _entries(self, places: Iterable[Place]) -> dict[Place, tuple[int, str]]:
        entries = {}
        for place in places:
            state = self._partitions[place]
            state.forget(_hour() - self._ttl)
            text = state.text(_hour())
            if self._store is None and len(text) > self._limit:
                raise StampError(
                    f"{place[0]}[{place[1]}]: the marks need {len(text)} letters of offset metadata, the "
                    f"limit is {self._limit}; give FilteringConsumer a store=..."
                )
            entries[place] = (state.position, text)
        return entries


def _hour() -> int:
    return int(time.time()) // 3600
