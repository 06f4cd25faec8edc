"""A consumer that drops replays, and keeps its marks with its committed offsets.

    consumer = FilteringConsumer({"bootstrap.servers": "localhost:9092", "group.id": "billing"})
    consumer.subscribe(["orders"])
    while True:
        message = consumer.poll(1.0)      # no replay comes out
        if message is not None:
            handle(message)
            consumer.commit()             # offsets and marks together

The marks of a partition are stored in the metadata of its committed offset. The consumer that gets
the partition next, in a rebalance or after a crash, has the marks that belong to the offset where it starts.
Records that were not committed are returned again, as with any Kafka consumer; replays are not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self
from weakref import ref

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition

from replayfilter.client.offset_metadata import Source, marks_from_text, marks_to_text
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.replay.marks import ReplayFilter
from replayfilter.core.stamp import STAMP_HEADER, Stamp, last_header
from replayfilter.errors import BrokerError, ConfigError, StampError

METADATA_LIMIT = 4_095  # characters: one less than offset.metadata.max.bytes, which is 4096 by default
MARK_TTL_HOURS = 48
ANSWER_LIMIT_S = 30.0
# Any mark below 2**42 is stored in 6 bytes: enough for 50 days at 1,000,000 records per second.
_LARGE_MARK = 1 << 41


class Store(Protocol):
    """Your own storage for offsets and marks: for many sources, or to store them with your results."""

    def load(self, topic: str, partition: int) -> tuple[int, str] | None:
        """The next offset and the marks that were last saved for a partition.

        None if there are none: then they are taken from the offset that the group committed in Kafka, if any.
        """

    def save(self, entries: Mapping[InputPartition, tuple[int, str]]) -> None:
        """Save the next offset and the marks of each partition, all or none.

        Best in the same transaction as your results.
        """


class _Partition:
    """The state of an assigned partition: its next offset, and the marks of the records before it."""

    def __init__(self, position: int, text: str | None) -> None:
        marks, self.last_seen = marks_from_text(text) if text else ({}, {})  # hour of each source
        self.filter = ReplayFilter(marks)
        self.position = position
        self.committed = position
        self.available: tuple[int, int] | None = None  # where the partition ended, and in which hour

    def text(self, hour: int) -> str:
        """The marks as text."""
        return marks_to_text(self.filter.marks, self.last_seen, hour)

    def forget_idle(self, end: int, hour: int, ttl: int) -> None:
        """Forget the marks of sources of which nothing came for ``ttl`` hours.

        The partition ends at ``end`` in this ``hour``, as far as is known. A source may have records among
        those that are still to be read. So marks are forgotten by the latest hour up to which all is read.
        """
        if self.available is not None and self.position >= self.available[1]:
            self._forget(self.available[0] - ttl)
            self.available = None
        if self.available is None and end >= 0:
            self.available = hour, end

    def _forget(self, oldest: int) -> None:
        for source in [source for source, hour in self.last_seen.items() if hour < oldest]:
            del self.last_seen[source], self.filter.marks[source]


class FilteringConsumer:
    """A confluent-kafka consumer whose ``poll`` leaves out replays.

    ``settings`` are confluent-kafka's, with a ``group.id``. ``enable.auto.commit`` is off, and ConfigError is
    raised if it is set, since only :meth:`commit` commits offsets together with their marks. Without
    committed offsets it starts at the earliest record, unless ``auto.offset.reset`` says otherwise.
    ``stamp`` is "key" or "header". Records without a stamp pass. Marks that were idle for ``mark_ttl_hours``
    are forgotten at a commit, once all that was there by then has been read.

    ``metadata_limit`` is the number of characters that the broker accepts, one less than its
    ``offset.metadata.max.bytes``; the default has room for about 400 sources per partition. With ``store``,
    offsets and marks are saved there instead. A partition that the store doesn't have yet starts with the
    offset and the marks that the group has in Kafka.

    A source's records must be in one partition, as :class:`StampingProducer` writes them. ``counts`` has
    ``passed``, ``replays``, ``unstamped`` and ``gaps``. Not for use by several threads at once.
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
        errors = []
        if stamp not in ("key", "header"):
            errors.append(f"stamp = {stamp!r}: use 'key' or 'header'")
        if str(settings.get("enable.auto.commit", False)).lower() not in ("false", "0"):
            errors.append(
                "setting enable.auto.commit of a filtering consumer: it would commit offsets without their "
                "marks; leave it out and call commit()"
            )
        if errors:
            raise ConfigError(errors)
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
        self._callback_error: BaseException | None = None
        self._partitions: dict[InputPartition, _Partition] = {}
        self._pending: list[Message] = []  # read, but not yet returned: at most one
        self.counts = {"passed": 0, "replays": 0, "unstamped": 0, "gaps": 0}

    def subscribe(self, topics: Sequence[str], before_revoke: Callable[[], None] | None = None) -> None:
        """Join the group for these topics.

        A call to :meth:`poll` means that all records returned before are handled: if the group revokes
        partitions during the call, their offsets are committed first. If you handle records later, give
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
        """The next record that isn't a replay; None if there is none within ``seconds``.

        Raises :class:`BrokerError` if reading fails. Raises :class:`StampError` instead of returning a record
        whose mark doesn't fit into the metadata; the records before it can still be committed. If a partition
        can't be started, or ``before_revoke`` fails, this and every later call raises that error: make a new
        consumer.
        """
        deadline = time.monotonic() + seconds
        while True:
            if not self._pending:
                left = max(0.0, deadline - time.monotonic())
                message = None if self._callback_error else self._consumer.poll(left)
                if self._callback_error is not None:
                    raise self._callback_error
                if message is None:
                    return None
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        continue
                    place = f"{message.topic()}[{message.partition()}]" if message.topic() else "the group"
                    raise BrokerError(
                        f"{place} can't be read: {error.str()}; check the topic, and the permissions to read "
                        "it and to use the group"
                    )
                self._pending.append(message)
            if self._passes(self._pending[0]):
                return self._pending.pop()
            self._pending.pop()

    def consume(self, most: int, seconds: float = 1.0) -> list[Message]:
        """Up to ``most`` records that aren't replays, as many as arrive within ``seconds``."""
        found: list[Message] = []
        deadline = time.monotonic() + seconds
        while len(found) < most and (message := self.poll(max(0.0, deadline - time.monotonic()))) is not None:
            found.append(message)
        return found

    def offsets(self) -> list[TopicPartition]:
        """The next offsets with the marks in their metadata, for ``send_offsets_to_transaction``.

        Not for use with a ``store``. After the transaction is committed call :meth:`committed`.
        """
        entries = self._entries(self._changed())
        return [TopicPartition(topic, number, *entry) for (topic, number), entry in entries.items()]

    def committed(self) -> None:
        """Tell the consumer that the result of :meth:`offsets` is committed."""
        for state in self._partitions.values():
            state.committed = state.position

    def commit(self) -> None:
        """Commit the offsets after all records returned so far, and the marks that belong to them.

        Raises :class:`BrokerError` if Kafka refuses, for instance because the partitions now belong to
        another consumer, which then gets the records again.
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
            failure = next((each.error for each in answers or () if each.error is not None), None)
        except KafkaException as error:
            failure = error.args[0]
        if failure is not None and self._store is None:  # with a store, Kafka's offsets only serve lag tools
            raise BrokerError(
                f"the offsets of {len(asked)} partitions can't be committed: {failure.str()}; if they "
                "belong to another consumer now, it gets the records again; otherwise check the brokers"
            )
        for partition in changed:
            self._partitions[partition].committed = entries[partition][0]

    def marks(self) -> dict[Source, int]:
        """The marks of the assigned partitions, by source: (pid, source partition)."""
        return {
            source: mark for state in self._partitions.values() for source, mark in state.filter.marks.items()
        }

    def consumer_group_metadata(self) -> Any:
        """The group metadata for ``send_offsets_to_transaction``."""
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        """Leave the group; offsets are committed as in a rebalance, and errors of that are raised here."""
        known = self._callback_error
        self._consumer.close()
        if self._callback_error is not None and self._callback_error is not known:
            raise self._callback_error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if kind is not None:
            self._before_revoke = lambda: None  # the last record may not be handled
        self.close()

    # -- assigned and revoked partitions -----------------------------------------------------------

    def _callback(self, act: Callable[[Self, Consumer, list[TopicPartition]], None]) -> Callable[..., None]:
        """A callback for the client that doesn't keep this object alive and leaves errors to the next poll.

        The client refers to its callbacks, so with a bound method an object that nobody closed would live
        until the garbage collector finds it. And the client would keep an exception of a callback for ever.
        """
        weak_self = ref(self)

        def call(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            if (me := weak_self()) is not None:
                try:
                    act(me, consumer, partitions)
                except BaseException as error:
                    me._callback_error = error

        return call

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Start at the saved or committed offset, with the marks that were saved or committed with it.

        A partition that the store doesn't have yet is taken over from Kafka. Its next commit saves it there.
        """
        keys = [(at.topic, at.partition) for at in partitions]
        loaded: dict[InputPartition, tuple[int, str | None]] = {}
        if self._store is not None:
            loaded |= {key: saved for key in keys if (saved := self._store.load(*key)) is not None}
        try:
            asked = [TopicPartition(*key) for key in keys if key not in loaded]
            found = consumer.committed(asked, timeout=ANSWER_LIMIT_S) if asked else []
        except KafkaException as error:
            raise BrokerError(
                f"the committed offsets of {len(partitions)} partitions can't be read: "
                f"{error.args[0].str()}; check that the brokers are up and that the group may be read"
            ) from error
        committed = {(at.topic, at.partition): (at.offset, at.metadata) for at in found if at.offset >= 0}
        loaded |= committed
        starts = []
        for at in partitions:
            offset, text = loaded.get((at.topic, at.partition), (OFFSET_INVALID, None))
            state = self._partitions[at.topic, at.partition] = _Partition(offset, text)
            if self._store is not None and (at.topic, at.partition) in committed:
                state.committed = OFFSET_INVALID  # not saved in the store yet
            starts.append(TopicPartition(at.topic, at.partition, offset))
        if self._incremental:
            consumer.incremental_assign(starts)
        else:
            consumer.assign(starts)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            (self._before_revoke or self.commit)()
        except BrokerError:
            pass  # the next owner starts at the older offset, with the marks that belong to it
        finally:
            self._drop(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._drop(partitions)  # another consumer may have them already

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        for at in partitions:
            self._partitions.pop((at.topic, at.partition), None)
        self._pending = [m for m in self._pending if (m.topic(), m.partition()) in self._partitions]

    # -- marks -------------------------------------------------------------------------------------

    def _passes(self, message: Message) -> bool:
        state = self._partitions[str(message.topic()), int(message.partition() or 0)]
        blob: Any = message.key()
        if not self._in_key:
            headers: Any = message.headers()
            blob = last_header(headers, STAMP_HEADER)
        stamp = Stamp.from_bytes(blob.encode() if isinstance(blob, str) else blob)
        if stamp is not None:
            self._make_room(state, stamp, message)
        gaps = state.filter.gaps
        passes = state.filter.accept(stamp)
        self.counts["gaps"] += state.filter.gaps - gaps
        self.counts["unstamped"] += stamp is None
        self.counts["passed" if passes else "replays"] += 1
        if stamp is not None:
            state.last_seen[stamp[:2]] = _hour()
        state.position = int(message.offset() or 0) + 1
        return passes

    def _make_room(self, state: _Partition, stamp: Stamp, message: Message) -> None:
        """Raise StampError if the mark of a new source doesn't fit into the metadata any more."""
        if self._store is not None or stamp[:2] in state.filter.marks:
            return
        needed = self._characters([*state.filter.marks, stamp[:2]], state)
        if needed > self._limit:
            self._forget_idle((str(message.topic()), int(message.partition() or 0)))
            needed = self._characters([*state.filter.marks, stamp[:2]], state)
        if needed > self._limit:
            raise StampError(
                f"{message.topic()}[{message.partition()}] offset {message.offset()}: the marks of "
                f"{len(state.filter.marks) + 1} sources need {needed} characters of offset metadata, the "
                f"limit is {self._limit}; give FilteringConsumer a store=..., or raise "
                "offset.metadata.max.bytes of the brokers and metadata_limit"
            )

    def _forget_idle(self, partition: InputPartition) -> None:
        _, end = self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
        self._partitions[partition].forget_idle(end, _hour(), self._ttl)

    def _characters(self, sources: list[Source], state: _Partition) -> int:
        """How long the text for the marks of these sources can get while marks grow and sources age."""
        marks = {source: max(_LARGE_MARK, state.filter.marks.get(source, 0)) for source in sources}
        return len(marks_to_text(marks, dict.fromkeys(sources, _hour() - self._ttl), _hour()))

    def _changed(self) -> list[InputPartition]:
        return [key for key, state in self._partitions.items() if state.position != state.committed]

    def _entries(self, partitions: Iterable[InputPartition]) -> dict[InputPartition, tuple[int, str]]:
        entries = {}
        for partition in partitions:
            state = self._partitions[partition]
            self._forget_idle(partition)
            text = state.text(_hour())
            if self._store is None and len(text) > self._limit:
                raise StampError(
                    f"{partition[0]}[{partition[1]}]: the marks need {len(text)} characters of offset "
                    f"metadata, the limit is {self._limit}; give FilteringConsumer a store=..."
                )
            entries[partition] = (state.position, text)
        return entries


def _hour() -> int:
    return int(time.time()) // 3600
