"""A producer that stamps: the upstream job's half of replay filtering.

    pid = pid_for_topic("localhost:9092", "orders.raw", job="cleaner")
    with StampingProducer({"bootstrap.servers": "localhost:9092"}, "orders", pid) as producer:
        producer.produce(message.partition(), message.offset(), value)

A filter downstream treats every record at or below the highest offset of its source as a replay. This
producer therefore prevents three things: records out of source order, a record left out while a later one
is written, and two records with the same stamp.
"""

from __future__ import annotations

import struct
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Literal, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from replayfilter.client.producer_settings import producer_settings
from replayfilter.core.stamp import STAMP_HEADER, Stamp, stamp_packer
from replayfilter.errors import BrokerError, ConfigError, DeliveryError, StampError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.producer_limits import BATCH_SIZE
from replayfilter.kafka.transactions import call_in_thread, unwrap_fatal

POLL_SECONDS = 0.05  # how often delivery reports are handled while records are produced
REFRESH_SECONDS = 30.0  # how often the topic's number of partitions is read
ANSWER_LIMIT_S = 10.0  # a broker that is up answers in milliseconds
FLUSH_STEP_S = 1.0  # failed records are noticed at this interval while the last ones are sent
QUEUE_FULL_WAIT_S = 0.1  # a full queue empties in the background; poll returns when something was sent
_BEFORE_ALL = -(1 << 63) - 1  # below every offset that fits a stamp

Headers = list[tuple[str, str | bytes | None]]
Report = Callable[[KafkaError | None, Message], None]

_PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}  # by abort_transaction, for another failure


class PartitionsChanged(UserWarning):
    """The destination topic has another number of partitions than before."""


class _Reports:
    """Handles delivery reports.

    It must not refer to the producer: records in flight refer to this object, so a reference back would keep
    the producer alive for ever.
    """

    def __init__(self, topic: str, callback: Report | None) -> None:
        self.first_failure: str | None = None
        self._topic = topic
        self._callback = callback

    def add(self, error: KafkaError | None, message: Message | None) -> None:
        if error is not None and self.first_failure is None and error.code() not in _PURGED:
            self.first_failure = (
                f"topic {self._topic!r}: {error.name()}, {error.str()}; remove the cause and start the job "
                "again from its last checkpoint, with a new producer"
            )
        if self._callback is not None and message is not None:
            self._callback(error, message)


class StampingProducer:
    """Writes records with their stamps, in source order, to partition *source partition % partitions*.

    ``settings`` are confluent-kafka's; those that could reorder or lose records are refused with
    :class:`ConfigError`. ``pid`` identifies the job and its source topic: see :func:`producer_id` and
    :func:`pid_for_topic`. ``stamp`` is "key", or "header" if records have their own keys.
    ``on_delivery(error, message)`` is called for each record, by :meth:`produce`, :meth:`flush` and
    :meth:`poll`. With ``transactional_id`` records are written in :meth:`transaction` only.

    A failed record ends the producer: every later call raises :class:`DeliveryError`. Then start the job
    again from its last checkpoint, with a new producer. Not for use by several threads at once.
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
        Stamp(pid, 0, 0).to_bytes()  # raises if the pid is out of range
        self.topic = topic
        self.pid = pid
        self._pack = stamp_packer()
        self._in_key = stamp == "key"
        self._last: dict[int, int] = {}  # source partition -> last offset
        self._before: dict[int, int] | None = None  # _last as it was before the open transaction
        self._reports = _Reports(topic, on_delivery)
        self._report = self._reports.add
        self._transactional = transactional_id is not None
        self._producer = self._create(settings, transactional_id, all_reports=on_delivery is not None)
        self._send = self._producer.produce
        self.partitions = self._count_partitions()
        self._maintenance_due = 0.0  # 0: before the next record
        self._refresh_due = time.monotonic() + REFRESH_SECONDS
        if self._transactional:
            self._call(self._producer.init_transactions)

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
        """Write one record with the stamp of its source record; returns before it is delivered.

        The offsets of a source partition must ascend, or :class:`StampError` is raised: see
        :meth:`begin_replay`. ``timestamp_ms`` 0 means now. Waits while the client's queue is full. Raises
        :class:`DeliveryError` once a record has failed.
        """
        if source_offset <= self._last.get(source_partition, _BEFORE_ALL):
            raise self._not_ascending(source_partition, source_offset)
        if time.monotonic() > self._maintenance_due:
            self._maintain()
        try:
            stamp = self._pack(self.pid, source_partition, source_offset)
        except struct.error:
            Stamp(self.pid, source_partition, source_offset).to_bytes()  # raises StampError
            raise
        number = source_partition % self.partitions  # as partition_for, without a call
        try:
            if self._in_key and key is None and headers is None and not timestamp_ms:
                self._send(self.topic, value, stamp, number, self._report)  # the fastest path
            else:
                key, headers = self._with_stamp(stamp, key, headers)
                self._send_when_free(value, key, number, timestamp_ms, headers)
            self._last[source_partition] = source_offset
            return
        except BufferError:
            refused = None
        except KafkaException as error:
            refused = error
        if refused is not None:  # the client is not called inside of `except`: see call_in_thread
            if refused.args[0].code() == KafkaError._FATAL:
                self.poll()  # raises the fatal error itself
            raise self._refused(refused, source_partition, source_offset) from refused
        self._send_when_free(value, stamp, number, 0, None)
        self._last[source_partition] = source_offset

    def begin_replay(self, source_partition: int | None = None) -> None:
        """Announce that the offsets of one source partition, or of all (None), go back now.

        For a job that goes back to its checkpoint and keeps its producer. After the next record the offsets
        must ascend again. A new producer doesn't need this call.
        """
        if source_partition is None:
            self._last.clear()
        else:
            self._last.pop(source_partition, None)

    def poll(self, seconds: float = 0) -> None:
        """Handle delivery reports; waits for them for at most ``seconds``."""
        self._call(self._producer.poll, seconds)

    def flush(self, seconds: float | None = None) -> None:
        """Wait until every record is delivered; only after that may a job write its checkpoint.

        Raises :class:`DeliveryError` if any record failed, or if one isn't acknowledged after ``seconds``.
        With None it waits for the broker without limit, since no record times out.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:  # in steps, since the client waits for ever after a fatal error
            step = FLUSH_STEP_S if deadline is None else max(0.0, deadline - time.monotonic())
            left = self._call(self._producer.flush, min(step, FLUSH_STEP_S))
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
        """Write the block's records in one transaction; an exception aborts it.

        ``offsets`` of the consumer ``group`` (its ``consumer_group_metadata()``) are committed with it; the
        list may be filled in the block. Raises :class:`DeliveryError` if it can't be committed.
        """
        if not self._transactional:
            raise StampError(
                f"topic {self.topic!r}: make the producer with transactional_id=... to use transaction()"
            )
        self._call(self._producer.begin_transaction)
        self._before = dict(self._last)
        try:
            yield self
            if offsets:
                self._call(self._producer.send_offsets_to_transaction, list(offsets), group, seconds)
            self._call(self._producer.commit_transaction, seconds)
        except BaseException:
            self._last = self._before
            with suppress(KafkaException):  # the original error is raised
                call_in_thread(seconds + 2, lambda: self._abort(seconds))
            raise
        finally:
            self._before = None
            self._maintenance_due = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()

    # -- internals ---------------------------------------------------------------------------------

    def _abort(self, seconds: float) -> None:
        """Abort the transaction; its records are sent first.

        A producer that drops records on their way may fail in the next transaction.
        """
        deadline = time.monotonic() + seconds
        self._producer.flush(seconds)
        self._producer.abort_transaction(max(1.0, deadline - time.monotonic()))

    def _with_stamp(
        self, stamp: bytes, key: bytes | str | None, headers: Headers | None
    ) -> tuple[bytes | str | None, Headers | None]:
        if not self._in_key:
            own = [pair for pair in headers or () if pair[0] != STAMP_HEADER]
            return key, [*own, (STAMP_HEADER, stamp)]
        if key is not None:
            raise StampError("the stamp is the key here: use stamp='header' for records with their own key")
        return stamp, headers

    def _send_when_free(
        self, value: Any, key: Any, number: int, timestamp_ms: int, headers: Headers | None
    ) -> None:
        while True:
            try:
                self._send(
                    self.topic, value, key, number, self._report, timestamp=timestamp_ms, headers=headers
                )
                return
            except BufferError:
                self.poll(QUEUE_FULL_WAIT_S)

    def _create(
        self, settings: Mapping[str, Any], transactional_id: str | None, all_reports: bool
    ) -> Producer:
        chosen = producer_settings(settings, transactional_id)
        try:
            asking = {"log_level": chosen["log_level"], **settings}
            limit = Cluster("", admin=AdminClient(asking)).max_message_bytes([self.topic])
            if BATCH_SIZE not in settings and limit is not None:
                chosen[BATCH_SIZE] = min(chosen[BATCH_SIZE], limit)
            return Producer(chosen | {"delivery.report.only.error": not all_reports})
        except KafkaException as error:
            raise ConfigError(
                [f"settings of a stamping producer: {error.args[0].str()}; correct them"]
            ) from error

    def _maintain(self) -> None:
        """Do what isn't needed for every record; raises if no record may be written now."""
        if self._reports.first_failure is not None:
            raise DeliveryError(self._reports.first_failure)
        if self._transactional and self._before is None:
            raise StampError(f"topic {self.topic!r}: records go into `with producer.transaction():`")
        now = time.monotonic()
        self._maintenance_due = now + POLL_SECONDS
        self.poll()
        if now > self._refresh_due:
            self._refresh_due = now + REFRESH_SECONDS
            self.refresh()

    def refresh(self) -> None:
        """Read the topic's number of partitions again; called every 30 seconds while records are produced.

        If it has changed, all records so far are delivered first, and :class:`PartitionsChanged` is issued.
        """
        found = self._count_partitions()
        if found == self.partitions:
            return
        self.flush()
        warnings.warn(
            PartitionsChanged(
                f"topic {self.topic!r} has {found} partitions now, it had {self.partitions}: from now on a "
                "source's records go to another partition. Records before and after the change are not in "
                "order with each other: a reader that is behind may read later ones first and drop earlier "
                "ones as replays; let readers reach the end before the job continues"
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

    def _call(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """Call the client; raises DeliveryError for its error, and for any record that has failed so far."""
        try:
            with unwrap_fatal():
                answer = step(*arguments)
        except KafkaException as error:
            self._reports.add(error.args[0], None)
            self._maintenance_due = 0.0
            raise DeliveryError(self._reports.first_failure or error.args[0].str()) from error
        if self._reports.first_failure is not None:
            self._maintenance_due = 0.0
            raise DeliveryError(self._reports.first_failure)
        return answer

    def _refused(self, error: KafkaException, partition: int, offset: int) -> DeliveryError:
        return DeliveryError(
            f"the record from source partition {partition} offset {offset} is refused before it is sent: "
            f"{self._reports.first_failure or error.args[0].str()}"
        )

    def _not_ascending(self, partition: int, offset: int) -> StampError:
        last = self._last[partition]
        if offset == last:
            return StampError(
                f"source partition {partition}: offset {offset} was written already, and the filter would "
                "drop the second record as a replay: write one record for each source record (a list in its "
                "value), or write the others to other topics"
            )
        return StampError(
            f"source partition {partition}: offset {offset} after {last} goes back; write in source order, "
            "or call begin_replay() if the job goes back to its checkpoint"
        )
