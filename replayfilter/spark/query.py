"""The running service: one streaming query from start to end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from replayfilter.core.input_partition import InputPartition
from replayfilter.errors import CheckpointDamaged, ReplayfilterError, ServiceReplaced, UnknownSchemas
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.membership import Membership
from replayfilter.spark.batch_size import batch_limit
from replayfilter.spark.checkpoint_damage import damage
from replayfilter.spark.counts import records_in, total
from replayfilter.spark.failures import explain, jvm_errors
from replayfilter.spark.first_offsets import as_member
from replayfilter.spark.full_disk import full_disk, full_disk_errors
from replayfilter.spark.hadoop_folder import storage_errors
from replayfilter.spark.pipeline import OBSERVED, ROWS, build_pipeline
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.scratch import ShuffleFiles
from replayfilter.spark.session import start_session
from replayfilter.spark.source import last_planned_ends

POLL_SECONDS = 0.2  # between two looks at Spark's query; each costs CPU
OVERSIZE_RESTART_FACTOR = 2.0  # times batch_bytes; a larger batch restarts the query with fewer records
# Of Spark's query status:
_NO_DATA = "Waiting for data to arrive"
_BETWEEN_BATCHES = ("Getting offsets from", _NO_DATA, "Waiting for next trigger", "Stopped")

Progress = Mapping[str, Any]
SettingsChange = Callable[[PipelineSettings], PipelineSettings]


class BegunBatch(Protocol):
    """The settings of the batch that is begun and not finished, as the checkpoint records them."""

    def settings_for_start(self, wanted: PipelineSettings) -> tuple[PipelineSettings, bool]:
        """The settings to start with, and whether they are only for the begun batch.

        They are not the ``wanted`` ones if the batch was begun with others.
        """

    def record_unknown(self, wanted: PipelineSettings, ids: Collection[int]) -> PipelineSettings:
        """Record that the schemas ``ids`` are unknown; the wanted settings with this.

        Raises RegistryError if the begun batch has been decided before, so that they were known.
        """


class Service:
    """Runs a service: starts its query, waits for its end, ends it on request.

        service = Service(settings, on_batch=[print])
        service.start()
        service.await_end()         # until another thread calls service.stop_after_batch()

    Each of ``on_batch`` is called after every finished batch, with Spark's progress as a dict, in the thread
    that waits. The progress has the batch's counts (see counts.py) in ``observedMetrics`` under ``counts``.

    ``shared``: file descriptors that the JVM keeps open as long as it lives, such as the checkpoint's lock.

    ``begun``: the settings of an unfinished batch. With them it is finished first, by a query of its own.
    Without ``begun``, all batches use the current settings, and schemas that are unknown are an error.

    ``membership``: of the consumer group. Without it, a second service of the same name is not noticed.

    ``last_response_at``: when Spark last answered, in Unix seconds. ``restart_requested``: the query ended
    itself and is to be started again: with smaller batches, because one had more than twice
    ``batch_bytes``; with new settings (see ``restart_with``); because the batch had its own settings; or
    because the group was joined again.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        on_batch: Sequence[Callable[[Progress], None]] = (),
        shared: Sequence[int] = (),
        begun: BegunBatch | None = None,
        membership: Membership | None = None,
    ) -> None:
        self._settings, self._shared, self._begun = settings, shared, begun
        self._membership, self._joined_as = membership, b""
        self._on_batch = on_batch
        self._query: StreamingQuery | None = None
        self._shuffle_files: ShuffleFiles | None = None
        self._last_seen = -1
        self._last_report = ""  # its time
        self._limit = settings.batch_records
        self._stopping = threading.Event()
        self.last_response_at = time.time()
        self.restart_requested = False
        self._stop_at: dict[InputPartition, int] | None = None
        self._changes: list[SettingsChange] = []
        self._only_one_batch = False

    @property
    def settings(self) -> PipelineSettings:
        """The current settings, without changes that wait for a restart."""
        return self._settings

    def start(self, once: bool = False) -> None:
        """Start the query and return as soon as it runs. ``once``: process what is there now, then end.

        Raises MissingDependency without Java or jars, BrokerError if no broker answers, ServiceReplaced if
        another service of this name has started, StorageError if the checkpoint can't be reached,
        CheckpointDamaged if it can't be read, DiskFull, and SparkLost if the JVM has ended.
        """
        self.restart_requested, self.last_response_at = False, time.time()
        while self._changes:
            self._settings = self._changes.pop(0)(self._settings)
        settings, self._only_one_batch = self._settings, False
        with jvm_errors(), full_disk_errors(settings.checkpoint):
            if self._begun is not None:
                settings, self._only_one_batch = self._begun.settings_for_start(self._settings)
            limit = min(self._limit, batch_limit(settings))
            session = start_session(settings, self._shared)
            self._shuffle_files = self._shuffle_files or ShuffleFiles(session)
            settings = replace(settings, max_message_bytes=_max_message_bytes(settings))
            if self._membership is not None:
                settings = as_member(settings, last_planned_ends(session, settings), self._membership)
                self._joined_as = settings.membership
            self._stop_at = self._ends_now() if once and not self._only_one_batch else None
            plan = build_pipeline(session, settings, limit, self._stop_at)
            writer = plan.writeStream.format("noop").outputMode("append").queryName(settings.service)
            writer = writer.option("checkpointLocation", settings.checkpoint)
            if self._only_one_batch:
                writer = writer.trigger(once=True)
            with storage_errors(settings.checkpoint):
                self._query = writer.start()

    def _ends_now(self) -> dict[InputPartition, int]:
        """Where all input partitions end now."""
        cluster = Cluster(self._settings.bootstrap, self._settings.options)
        topics = cluster.topics(self._settings.topics)
        return cluster.end_offsets(
            (name, number) for name, topic in topics.items() for number in range(topic.partitions)
        )

    def await_end(self) -> None:
        """Block until the query has ended. If it failed, raises a ReplayfilterError that says why.

        That is CheckpointDamaged or DiskFull if a file of the checkpoint or a full disk is to blame.
        Raises SparkLost if the JVM has ended; this process can't start the query again then.
        """
        with jvm_errors():
            self._poll(self.query)

    def _poll(self, query: StreamingQuery) -> None:
        batch_at_request: int | None = None
        try:
            while not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]  # seconds, may be a fraction
                self.last_response_at = time.time()
                self._report(query)
                self._check_membership(query)
                self.restart_requested = self.restart_requested or bool(self._changes)
                if self._stopping.is_set() or self.restart_requested:
                    if batch_at_request is None:
                        batch_at_request = self._last_seen
                    if self._last_seen > batch_at_request or _status(query).startswith(_BETWEEN_BATCHES):
                        query.stop()
                elif self._stop_at is not None and _status(query) == _NO_DATA:
                    query.stop()
        except StreamingQueryException as error:
            self._report(query)
            reason = explain(str(error))
            if type(reason) is ReplayfilterError:  # none of ours
                thrown, checkpoint = error._origin, self._settings.checkpoint  # type: ignore[attr-defined]
                reason = full_disk(thrown, checkpoint) or damage(thrown, checkpoint) or reason
            if isinstance(reason, (ServiceReplaced, CheckpointDamaged)) and self._membership is not None:
                self._membership.ask()  # the service that has replaced this one removes files, too
                self.restart_requested |= isinstance(reason, ServiceReplaced)
            self._check_membership(query)
            if self.restart_requested:
                return
            if self._begun is None or not isinstance(reason, UnknownSchemas):
                raise reason from error
            self._settings = self._begun.record_unknown(self._settings, reason.ids)
            self.restart_requested = True
        self._report(query)
        self.restart_requested = self.restart_requested or self._only_one_batch

    def _check_membership(self, query: StreamingQuery) -> None:
        """Stop at once if another service has started; request a restart if the group was joined again."""
        if self._membership is None:
            return
        try:
            self._membership.check()
        except ServiceReplaced:
            query.stop()
            raise
        if self._membership.has_changed(self._joined_as):
            self.restart_requested = True

    def stop_after_batch(self) -> None:
        """End after the current batch; ``await_end`` returns then. Any thread may call it."""
        self._stopping.set()

    def restart_with(self, change: SettingsChange) -> None:
        """End after the current batch, to be started again with changed settings. Any thread may call it.

        The settings may differ only in what may change on a live checkpoint.
        """
        self._changes.append(change)

    @property
    def query(self) -> StreamingQuery:
        """Spark's query; RuntimeError before ``start``."""
        if self._query is None:
            raise RuntimeError("the service has not been started: call start() first")
        return self._query

    def _report(self, query: StreamingQuery) -> None:
        """Call ``on_batch`` for each batch that has finished since the last call."""
        latest = query._jsq.lastProgress()  # query.lastProgress makes and parses JSON at each call
        if latest is None or latest.timestamp() == self._last_report:
            return
        bound = self._shuffle_files.next_id() if self._shuffle_files else 0
        self._last_report, last = latest.timestamp(), query.lastProgress
        if last is None or last["batchId"] <= self._last_seen:
            return
        next_one = last["batchId"] == self._last_seen + 1
        if next_one and _is_idle(last):
            return
        recent = [last] if next_one else query.recentProgress
        for progress in recent:
            if progress["batchId"] > self._last_seen and not _is_idle(progress):
                self._last_seen = progress["batchId"]
                as_dict = _with_totals(json.loads(progress.json))
                self._check_size(as_dict)
                for callback in self._on_batch:
                    callback(as_dict)
        if _is_idle(last):  # all batches before it are finished, even if Spark has dropped their progress
            self._last_seen = max(self._last_seen, last["batchId"] - 1)
        if self._shuffle_files:
            self._shuffle_files.finish(self._last_seen, bound)

    def _check_size(self, progress: Progress) -> None:
        """Request a restart with fewer records per batch if this batch was too large.

        The limit is computed at the start from a few records at the topics' ends; later ones may be larger.
        """
        counts = progress["observedMetrics"].get(OBSERVED, {})
        size, records = counts.get("bytes", 0), records_in(counts)
        if size > OVERSIZE_RESTART_FACTOR * self._settings.batch_bytes and records > 1:
            average = size / records
            limit = max(1, int(self._settings.batch_bytes / average))
            if limit < self._limit:
                self.restart_requested, self._limit = True, limit


def _max_message_bytes(settings: PipelineSettings) -> int | None:
    topics = {output.topic for output in settings.outputs.values()}
    return Cluster(settings.bootstrap, settings.options).max_message_bytes(topics)


def _status(query: StreamingQuery) -> str:
    return str(query.status["message"])


def _with_totals(progress: Progress) -> Progress:
    """The progress, with the counts of the batch in the place of their rows."""
    observed = {name: values for name, values in progress["observedMetrics"].items() if name != OBSERVED}
    rows = progress["observedMetrics"].get(OBSERVED, {}).get(ROWS, [])
    return {**progress, "observedMetrics": observed | {OBSERVED: total(rows)}}


def _is_idle(progress: StreamingQueryProgress) -> bool:
    """Whether this is no finished batch: without input, Spark reports the next number every 10 seconds."""
    return "addBatch" not in progress["durationMs"]
