"""What the benchmarks measure of process trees, and that nothing of them is left behind."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.processes import CpuClock, memory_bytes, stop
from tests.support.service_process import descendants, is_alive

TREE = "import subprocess, time; subprocess.Popen(['sleep', '600']); x = b'x' * 50_000_000; time.sleep(600)"
PARENT = """
import subprocess, time
from benchmarks.processes import end_with_parent
print(subprocess.Popen(["sleep", "600"], preexec_fn=end_with_parent).pid, flush=True)
time.sleep(600)
"""
BUSY_CHILD = """
import signal, subprocess, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "sum(range(20_000_000)); import time; time.sleep(600)"])
input()
child.kill()
time.sleep(600)
"""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_tree_is_measured_and_stopped_as_a_whole() -> None:
    process = subprocess.Popen([sys.executable, "-c", TREE])
    wait_until(lambda: bool(descendants(process.pid)) and memory_bytes(process.pid)[0] > 50_000_000)
    assert memory_bytes(process.pid)[1] == 0
    (child,) = descendants(process.pid)
    stop(process)
    wait_until(lambda: not is_alive(child))
    assert process.returncode is not None


def test_the_time_of_an_ended_process_still_counts() -> None:
    process = subprocess.Popen([sys.executable, "-c", BUSY_CHILD], stdin=subprocess.PIPE)
    clock = CpuClock(process.pid)
    wait_until(lambda: clock.seconds() > 0.2)
    before = clock.seconds()
    (child,) = descendants(process.pid)
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    wait_until(lambda: not is_alive(child))
    assert clock.seconds() >= before
    stop(process)


def test_a_system_ends_with_a_benchmark_that_is_killed() -> None:
    benchmark = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert benchmark.stdout is not None
    child = int(benchmark.stdout.readline())
    assert is_alive(child)
    benchmark.kill()
    benchmark.communicate()
    wait_until(lambda: not is_alive(child))
