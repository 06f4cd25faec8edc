"""Writes the records of topics into files, each record exactly once.

    with FileSink({"bootstrap.servers": "localhost:9092"}, ["orders.unique"], "archive", write) as sink:
        while True:
            sink.step()

A file is written under a temporary name, forced to the disk and then renamed, so it is whole or not there.
Its name says which records it holds: TOPIC+PARTITION+FIRST OFFSET+LAST OFFSET, as Kafka Connect's sinks do.
The names are all that has to be known to go on after a crash: each partition continues behind its last file.
Nothing is committed to Kafka, and there is no consumer group: a lock on the folder keeps a second writer out.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from replayfilter.core.input_partition import InputPartition
from replayfilter.errors import BrokerError, ConfigError, StorageError

REFRESH_S = 30.0  # how often topics are asked for new partitions
_ANSWER_LIMIT_S = 30.0
_AT_ONCE = 5_000  # records taken from the client in one call
_LOCK = ".lock"
_DIGITS = 10  # of offsets in names, so that names of usual length sort by offset
_TEMPORARY = re.compile(r"\.[\w.-]+\+\d+\.tmp", re.ASCII)
_NAME = re.compile(r"(?P<topic>[\w.-]+)\+(?P<partition>\d+)\+(?P<first>\d+)\+(?P<last>\d+)", re.ASCII)

Write = Callable[[Path, Sequence[Message]], object]


class FileSink:
    """Writes the records of ``topics`` into files of ``folder``, which one process at a time may use.

    ``settings`` are confluent-kafka's. ``write(path, records)`` creates a file with confluent-kafka messages
    of one partition, in the order of their offsets. A file is written when a partition has ``max_records`` of
    them, when its oldest one has waited for ``max_seconds``, or when all that wait have more than
    ``max_bytes``. ``suffix`` is the end of the names.

    A partition without a file begins at its first record. A topic's new partitions are found within half a
    minute. Raises :class:`ConfigError` for settings that would write records twice, or never, and
    :class:`StorageError` for a folder that can't be used. Not for use by several threads at once.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topics: Iterable[str],
        folder: str | Path,
        write: Write,
        *,
        suffix: str = ".parquet",
        max_records: int = 100_000,
        max_seconds: float = 60.0,
        max_bytes: int = 256_000_000,
    ) -> None:
        self._topics, self._folder, self._suffix = sorted(set(topics)), Path(folder), suffix
        self._write = write
        self._max_records, self._max_seconds, self._max_bytes = max_records, max_seconds, max_bytes
        self._failure: BrokerError | None = None
        self._waiting: dict[InputPartition, _Waiting] = {}
        self._assigned: set[InputPartition] = set()
        self._refresh_at = 0.0
        with ExitStack() as opened:
            self._lock = _locked(self._folder)
            opened.callback(os.close, self._lock)
            self._ends = _ends_of(self._folder, suffix)
            self._consumer = _consumer(settings)
            opened.pop_all()

    def step(self, seconds: float = 1.0) -> list[Path]:
        """Read for up to ``seconds``, and return the files that became due and were written.

        Raises :class:`BrokerError` if reading fails, now and in each later call: make a new sink. Raises
        :class:`StorageError` if a file can't be renamed, and what ``write`` raises: the next call tries that
        file again.
        """
        self._assign_new()
        messages = [] if self._failure else self._consumer.consume(_AT_ONCE, seconds)
        for message in messages:
            self._keep(message)  # an error may stand between records
        if self._failure:
            raise self._failure
        too_much = sum(waiting.bytes for waiting in self._waiting.values()) > self._max_bytes
        return [
            path
            for partition in list(self._waiting)
            for path in self._write_files(partition, all_of_it=too_much or self._is_old(partition))
        ]

    def flush(self) -> list[Path]:
        """Write all that was read into files, and return them."""
        return [path for partition in list(self._waiting) for path in self._write_files(partition, True)]

    def close(self) -> None:
        """Free the folder for another sink; records that are in no file yet are read again."""
        self._consumer.close()
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def _assign_new(self) -> None:
        """Read the partitions that are not read yet, from where their files end."""
        if time.monotonic() < self._refresh_at:
            return
        found: set[InputPartition] = set()
        for topic in self._topics:
            try:
                known = self._consumer.list_topics(topic, timeout=_ANSWER_LIMIT_S).topics[topic]
            except KafkaException as error:
                raise BrokerError(
                    f"the partitions of {topic} can't be read: {error.args[0].str()}; check that the brokers "
                    "are up"
                ) from error
            if known.error is not None:
                raise BrokerError(
                    f"{topic} can't be read: {known.error.str()}; check the topic and the permissions"
                )
            found |= {(topic, number) for number in known.partitions}
        if new := sorted(found - self._assigned):
            starts = (self._ends.get(partition, OFFSET_BEGINNING) for partition in new)
            self._consumer.incremental_assign(
                [TopicPartition(*partition, start) for partition, start in zip(new, starts, strict=True)]
            )
            self._assigned |= found
        self._refresh_at = time.monotonic() + REFRESH_S

    def _keep(self, message: Message) -> None:
        error, partition = message.error(), (str(message.topic()), int(message.partition() or 0))
        if error is None:
            self._waiting.setdefault(partition, _Waiting()).add(message)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            start = self._ends.get(partition, 0)
            self._failure = BrokerError(
                f"{partition[0]}[{partition[1]}] has no offset {start}, which follows on its last file in "
                f"{self._folder}: Kafka has deleted records that are in no file, or the topic was created "
                "again. To go on without them, rename that file so that its last number is the one before "
                "the first offset to be read; for a new topic, use a new folder"
            )
        elif error.code() != KafkaError._PARTITION_EOF:
            place = f"{partition[0]}[{partition[1]}]" if message.topic() else "a topic"
            self._failure = BrokerError(
                f"{place} can't be read: {error.str()}; check the topic, and the permission to read it"
            )

    def _is_old(self, partition: InputPartition) -> bool:
        return time.monotonic() - self._waiting[partition].since >= self._max_seconds

    def _write_files(self, partition: InputPartition, all_of_it: bool) -> Iterator[Path]:
        """Write the waiting records of a partition; without ``all_of_it`` only what fills a file."""
        waiting = self._waiting[partition]
        while len(waiting.messages) >= (1 if all_of_it else self._max_records):
            yield self._write_file(partition, waiting)
        if not waiting.messages:
            del self._waiting[partition]

    def _write_file(self, partition: InputPartition, waiting: _Waiting) -> Path:
        """Write a file, under the name by which a restart knows what is in it."""
        messages = waiting.messages[: self._max_records]
        first, last = int(messages[0].offset() or 0), int(messages[-1].offset() or 0)
        topic, number = partition
        path = self._folder / f"{topic}+{number}+{first:0{_DIGITS}}+{last:0{_DIGITS}}{self._suffix}"
        # The dot hides it from Spark, Hive and the like; without the suffix no pattern of theirs finds it.
        temporary = self._folder / f".{topic}+{number}.tmp"
        self._write(temporary, messages)
        try:
            _force_to_disk(temporary)
            os.rename(temporary, path)
            waiting.remove(len(messages))
            self._ends[partition] = last + 1
            _force_to_disk(self._folder)
        except OSError as error:
            raise StorageError(
                f"{path} can't be written: {error}; correct it and start again, nothing is lost"
            ) from error
        return path


class _Waiting:
    """Records of a partition that are in no file yet."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.bytes = 0
        self.since = time.monotonic()

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self.bytes += _size(message)

    def remove(self, count: int) -> None:
        """Remove the first records; those behind them came later."""
        self.bytes -= sum(map(_size, self.messages[:count]))
        del self.messages[:count]
        self.since = time.monotonic()


def _size(message: Message) -> int:
    return len(message.value() or b"") + len(message.key() or b"")


def _consumer(settings: Mapping[str, Any]) -> Consumer:
    """A consumer of committed records that never joins its group; raises ConfigError."""
    fixed = {"enable.auto.commit": False, "auto.offset.reset": "error", "isolation.level": "read_committed"}
    wrong = [
        f"setting {name} = {settings[name]!r} of a file sink: leave it out, it is {value!r}"
        for name, value in fixed.items()
        if name in settings and str(settings[name]).lower() != str(value).lower()
    ]
    if wrong:
        raise ConfigError(wrong)
    try:
        return Consumer({"group.id": "replayfilter-file-sink"} | dict(settings) | fixed)
    except KafkaException as error:
        raise ConfigError([f"settings of a file sink: {error.args[0].str()}; correct them"]) from error


def _locked(folder: Path) -> int:
    """The descriptor of a lock on the folder, which the kernel frees when this process ends in any way."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise
    except BlockingIOError:
        raise StorageError(
            f"another file sink writes to {folder}: stop it, or give this one a folder of its own"
        ) from None
    except OSError as error:
        raise StorageError(f"{folder} can't be written to: {error}; correct the path or its owner") from error
    return lock


def _ends_of(folder: Path, suffix: str) -> dict[InputPartition, int]:
    """The offset after the last file of each partition. Deletes what a killed sink had not finished.

    Raises :class:`StorageError` if two files hold the same records.
    """
    files: dict[InputPartition, list[tuple[int, int, str]]] = {}
    for path in folder.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            path.unlink()
        elif path.name.endswith(suffix) and (found := _NAME.fullmatch(path.name.removesuffix(suffix))):
            span = (int(found["first"]), int(found["last"]), path.name)
            files.setdefault((found["topic"], int(found["partition"])), []).append(span)
    ends = {}
    for partition, spans in files.items():
        spans.sort()
        for (_, last, one), (first, _, other) in pairwise(spans):
            if first <= last:
                raise StorageError(
                    f"{folder}: {one} and {other} hold the same records, so two sinks have written here, or "
                    "a file was copied; remove the second one and all of this partition that follow it, they "
                    "are written again"
                )
        ends[partition] = spans[-1][1] + 1
    return ends


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
