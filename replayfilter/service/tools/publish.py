"""``replayfilter publish``: publishes the lines of a file, each stamped with the byte position of its start.

It keeps no state. After a crash it starts at the first line again: the records that were already written are
written again with the same stamps, and the replay filter downstream drops them.

A byte position identifies a line only within one file, so the pid identifies the file: by host, device, inode
and first line. If any of these differ it counts as another file: its lines are new, and none is lost.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Literal, NamedTuple

import xxhash
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from replayfilter.client.producer import StampingProducer
from replayfilter.core.stamp import producer_id
from replayfilter.errors import ReplayfilterError
from replayfilter.kafka.client_settings import client_settings

FOLLOW_SECONDS = 0.2  # between two reads of a file that may grow
ROTATION_SECONDS = 3.0  # a renamed file is done if nothing has been added to it for this long
FLUSH_SECONDS = 1.0  # while following, the longest time that a line waits for delivery


class Line(NamedTuple):
    """A line without its line end, and the byte position of its start."""

    offset: int
    value: bytes


class PublishError(ReplayfilterError):
    """The file can't be published as it is."""


class LineFile:
    """A file being published, by an open handle: it stays the same file when the path is renamed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: IO[bytes] = path.open("rb")
        except OSError as error:
            raise PublishError(f"{path} can't be read: {error.strerror}; correct the path") from error
        self.position = 0

    def identity(self) -> tuple[str, str, str] | None:
        """Return host, device and inode, and hash of the first line; None if that line has no end yet."""
        self._file.seek(0)
        first = self._file.readline()
        if not first.endswith(b"\n"):
            return None
        status = os.fstat(self._file.fileno())
        inode = f"{status.st_dev}:{status.st_ino}"
        return socket.gethostname(), inode, xxhash.xxh3_128_hexdigest(first)

    def lines(self, last: bool) -> Iterator[Line]:
        """Yield the lines from the position on, except empty ones.

        ``last``: also yield a last line that has no line end.
        """
        self._file.seek(self.position)
        while (line := self._file.readline()) and (last or line.endswith(b"\n")):
            value = line.removesuffix(b"\n").removesuffix(b"\r")
            if value:
                yield Line(self.position, value)
            self.position += len(line)

    @property
    def size(self) -> int:
        """The current size in bytes."""
        return os.fstat(self._file.fileno()).st_size

    @property
    def replaced(self) -> bool:
        """Whether the path now names another file that exists."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self._file.fileno())
        return (found.st_dev, found.st_ino) != (mine.st_dev, mine.st_ino)

    def close(self) -> None:
        """Close the handle."""
        self._file.close()


class Publisher:
    """Publishes the file at a path and, when following, the files that replace it."""

    def __init__(
        self, path: Path, bootstrap: str, topic: str, options: Mapping[str, str], *,
        job: str, identity: str, stamp: str, partition: int, console: Console,
    ) -> None:  # fmt: skip
        self._path, self._topic, self._partition = path, topic, partition
        self._settings = client_settings(bootstrap, options, produces=True)
        self._job, self._identity, self._stamp, self._console = job, identity, stamp, console
        self.records = 0

    def run(self, follow: bool) -> None:
        """Publish to the end of the file; with ``follow``, until interrupted.

        Raises PublishError if the file can't be read, and DeliveryError if a record can't be delivered.
        """
        previous: int | None = None
        while True:
            file = LineFile(self._path)
            try:
                pid = self._pid(file, follow)
                if pid == previous:
                    raise PublishError(
                        f"{self._path} was truncated and starts with the same first line, so its lines would "
                        "be taken for replays: give each file another --identity, or rotate by renaming"
                    )
                previous = pid
                self._publish(file, pid, follow)
            finally:
                file.close()
            if not follow:
                return
            self._console.print(
                f"{self._path} is another file now: publishing that one", highlight=False, soft_wrap=True
            )

    def _pid(self, file: LineFile, follow: bool) -> int:
        if self._identity:
            return producer_id("file", self._identity, self._job)
        while (identity := file.identity()) is None:
            if not follow:
                raise PublishError(
                    f"{self._path} has no complete first line, which identifies the file: end the line, or "
                    "give the file an --identity"
                )
            time.sleep(FOLLOW_SECONDS)
        return producer_id("file", *identity, self._job)

    def _publish(self, file: LineFile, pid: int, follow: bool) -> None:
        stamp: Literal["key", "header"] = "header" if self._stamp == "header" else "key"
        producer = StampingProducer(self._settings, self._topic, pid, stamp=stamp)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        terminal = self._console.is_terminal
        with producer, Progress(*columns, console=self._console, transient=True, disable=not terminal) as bar:
            task = bar.add_task(self._path.name, total=file.size)
            flushed = written = time.monotonic()
            while True:
                # After a rotation, other processes may still write to the renamed file for a while.
                quiet = time.monotonic() - written > ROTATION_SECONDS
                ended = not follow or (quiet and file.replaced)
                for line in file.lines(last=ended):
                    producer.produce(self._partition, line.offset, line.value)
                    self.records += 1
                    written = time.monotonic()
                    if self.records % 1_000 == 0:
                        bar.update(task, completed=file.position, total=max(file.size, file.position))
                bar.update(task, completed=file.position, total=file.size)
                if ended or file.size < file.position:  # at its end, or truncated
                    return
                if time.monotonic() > flushed + FLUSH_SECONDS:
                    producer.flush()
                    flushed = time.monotonic()
                time.sleep(FOLLOW_SECONDS)
