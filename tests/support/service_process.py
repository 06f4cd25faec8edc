"""The service as a user runs it, ``python -m replayfilter run CONFIG``, and ways to kill it.

Batches follow each other without an interval, because tests wait for them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Event

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # not in its stubs

from replayfilter.demo.stream import Record
from replayfilter.spark.batch_range import BATCH


class ServiceProcess:
    """A running service with its JVM and Python workers; its output goes to ``log``."""

    def __init__(self, config: Path, *arguments: str, command: str = "run") -> None:
        self.log = config.with_suffix(".log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "replayfilter", command, str(config), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"REPLAYFILTER_SERVICE__INTERVAL": "0s"},
            )
        self._pids = {self.process.pid}

    def pids(self) -> set[int]:
        """The service's processes that are alive: driver, JVM, worker daemon and workers."""
        self._pids |= set(descendants(self.process.pid))
        return {pid for pid in self._pids if is_alive(pid)}

    def jvm(self) -> int | None:
        """The JVM's process id; None before it has started."""
        return next((pid for pid in self.pids() if command_of(pid) == "java"), None)

    def kill(self, pids: Iterable[int]) -> None:
        """Kill processes with SIGKILL and wait until the whole service has ended, or fail."""
        self.pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(60)
        wait_for(lambda: not self.pids(), 60, f"a killed service left processes\n{self.tail()}")

    def await_change(self, happened: Callable[[], bool], every: float = 0.02) -> None:
        """Wait until ``happened()``; AssertionError after 4 minutes, or if the service has ended."""
        wait_for(lambda: happened() or self.process.poll() is not None, 240, "no progress", every)
        assert self.process.poll() is None, f"the service ended by itself\n{self.tail()}"

    def await_batch(self) -> None:
        """Wait until this service, and not another one of its name, has delivered a batch."""
        self.await_change(lambda: '"event": "batch"' in self.tail(), every=0.1)

    def end(self, seconds: float = 600) -> int:
        """Wait for the end of the service; its exit code. AssertionError if it hasn't ended by then."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the service has not ended after {seconds} s\n{self.tail()}") from None

    def tail(self) -> str:
        """The end of its output, for failure messages."""
        return self.log.read_text("utf-8", "replace")[-4000:]

    def __enter__(self) -> ServiceProcess:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Checkpoint:
    """Spark's logs in a checkpoint folder: a batch runs between ``started`` and ``committed``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def started(self) -> int:
        """The last batch in the offset log; -1 if none."""
        return self._last("offsets")

    def committed(self) -> int:
        """The last batch in the commit log; -1 if none."""
        return self._last("commits")

    def end_offsets(self, batch: int) -> dict[str, dict[str, int]]:
        """The end offsets of a batch, by topic and partition, from the offset log."""
        path = next(self.folder.rglob(f"offsets/{batch}"))
        logged: dict[str, dict[str, int]] = json.loads(path.read_text("utf-8").splitlines()[-1])
        return {topic: offsets for topic, offsets in logged.items() if topic != BATCH}

    def _last(self, log: str) -> int:
        names = [path.name for path in self.folder.rglob(f"{log}/*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)


def descendants(pid: int) -> list[int]:
    """The ids of all processes below ``pid``, from /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name is in parentheses and may contain some itself, so split after the last one.
            parent = int(stat.read_text("utf-8", "replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        todo += (below := children.get(todo.pop(), []))
        found += below
    return found


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command_of(pid: int) -> str:
    """The name of a process's program."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def wait_for(happened: Callable[[], bool], seconds: float, complaint: str, every: float = 0.02) -> None:
    """Wait until ``happened()``; AssertionError with ``complaint`` after so many ``seconds``."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, complaint
        time.sleep(every)


def paced(stream: Iterable[Record], per_second: float, hurry: Event | None = None) -> Iterator[Record]:
    """The records of ``stream``, slowed down to ``per_second`` until ``hurry`` is set."""
    start = time.monotonic()
    hurry = hurry or Event()
    for number, record in enumerate(stream):
        if number % 20 == 0:
            hurry.wait(max(0.0, start + number / per_second - time.monotonic()))
        yield record


def open_transactions(bootstrap: str, topics: Iterable[str]) -> list[str]:
    """The partitions with an open transaction, which a read_committed reader has to wait for."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    found = []
    for topic in topics:
        partitions = admin.list_topics(topic, timeout=10).topics[topic].partitions
        asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in partitions}  # type: ignore[no-untyped-call]
        stable, last = (
            {
                at.partition: future.result().offset
                for at, future in admin.list_offsets(asked, isolation_level=level).items()
            }
            for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        )
        found += [f"{topic}-{partition}" for partition in partitions if stable[partition] < last[partition]]
    return found
