"""kill -9 of the driver only: its JVM may still write to the checkpoint, so it holds the lock too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from replayfilter.errors import CheckpointError
from replayfilter.service.runtime.checkpoint import LOCK, LOCK_SECONDS, locked
from tests.support.service_process import command_of, descendants, is_alive, wait_for

pytestmark = pytest.mark.spark

DRIVER = """
import pathlib, sys, time
from replayfilter.core.rules import Rules
from replayfilter.formats import KeySpec
from replayfilter.service.runtime.checkpoint import locked
from replayfilter.spark.session import start_session
from replayfilter.spark.pipeline_settings import PipelineSettings

settings = PipelineSettings(
    service="lock", checkpoint="", bootstrap="", topics=(), keys=KeySpec("raw", (), None, "ms"),
    rules=Rules(dedup=False), outputs={}, output_pids={}, shards=1, lanes=1, master="local[1]",
)
with locked(pathlib.Path(sys.argv[1])) as lock:
    session = start_session(settings, [lock])
    assert session.sparkContext.parallelize([1], 1).map(str).collect() == ["1"]  # starts a Python worker
    print("at work", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of ``tmp_path`` and has a JVM and a Python worker."""
    command = [sys.executable, "-c", textwrap.dedent(DRIVER), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        below = descendants(process.pid)
        yield process
        for pid in (process.pid, *below):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def held_by(pid: int, path: Path) -> bool:
    """Whether a process has ``path`` open."""
    return any(each.exists() and each.resolve() == path for each in Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.slow
def test_the_lock_is_held_until_the_jvm_of_a_killed_driver_has_ended(
    tmp_path: Path, driver: subprocess.Popen[str]
) -> None:
    below = descendants(driver.pid)
    (jvm,) = (pid for pid in below if command_of(pid) == "java")
    workers = [pid for pid in below if command_of(pid).startswith("python")]
    assert len(workers) >= 2, "the daemon and its worker"
    lock = (tmp_path / LOCK).resolve()
    assert held_by(jvm, lock)
    assert not any(held_by(pid, lock) for pid in workers)

    os.kill(jvm, signal.SIGSTOP)  # a JVM that is slow to end
    driver.kill()
    driver.wait()
    with pytest.raises(CheckpointError, match=f"in use by process {driver.pid}"), locked(tmp_path, 0.5):
        pass
    os.kill(jvm, signal.SIGCONT)
    started = time.monotonic()
    with locked(tmp_path):
        waited = time.monotonic() - started
        wait_for(lambda: not is_alive(jvm), 1, "two processes use one checkpoint")
    print(f"waited {waited:.2f} s of {LOCK_SECONDS:.0f}")
    wait_for(lambda: not any(map(is_alive, workers)), 60, "workers of a killed driver are still alive")
