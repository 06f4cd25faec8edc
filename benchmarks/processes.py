"""CPU time and memory of process trees, from /proc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import subprocess
from importlib.metadata import version
from pathlib import Path

from replayfilter.jvm.java import java
from tests.support.service_process import descendants

STOP_SECONDS = 40.0  # for a batch or a commit that is under way
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded here, because after a fork other threads may hold the loader's lock
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class CpuClock:
    """User and system time of a process and its descendants, also of those that have ended since.

    PySpark's daemon ignores SIGCHLD, so Linux doesn't add the time of a worker that ends to its parent's.
    Therefore the last time of each process is remembered. What a process used after that is missing.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ticks: dict[int, int] = {}

    def seconds(self) -> float:
        for process in (self._pid, *descendants(self._pid)):
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{process}/stat").read_text("utf-8", "replace")
                self._ticks[process] = sum(map(int, stat.rpartition(")")[2].split()[11:13]))
        return sum(self._ticks.values()) / _TICKS


def memory_bytes(pid: int) -> tuple[int, int]:
    """Resident memory of a process and its descendants, and that of the JVMs among them.

    Pages that they share count for each.
    """
    pages = jvm = 0
    for process in (pid, *descendants(pid)):
        with contextlib.suppress(OSError):
            found = int(Path(f"/proc/{process}/statm").read_text().split()[1])
            pages += found
            jvm += found if Path(f"/proc/{process}/comm").read_text() == "java\n" else 0
    return pages * _PAGE, jvm * _PAGE


def end_with_parent() -> None:
    """For ``preexec_fn``: the child is killed as soon as its parent has ended. JVMs below it notice that.

    Without this, a benchmark that is killed leaves systems behind, which disturb the next one.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process with SIGTERM, and with SIGKILL what is left of its tree after a while."""
    below = descendants(process.pid)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    for pid in (process.pid, *below):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def machine() -> dict[str, str]:
    """The machine and the versions of what runs on it, for the heading of a table."""
    cpu = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), platform.machine(),
    )  # fmt: skip
    memory = os.sysconf("SC_PHYS_PAGES") * _PAGE / 2**30
    java_version = subprocess.run(
        [str(java()), "-version"], capture_output=True, text=True, check=True
    ).stderr
    return {
        "cores": str(os.cpu_count()),
        "cpu": cpu,
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "java": java_version.split('"')[1],
        "pyspark": version("pyspark"),
        "replayfilter": version("replayfilter"),
    }
