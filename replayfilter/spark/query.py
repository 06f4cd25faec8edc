"""The running service: one streaming query from start to end."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]  # has no types
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from replayfilter.errors import SparkLost
from replayfilter.spark.batch_size import batch_limit
from replayfilter.spark.failures import explain
from replayfilter.spark.pipeline import OBSERVED, build_pipeline
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.session import start_session

POLL_SECONDS = 0.05
OVERSIZE_RESTART_FACTOR = (
    2.0  # a batch of so many times batch_bytes ends the query: the next start takes fewer records
)
_IDLE = ("Waiting for data to arrive", "Waiting for next trigger", "Stopped")  # Spark's words

Progress = Mapping[str, Any]


class Service:
    """One service: start it, wait for its end, ask it to end.

        service = Service(settings, on_batch=[print])
        service.start()
        service.await_end()         # until another thread calls service.stop_after_batch()

    ``on_batch`` are called with Spark's progress of each finished batch as a dict, by the thread that waits;
    its ``observedMetrics`` hold the batch's counts (see counts.py) under the name ``counts``.

    ``last_response_at``: when Spark last answered, Unix seconds. ``restart_requested``: the query ended by itself, to be
    started again: a batch had more than twice ``batch_bytes``, so it will take fewer records at once, or
    there are other settings, see ``restart_with``.

    ``shared``: descriptors for the JVM to hold as long as it lives, as of a lock on the checkpoint.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        on_batch: Sequence[Callable[[Progress], None]] = (),
        shared: Sequence[int] = (),
    ) -> None:
        self._settings, self._shared = settings, shared
        self._on_batch = on_batch
        self._query: StreamingQuery | None = None
        self._last_seen = -1
        self._limit = settings.batch_records
        self._stopping = threading.Event()
        self.last_response_at = time.time()
        self.restart_requested = False
        self._next_settings: PipelineSettings | None = None

    def start(self, once: bool = False) -> None:
        """Begin, and return as soon as the query runs. ``once``: end when all that is there now is handled.

        Raises MissingDependency without Java or jars, BrokerError if no broker answers, and SparkLost if the
        JVM has ended.
        """
        self.restart_requested, self.last_response_at = False, time.time()
        renewed, self._next_settings = self._next_settings, None
        self._settings = renewed or self._settings
        limit = min(self._limit, batch_limit(self._settings))
        with _jvm_needed():
            plan = build_pipeline(start_session(self._settings, self._shared), self._settings, limit)
            writer = plan.writeStream.format("noop").outputMode("append").queryName(self._settings.service)
            writer = writer.option("checkpointLocation", self._settings.checkpoint)
            if once:
                writer = writer.trigger(availableNow=True)
            self._query = writer.start()

    def await_end(self) -> None:
        """Block until the query has ended; raises a ReplayfilterError that says what it failed with.

        SparkLost if the JVM has ended: then this process can't start the query again.
        """
        with _jvm_needed():
            self._watch(self.query)

    def _watch(self, query: StreamingQuery) -> None:
        asked_at: int | None = None
        try:
            while not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]  # seconds, may be a fraction
                self.last_response_at = time.time()
                self._report(query)
                self.restart_requested = self.restart_requested or self._next_settings is not None
                if self._stopping.is_set() or self.restart_requested:
                    if asked_at is None:
                        asked_at = self._last_seen
                    if self._last_seen > asked_at or query.status["message"] in _IDLE:
                        query.stop()
        except StreamingQueryException as error:
            self._report(query)
            raise explain(str(error)) from error
        self._report(query)

    def stop_after_batch(self) -> None:
        """Let the batch in hand finish, then end; ``await_end`` returns when that is done."""
        self._stopping.set()

    def restart_with(self, settings: PipelineSettings) -> None:
        """Go on with other settings: the batch in hand finishes, then the query ends to be started again.

        They may differ only in what is free to change on a checkpoint. Any thread may call it.
        """
        self._next_settings = settings

    @property
    def query(self) -> StreamingQuery:
        """Spark's query. RuntimeError before ``start``."""
        if self._query is None:
            raise RuntimeError("the service was not started: call start() first")
        return self._query

    def _report(self, query: StreamingQuery) -> None:
        """Pass on the batches finished since the last time."""
        last = query.lastProgress
        if last is None or last["batchId"] <= self._last_seen:
            return
        next_one = last["batchId"] == self._last_seen + 1
        if next_one and _is_idle(last):
            return
        recent = [last] if next_one else query.recentProgress
        for progress in recent:
            if progress["batchId"] > self._last_seen and not _is_idle(progress):
                self._last_seen = progress["batchId"]
                facts = json.loads(progress.json)
                self._watch_size(facts)
                for callback in self._on_batch:
                    callback(facts)
        if _is_idle(last):  # those before are done, even if they are older than what Spark keeps
            self._last_seen = max(self._last_seen, last["batchId"] - 1)

    def _watch_size(self, progress: Progress) -> None:
        """The limit was reckoned from a few records at the topics' ends; larger ones may have come since."""
        size = progress["observedMetrics"].get(OBSERVED, {}).get("bytes", 0)
        if size > OVERSIZE_RESTART_FACTOR * self._settings.batch_bytes and progress["numInputRows"] > 1:
            average = size / progress["numInputRows"]
            limit = max(1, int(self._settings.batch_bytes / average))
            if limit < self._limit:
                self.restart_requested, self._limit = True, limit


@contextlib.contextmanager
def _jvm_needed() -> Iterator[None]:
    """Tell in words that the JVM doesn't answer any more."""
    try:
        yield
    except Py4JJavaError:  # it lives, and says what it does not like
        raise
    except (Py4JError, ConnectionError) as error:
        raise SparkLost(
            "Spark's Java process has ended under the service (killed, or out of memory); start the "
            "service again, which loses nothing, and give the machine more memory if that comes back"
        ) from error


def _is_idle(progress: StreamingQueryProgress) -> bool:
    """Whether it only says, every ten seconds, that nothing comes: under the number of the batch to come."""
    return "addBatch" not in progress["durationMs"]
