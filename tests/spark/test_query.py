"""The thread that waits for the query: a JVM that has ended, and progress without a batch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.sql.streaming.listener import StreamingQueryProgress

from replayfilter.errors import ConfigError, SparkLost
from replayfilter.spark import query
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.query import Progress, Service
from tests.support.service_process import command_of, descendants

pytestmark = pytest.mark.spark

SETTINGS = SimpleNamespace(batch_records=1_000, batch_bytes=1_000_000, checkpoint="/no/checkpoint")


def test_a_change_that_refuses_ends_the_service_before_spark_is_asked() -> None:
    def refuse(_: PipelineSettings) -> PipelineSettings:
        raise ConfigError(["there is no topic orders.unique any more"])

    service = Service(SETTINGS)  # type: ignore[arg-type]
    service.restart_with(refuse)
    with pytest.raises(ConfigError, match="there is no topic"):
        service.start()


# ---- a JVM that has ended ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "refused"),
     Py4JError("SparkSession does not exist in the JVM"), BrokenPipeError(32, "Broken pipe")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_jvm_that_has_ended_is_reported_by_start_too(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def ended(*_: object) -> Any:
        raise error

    monkeypatch.setattr(query, "batch_limit", lambda settings: 1_000)
    monkeypatch.setattr(query, "start_session", ended)
    with pytest.raises(SparkLost, match="Java process has ended") as found:
        Service(SETTINGS).start()  # type: ignore[arg-type]
    assert found.value.__cause__ is error


def test_an_exception_from_a_living_jvm_is_not_taken_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    exception = Py4JJavaError("java.lang.IllegalStateException", SimpleNamespace(_target_id="o1"))

    def fails(*_: object) -> Any:
        raise exception

    monkeypatch.setattr(query, "batch_limit", lambda settings: 1_000)
    monkeypatch.setattr(query, "start_session", fails)
    with pytest.raises(Py4JJavaError) as found:
        Service(SETTINGS).start()  # type: ignore[arg-type]
    assert found.value is exception


RESTART = """
import sys
from replayfilter.core.rules import Rules
from replayfilter.errors import ConfigError, SparkLost
from replayfilter.formats import KeySpec
from replayfilter.spark import query
from replayfilter.spark.session import start_session
from replayfilter.spark.pipeline_settings import PipelineSettings

settings = PipelineSettings(
    service="lost", checkpoint="", bootstrap="127.0.0.1:1", topics=("t",),
    keys=KeySpec("raw", (), None, "ms"),
    rules=Rules(dedup=False), outputs={}, output_pids={}, shards=1, lanes=1, master="local[1]",
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
def test_a_real_jvm_that_is_killed_between_two_starts_is_reported() -> None:
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


# ---- progress without a batch ------------------------------------------------------------------------

# The progress that Spark 4.0.5 reported for a query that read a file, waited for 23 s and read another one:
# batch 0, two reports without a batch under the number 1, and batch 1.
RECORDED = [
    StreamingQueryProgress.fromJson(each)
    for each in json.loads(Path(__file__).with_name("progress.json").read_text("utf-8"))
]


class Report:
    """A report as Java gives it, before it is made JSON."""

    def __init__(self, progress: StreamingQueryProgress) -> None:
        self._progress = progress

    def timestamp(self) -> str:
        return str(self._progress["timestamp"])


class Recorded:
    """Stands for a query: each time it is waited for, the next number of ``arrivals`` reports come in."""

    def __init__(self, *arrivals: int, kept: int = 20) -> None:
        self._arrivals, self._kept = list(arrivals), kept
        self._come = 0
        self.status = {"message": "Waiting for data to arrive"}
        self.stopped = False
        self.last_requests = self.recent_requests = 0
        self._jsq = SimpleNamespace(
            lastProgress=lambda: Report(RECORDED[self._come - 1]) if self._come else None
        )

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802  # Spark's name
        if self.stopped or not self._arrivals:
            return True
        self._come += self._arrivals.pop(0)
        return False

    def stop(self) -> None:
        self.stopped = True

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802
        self.last_requests += 1
        return RECORDED[self._come - 1] if self._come else None

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802
        self.recent_requests += 1
        return RECORDED[max(0, self._come - self._kept) : self._come]


def reported(recorded: Recorded, last_seen: int = -1) -> list[tuple[int, int]]:
    """The batches that the service reports, as (number, rows)."""
    batches: list[tuple[int, int]] = []

    def on_batch(progress: Progress) -> None:
        batches.append((progress["batchId"], progress["observedMetrics"]["counts"]["unique"]))

    service = Service(SETTINGS, [on_batch])  # type: ignore[arg-type]
    service._query = recorded  # type: ignore[assignment]
    service._last_seen = last_seen
    service.await_end()
    return batches


def test_the_recording_has_two_batches_and_two_idle_reports() -> None:
    assert [progress["batchId"] for progress in RECORDED] == [0, 1, 1, 1]
    assert [query._is_idle(progress) for progress in RECORDED] == [False, True, True, False]


@pytest.mark.parametrize("arrivals", [(1, 1, 1, 1), (0, 1, 0, 0, 1, 1, 1, 0), (4,), (2, 2), (3, 1), (1, 3)])
def test_each_batch_is_reported_once_however_often_progress_is_read(arrivals: tuple[int, ...]) -> None:
    assert reported(Recorded(*arrivals)) == [(0, 3), (1, 5)]


@pytest.mark.parametrize("arrivals", [(2,), (3,), (2, 1)])
def test_a_batch_is_reported_even_if_an_idle_report_is_seen_first(arrivals: tuple[int, ...]) -> None:
    assert reported(Recorded(*arrivals)) == [(0, 3)]


def test_an_idle_query_after_a_restart_is_asked_for_its_recent_progress_only_once() -> None:
    waiting = Recorded(2, 0, 0, 1, 0, 0, kept=1)  # only idle reports are left
    assert reported(waiting) == []
    assert waiting.recent_requests == 1
    assert reported(Recorded(3, 1, kept=1)) == [(1, 5)], "the next batch is not missed"
    assert reported(Recorded(1, 1, 1, 1), last_seen=0) == [(1, 5)], "batch 0 was reported before"


def test_the_json_of_a_report_is_asked_for_only_once() -> None:
    recorded = Recorded(1, 0, 0, 1, 0, 0, 2, 0)
    assert reported(recorded) == [(0, 3), (1, 5)]
    assert recorded.last_requests == 3


def test_an_idle_query_is_stopped_at_once() -> None:
    recorded = Recorded(1, 1, 1)
    service = Service(SETTINGS)  # type: ignore[arg-type]
    service._query = recorded  # type: ignore[assignment]
    service.stop_after_batch()
    service.await_end()
    assert recorded.stopped
