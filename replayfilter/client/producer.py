"""A producer that stamps: the upstream job's half of replay filtering.

    pid = pid_for_topic("localhost:9092", "orders.raw", job="cleaner")
    with StampingProducer({"bootstrap.servers": "localhost:9092"}, "orders", pid) as producer:
        producer.produce(message.partition(), message.offset(), value)

A filter downstream takes whatever is at or below the highest offset of its source for a replay. So three
things must never happen, and this producer sees to it: a record written before one that it comes after, a
record left out while a later one is written, and two records with the same stamp.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from struct import error as OutOfRange
from types import TracebackType
from typing import Any, Literal, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from replayfilter.core.stamp import STAMP_HEADER, Stamp, stamp_packer
from replayfilter.errors import BrokerError, ConfigError, DeliveryError, StampError
from replayfilter.kafka.transactions import call_in_thread, unwrap_fatal

POLL_SECONDS = 0.05  # between two looks at delivery reports while records are produced
REFRESH_SECONDS = 30.0  # between two looks at the topic's number of partitions
ANSWER_LIMIT_S = 10.0  # a broker that is up answers in milliseconds
FLUSH_STEP_S = 1.0  # between two looks at failed records while the last ones are sent
FULL_WAIT_S = 0.1  # a full queue drains in the background; poll returns when something was sent
_NEVER = -(1 << 63) - 1  # below each offset that fits a stamp

Headers = list[tuple[str, str | bytes | None]]
Report = Callable[[KafkaError | None, Message], None]

_SAFE: dict[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 20,  # full batches; flush sends at once
    "batch.size": 1_000_000,  # bytes
    "allow.auto.create.topics": False,  # a topic made by accident has the wrong number of partitions
    "log_level": 3,  # errors; what fails is raised in words
}
_PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}  # by abort_transaction, which is told anyway
_TRUE, _ALL = {"true", "1"}, {"all", "-1"}
_TIMEOUT = (
    "a record that times out is left out while later ones arrive, and taken for a replay when it is written "
    "again; leave it out, and give flush a time"
)
# What each setting may be if it is given at all, and why.
_CHECKS: dict[str, tuple[Callable[[str], bool], str]] = {
    "enable.idempotence": (
        _TRUE.__contains__,
        "without it a retry inside the client can change the order; leave it out",
    ),
    "acks": (_ALL.__contains__, "below 'all' a record can be lost after later ones arrived; leave it out"),
    "request.required.acks": (_ALL.__contains__, "below 'all' a record can be lost; leave it out"),
    "retries": (lambda n: int(n) > 0, "without retries each hiccup of a broker is a failure; leave it out"),
    "message.send.max.retries": (lambda n: int(n) > 0, "without retries each hiccup fails; leave it out"),
    "max.in.flight": (lambda n: int(n) <= 5, "above 5 the order is not kept; leave it out"),
    "max.in.flight.requests.per.connection": (
        lambda n: int(n) <= 5,
        "above 5 the order is not kept; leave it out",
    ),
    "enable.gapless.guarantee": (
        _TRUE.__contains__,
        "a record that failed would be left out, and taken for a replay when written again; leave it out",
    ),
    "delivery.timeout.ms": (lambda n: int(n) == 0, _TIMEOUT),
    "message.timeout.ms": (lambda n: int(n) == 0, _TIMEOUT),
    "queuing.strategy": (lambda name: name == "fifo", "another order than the calls'; leave it out"),
    "transactional.id": (lambda _: False, "give it as transactional_id=..."),
    "delivery.report.only.error": (lambda _: False, "give on_delivery=... to hear of each record"),
    "on_delivery": (lambda _: False, "give it as on_delivery=..."),
    "dr_cb": (lambda _: False, "give it as on_delivery=..."),
}


class PartitionsChanged(UserWarning):
    """The destination topic has another number of partitions than before."""


class _Reports:
    """Delivery reports. Knows no producer: one that held itself through them would never go."""

    def __init__(self, topic: str, callback: Report | None) -> None:
        self.failed: str | None = None  # the first failure, in words
        self._topic = topic
        self._callback = callback

    def add(self, fault: KafkaError | None, message: Message | None) -> None:
        if fault is not None and self.failed is None and fault.code() not in _PURGED:
            self.failed = (
                f"topic {self._topic!r}: {fault.name()}, {fault.str()}; remove the cause and start the job "
                "again from its last checkpoint, with a new producer"
            )
        if self._callback is not None and message is not None:
            self._callback(fault, message)


class StampingProducer:
    """Writes records with their stamps, in source order, to partition *source partition % partitions*.

    ``settings`` are confluent-kafka's; those that could reorder or lose records are refused with
    :class:`ConfigError`. ``pid`` names the job and its source topic: see :func:`producer_id` and
    :func:`pid_for_topic`. ``stamp``: "key", or "header" if records keep a key of their own.
    ``on_delivery(error, message)`` is called for each record, by :meth:`produce`, :meth:`flush` and
    :meth:`poll`. With ``transactional_id`` records are written in :meth:`transaction` only.

    A failed record ends the producer: every call from then on raises :class:`DeliveryError`. Then let the
    job start again from its last checkpoint, with a new producer. Not for several threads at once.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topic: str,
        pid: int,
        *,
        stamp: Literal["key", "header"] = "key",
        transactional_id: str | None = None,
        on_delivery: Report | None = None,
    ) -> None:
        if stamp not in ("key", "header"):
            raise StampError(f"stamp = {stamp!r}: put the stamp into the 'key' or a 'header'")
        Stamp(pid, 0, 0).to_bytes()  # raises if the pid doesn't fit
        self.topic = topic
        self.pid = pid
        self._pack = stamp_packer()
        self._in_key = stamp == "key"
        self._last: dict[int, int] = {}  # source partition: last offset
        self._before: dict[int, int] | None = None  # the same before the open transaction
        self._reports = _Reports(topic, on_delivery)
        self._report = self._reports.add
        self._transactional = transactional_id is not None
        self._producer = self._make(settings, transactional_id, only_errors=on_delivery is None)
        self._send = self._producer.produce
        self.partitions = self._count_partitions()
        self._due = 0.0
        self._refresh_due = time.monotonic() + REFRESH_SECONDS
        if self._transactional:
            self._tried(self._producer.init_transactions)

    # -- writing -----------------------------------------------------------------------------------

    def produce(
        self,
        source_partition: int,
        source_offset: int,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
    ) -> None:
        """Write one record made from the given place of the source; returns before it is delivered.

        Offsets of a source partition must ascend, else :class:`StampError`: see :meth:`begin_replay`.
        ``timestamp_ms`` 0: now. Waits while the client's queue is full. Raises :class:`DeliveryError` once
        a record has failed.
        """
        if source_offset <= self._last.get(source_partition, _NEVER):
            raise self._goes_back(source_partition, source_offset)
        if time.monotonic() > self._due:
            self._tend()
        try:
            stamp = self._pack(self.pid, source_partition, source_offset)
        except OutOfRange:
            Stamp(self.pid, source_partition, source_offset).to_bytes()  # raises it in words
            raise
        number = source_partition % self.partitions  # as partition_for has it; a call less
        try:
            if self._in_key and key is None and headers is None and not timestamp_ms:
                self._send(self.topic, value, stamp, number, self._report)  # the shortest way
            else:
                key, headers = self._dressed(stamp, key, headers)
                self._send_patiently(value, key, number, timestamp_ms, headers)
            self._last[source_partition] = source_offset
            return
        except BufferError:
            refused = None
        except KafkaException as error:
            refused = error
        if refused is not None:  # the client is called outside of `except`: see transactions.apart
            if refused.args[0].code() == KafkaError._FATAL:
                self.poll()  # raises what it was
            raise self._refused(refused, source_partition, source_offset) from refused
        self._send_patiently(value, stamp, number, 0, None)
        self._last[source_partition] = source_offset

    def begin_replay(self, source_partition: int | None = None) -> None:
        """Say that offsets go back now, of one source partition or (None) of all of them.

        For a job that goes back to its checkpoint and keeps its producer. From then on offsets must ascend
        again. A new producer needs no such call.
        """
        if source_partition is None:
            self._last.clear()
        else:
            self._last.pop(source_partition, None)

    def poll(self, seconds: float = 0) -> None:
        """Handle delivery reports, waiting for them at most ``seconds``."""
        self._tried(self._producer.poll, seconds)

    def flush(self, seconds: float | None = None) -> None:
        """Return once every record is delivered; only then may a job keep its checkpoint.

        Raises :class:`DeliveryError` if any record failed, or isn't acknowledged after ``seconds``; None:
        waits for the broker as long as it takes, since no record times out by itself.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:  # in steps: after a fatal error the client would wait for ever
            step = FLUSH_STEP_S if deadline is None else max(0.0, deadline - time.monotonic())
            left = self._tried(self._producer.flush, min(step, FLUSH_STEP_S))
            if not left or (deadline is not None and time.monotonic() >= deadline):
                break
        if left:
            raise DeliveryError(
                f"topic {self.topic!r}: {left} records are not acknowledged after {seconds} s; call flush "
                "again, or start the job again from its last checkpoint"
            )

    @contextmanager
    def transaction(
        self, offsets: Sequence[TopicPartition] = (), group: Any = None, seconds: float = 60.0
    ) -> Iterator[Self]:
        """Write the block's records in one transaction; an exception aborts it and takes them back.

        ``offsets`` of the consumer ``group`` (its ``consumer_group_metadata()``) are committed with it; the
        list may be filled in the block. Raises :class:`DeliveryError` if it can't be committed.
        """
        if not self._transactional:
            raise StampError(
                f"topic {self.topic!r}: make the producer with transactional_id=... to use transaction()"
            )
        self._tried(self._producer.begin_transaction)
        self._before = dict(self._last)
        try:
            yield self
            if offsets:
                self._tried(self._producer.send_offsets_to_transaction, list(offsets), group, seconds)
            self._tried(self._producer.commit_transaction, seconds)
        except BaseException:
            self._last = self._before
            with suppress(KafkaException):  # what went wrong before is raised
                call_in_thread(seconds + 1, lambda: self._producer.abort_transaction(seconds))
            raise
        finally:
            self._before = None
            self._due = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()

    # -- what goes on behind -----------------------------------------------------------------------

    def _dressed(
        self, stamp: bytes, key: bytes | str | None, headers: Headers | None
    ) -> tuple[bytes | str | None, Headers | None]:
        if not self._in_key:
            own = [pair for pair in headers or () if pair[0] != STAMP_HEADER]
            return key, [*own, (STAMP_HEADER, stamp)]
        if key is not None:
            raise StampError("the stamp is the key here: use stamp='header' for records with their own key")
        return stamp, headers

    def _send_patiently(
        self, value: Any, key: Any, number: int, timestamp_ms: int, headers: Headers | None
    ) -> None:
        while True:
            try:
                self._send(
                    self.topic, value, key, number, self._report, timestamp=timestamp_ms, headers=headers
                )
                return
            except BufferError:
                self.poll(FULL_WAIT_S)

    def _make(self, settings: Mapping[str, Any], transactional_id: str | None, only_errors: bool) -> Producer:
        checks = {
            name: check for name, check in _CHECKS.items() if not transactional_id or check[1] != _TIMEOUT
        }
        faults = [
            f"setting {name} = {value!r} of a stamping producer: {checks[name][1]}"
            for name, value in settings.items()
            if name in checks and not _allows(name, value)
        ]
        if faults:
            raise ConfigError(faults)
        ours: dict[str, Any] = {"delivery.report.only.error": only_errors}
        if transactional_id is None:
            # Without these a record that is refused, or times out, is left out, later ones arrive, and
            # when the job writes it again it counts as a replay. A transaction fails as a whole anyway.
            ours |= {"enable.gapless.guarantee": True, "delivery.timeout.ms": 0}
        else:
            ours["transactional.id"] = transactional_id
        try:
            return Producer(_SAFE | dict(settings) | ours)
        except KafkaException as error:
            raise ConfigError(
                [f"settings of a stamping producer: {error.args[0].str()}; correct them"]
            ) from error

    def _tend(self) -> None:
        """What needn't be done at each record; ``_due`` is when. 0 if no record may be written now."""
        if self._reports.failed is not None:
            raise DeliveryError(self._reports.failed)
        if self._transactional and self._before is None:
            raise StampError(f"topic {self.topic!r}: records go into `with producer.transaction():`")
        now = time.monotonic()
        self._due = now + POLL_SECONDS
        self.poll()
        if now > self._refresh_due:
            self._refresh_due = now + REFRESH_SECONDS
            self.refresh()

    def refresh(self) -> None:
        """Read the topic's number of partitions again; done every 30 seconds while records are produced.

        If it has changed, what is under way is delivered first, and there is a :class:`PartitionsChanged`.
        """
        found = self._count_partitions()
        if found == self.partitions:
            return
        self.flush()
        warnings.warn(
            PartitionsChanged(
                f"topic {self.topic!r} has {found} partitions now, it had {self.partitions}: from here on a "
                "source's records go to another partition. Their order holds before and after, not across: "
                "a reader that is behind may meet later ones first, and takes earlier ones for replays; let "
                "readers reach the end before the job goes on"
            ),
            stacklevel=2,
        )
        self.partitions = found

    def _count_partitions(self) -> int:
        try:
            answer = self._producer.list_topics(self.topic, timeout=ANSWER_LIMIT_S).topics[self.topic]
        except KafkaException as error:
            raise BrokerError(
                f"no Kafka broker answered when asked for the partitions of topic {self.topic!r}: "
                f"{error.args[0].str()}; correct bootstrap.servers or start the broker"
            ) from error
        if answer.error is not None:
            raise BrokerError(f"topic {self.topic!r}: {answer.error.str()}; create it first")
        return len(answer.partitions)

    def _tried(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """Call the client; whatever has failed by then is raised as DeliveryError."""
        try:
            with unwrap_fatal():
                answer = step(*arguments)
        except KafkaException as error:
            self._reports.add(error.args[0], None)
            self._due = 0.0
            raise DeliveryError(self._reports.failed) from error
        if self._reports.failed is not None:
            self._due = 0.0
            raise DeliveryError(self._reports.failed)
        return answer

    def _refused(self, error: KafkaException, partition: int, offset: int) -> DeliveryError:
        return DeliveryError(
            f"the record from source partition {partition} offset {offset} is refused before it is sent: "
            f"{self._reports.failed or error.args[0].str()}"
        )

    def _goes_back(self, partition: int, offset: int) -> StampError:
        last = self._last[partition]
        if offset == last:
            return StampError(
                f"source partition {partition}: offset {offset} was written already, and the filter would "
                "drop the second record as a replay: make one record of each source record (a list in its "
                "value), or write the others to topics of their own"
            )
        return StampError(
            f"source partition {partition}: offset {offset} after {last} goes back; write in source order, "
            "or say begin_replay() if the job goes back to its checkpoint"
        )


def _allows(name: str, value: Any) -> bool:
    try:
        return _CHECKS[name][0](str(value).lower())
    except ValueError:
        return False
