"""The query's thread between Spark and the service: a JVM that has gone, and progress that is none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]

from replayfilter.errors import SparkLost
from replayfilter.spark import query
from replayfilter.spark.query import Service
from tests.spark.service_process import command_of, descendants

SETTINGS = SimpleNamespace(batch_records=1_000, batch_bytes=1_000_000)


# ---- a JVM that has gone -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "refused"),
     Py4JError("SparkSession does not exist in the JVM"), BrokenPipeError(32, "Broken pipe")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_jvm_that_has_gone_is_told_in_words_at_start_too(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def gone(*_: object) -> Any:
        raise error

    monkeypatch.setattr(query, "batch_limit", lambda settings: 1_000)
    monkeypatch.setattr(query, "start_session", gone)
    with pytest.raises(SparkLost, match="Java process has ended") as found:
        Service(SETTINGS).start()  # type: ignore[arg-type]
    assert found.value.__cause__ is error


def test_what_a_living_jvm_complains_of_is_not_taken_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    complaint = Py4JJavaError("java.lang.IllegalStateException", SimpleNamespace(_target_id="o1"))

    def refuses(*_: object) -> Any:
        raise complaint

    monkeypatch.setattr(query, "batch_limit", lambda settings: 1_000)
    monkeypatch.setattr(query, "start_session", refuses)
    with pytest.raises(Py4JJavaError) as found:
        Service(SETTINGS).start()  # type: ignore[arg-type]
    assert found.value is complaint


RESTART = """
import sys
from replayfilter.core.expiry import Rules
from replayfilter.errors import SparkLost
from replayfilter.formats import KeySpec
from replayfilter.spark import query
from replayfilter.spark.session import start_session
from replayfilter.spark.settings import PlanSettings

settings = PlanSettings(
    service="lost", checkpoint="", bootstrap="127.0.0.1:1", topics=("t",),
    keys=KeySpec("raw", (), None, "ms"),
    rules=Rules(dedup=False), outputs={}, pids={}, shards=1, lanes=1, master="local[1]",
)
query.batch_limit = lambda settings: 1_000
start_session(settings)
print("started", flush=True)
sys.stdin.readline()
try:
    query.Service(settings).start()
except SparkLost as error:
    print("lost:", type(error.__cause__).__name__, flush=True)
"""


@pytest.mark.slow
def test_a_real_jvm_that_was_killed_between_two_starts() -> None:
    command = [sys.executable, "-c", textwrap.dedent(RESTART)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            (jvm,) = (pid for pid in descendants(process.pid) if command_of(pid) == "java")
            os.kill(jvm, signal.SIGKILL)
            out, err = process.communicate("go on\n", timeout=60)
        finally:
            for pid in (*descendants(process.pid), process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    assert out.startswith("lost: "), err
