"""Bounded reads: the committed records in ranges of offsets, and then it stops.

Everything that reads a part of a topic uses this reader: the service's source, verification, doctor, advise,
the checks before a start, the lag poller, the sample for the batch size and the demo.

    ranges = {("orders", 0): (1_000, 2_000), ("orders", 1): (0, 500)}
    with RangeReader(settings, "replayfilter-verify") as reader:
        for message in reader.read(ranges):                         # every record, or BrokerError
            ...
        sample = reader.read_available(ranges, seconds=2.0)         # what can be read in two seconds

A range is (start, end): the first offset, and the one after the last. It is done when a record at or after
its last offset arrives, or at the end of the partition: some offsets have no record that can be read, since
transaction markers, aborted records and compacted records take offsets too. Only committed records are read.
A partition whose range is done is not fetched any more.

Records of one partition come in offset order; those of different partitions arrive interleaved.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from replayfilter.core.input_partition import InputPartition
from replayfilter.errors import BrokerError
from replayfilter.kafka.client_settings import Settings, refused_setting

Range = tuple[int, int]  # first offset, and the one after the last
Run = tuple[InputPartition, list[Message]]  # consecutive records of one partition

SILENCE_LIMIT_S = 60.0  # a broker's restart takes less
POLL_S = 0.1  # how late a time limit may be noticed
MESSAGES_PER_POLL = 10_000
SHOWN_PARTITIONS = 5  # in an error message
_REMEDY = "check that the brokers are up and that the topic may be read, then try again"


class _Step(NamedTuple):
    """The result of one poll of the consumer."""

    runs: list[Run]
    errors: dict[InputPartition, KafkaError]
    unread: Mapping[InputPartition, int]  # the ranges that aren't done
    received: bool  # whether the broker sent anything; the end of a partition counts

    def records(self) -> Iterator[Message]:
        """The records of all runs."""
        return chain.from_iterable(run for _, run in self.runs)


class RangeReader:
    """Reads ranges of offsets with one consumer, which may be used for several reads in a row.

    ``settings`` are a consumer's. ``group`` is only a name, since librdkafka requires a ``group.id``: the
    reader doesn't join the group, commits nothing, and needs no permission for it. ``offset_reset`` decides
    what happens if retention has deleted the start of a range: with "error", :meth:`read` raises an error;
    with "earliest" it continues at the first record that is still there.

    Not for use by several threads at once. Raises :class:`ConfigError` for settings that librdkafka refuses.
    """

    def __init__(
        self, settings: Settings, group: str, offset_reset: Literal["error", "earliest"] = "error"
    ) -> None:
        reading: Settings = {
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": offset_reset,
            "log_level": 0,  # every failure is raised
        }
        try:
            self._consumer = Consumer(settings | reading)
        except KafkaException as error:
            raise refused_setting(error) from error
        self._closed = False

    def read(
        self,
        ranges: Mapping[InputPartition, Range],
        *,
        per_partition: int | None = None,
        silence_s: float = SILENCE_LIMIT_S,
    ) -> Iterator[Message]:
        """All records in the ranges, or only the first ``per_partition`` of each.

        Raises :class:`BrokerError` if a partition can't be read, or if nothing arrives for ``silence_s``
        seconds. The time that the caller spends on a record doesn't count.
        """
        for step in self._steps_or_error(ranges, per_partition, silence_s):
            yield from step.records()

    def read_runs(
        self, ranges: Mapping[InputPartition, Range], *, silence_s: float, poll_s: float
    ) -> Iterator[list[Run]]:
        """All records in the ranges, as runs: what arrives within ``poll_s`` seconds, perhaps nothing.

        Raises what :meth:`read` raises. A partition that seems to end within its range is waited for.
        """
        for step in self._steps_or_error(ranges, None, silence_s, poll_s, whole=True):
            yield step.runs

    def read_available(
        self, ranges: Mapping[InputPartition, Range], seconds: float, *, per_partition: int | None = None
    ) -> list[Message]:
        """The records in the ranges that arrive within ``seconds``, for samples and estimates.

        Partitions that can't be read are left out without an error.
        """
        deadline = time.monotonic() + seconds
        found: list[Message] = []
        for step in self._steps(ranges, per_partition):
            found += step.records()
            if time.monotonic() >= deadline:
                break
        return found

    def close(self) -> None:
        """Close the consumer; no read may follow."""
        if not self._closed:
            self._closed = True
            self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _steps_or_error(
        self,
        ranges: Mapping[InputPartition, Range],
        per_partition: int | None,
        silence_s: float,
        poll_s: float = POLL_S,
        whole: bool = False,
    ) -> Iterator[_Step]:
        """Poll until every range is done, or raise BrokerError."""
        last_received = time.monotonic()
        for step in self._steps(ranges, per_partition, poll_s, whole):
            yield step
            for (topic, number), error in step.errors.items():
                raise BrokerError(f"{topic}-{number} can't be read: {error.str()}; {_REMEDY}")
            if step.received:
                last_received = time.monotonic()
            elif time.monotonic() - last_received > silence_s:
                raise BrokerError(
                    f"nothing arrived from {_names(step.unread)} for {silence_s:.0f} s; check that the "
                    "brokers are up and that the topic exists, then try again"
                )

    def _steps(
        self,
        ranges: Mapping[InputPartition, Range],
        per_partition: int | None,
        poll_s: float = POLL_S,
        whole: bool = False,
    ) -> Iterator[_Step]:
        """Poll until every range is done; a partition with an error isn't read further."""
        unread = {partition: end - start for partition, (start, end) in ranges.items() if start < end}
        if per_partition is not None:
            unread = {partition: min(size, per_partition) for partition, size in unread.items()}
        if not unread:
            return
        try:
            self._consumer.assign([TopicPartition(*partition, ranges[partition][0]) for partition in unread])
            while unread:
                yield self._poll(ranges, unread, poll_s, whole)
        except KafkaException as error:
            reason = error.args[0].str()
            raise BrokerError(f"{_names(unread)} can't be read: {reason}; {_REMEDY}") from error
        finally:
            if not self._closed:
                self._consumer.unassign()

    def _poll(
        self,
        ranges: Mapping[InputPartition, Range],
        unread: dict[InputPartition, int],
        poll_s: float,
        whole: bool,
    ) -> _Step:
        """One poll. ``unread`` has the ranges that aren't done, with the records wanted of each at most."""
        # consume() waits until it has all messages that it is asked for, or until the time is up.
        messages = self._consumer.consume(min(MESSAGES_PER_POLL, sum(unread.values())), poll_s)
        step = _Step([], {}, unread, bool(messages))
        done: list[TopicPartition] = []
        for partition, error, run in _runs(messages):
            if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                continue  # the client looks for the group's coordinator, which a reader doesn't need
            of_topic = partition[1] < 0  # an error that concerns all partitions
            if partition not in unread and not of_topic:
                continue  # fetched before its range was done
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                step.errors[partition] = error
            if of_topic:
                continue
            end, last = ranges[partition][1], int(run[-1].offset() or 0)
            if error is None:
                if last >= end:
                    # An offset is None only for an error, and a run has none.
                    run = run[: bisect_left(run, end, key=Message.offset)]  # type: ignore[arg-type]
                run = run[: unread[partition]]
                if run:
                    step.runs.append((partition, run))
                unread[partition] -= len(run)
                if last + 1 < end and unread[partition]:
                    continue
            elif whole and partition not in step.errors and last < end:
                continue  # a new leader may not know yet how far the partition has been committed
            del unread[partition]
            done.append(TopicPartition(*partition))
        if done and unread:  # at the end, all are unassigned
            self._consumer.incremental_unassign(done)
        return step


def _runs(messages: list[Message]) -> Iterator[tuple[InputPartition, KafkaError | None, list[Message]]]:
    """Stretches of messages of one partition, with their error if they are no records.

    This is done for every record that the service reads, so nothing is called in Python for each of them.
    """
    topics, errors = set(map(Message.topic, messages)), any(map(Message.error, messages))
    partitions: Iterable[Any] = map(Message.partition, messages)
    if errors or len(topics) > 1:
        # A KafkaError can be compared with numbers, and raises TypeError for anything else.
        codes = (None if error is None else error.code() for error in map(Message.error, messages))
        partitions = zip(map(Message.topic, messages), partitions, codes, strict=True)
    start = 0
    for _, same in groupby(partitions):
        end = start + len(list(same))
        first = messages[start]
        yield partition_of(first), first.error(), messages[start:end]
        start = end


def partition_of(message: Message) -> InputPartition:
    """The (topic, partition) that a message was read from."""
    return str(message.topic()), int(message.partition() or 0)


def _names(partitions: Iterable[InputPartition]) -> str:
    names = [f"{topic}-{number}" for topic, number in sorted(partitions)]
    more = [f"{len(names) - SHOWN_PARTITIONS} more"] if len(names) > SHOWN_PARTITIONS else []
    return ", ".join(names[:SHOWN_PARTITIONS] + more)
