"""The plan's source: a Python data source on librdkafka that plans batches, reads them and decodes them.

Spark calls two objects in two kinds of processes:

- :class:`BatchPlanner` lives in one Python process beside the driver. It says how far the next batch goes
  and which task reads what. All that a second attempt of the batch must agree on is in the batch's end,
  which Spark writes to its offset log before the batch runs: see batch_range.py.
- :func:`read_task` runs in Python workers. It reads its ranges with a consumer that the worker keeps, and
  yields frames and payloads, so that a record enters Spark only once.

Spark asks for the end of the next batch again and again, as soon as it has finished one. The planner answers
only when the next batch is due and records have come, or that there is nothing new after a second. So a
service that is idle, or has few records, costs little.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.datasource import InputPartition as ReadTask
from pyspark.sql.types import StructType

from replayfilter.core.admission import next_ends
from replayfilter.core.batch_facts import BatchFacts, believed_time
from replayfilter.core.input_partition import InputPartition
from replayfilter.errors import BrokerError, CheckpointError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.reader import Range
from replayfilter.spark import rows, worker
from replayfilter.spark.batch_range import CONNECTOR_FIRST_OFFSETS, BatchEnd, last_line
from replayfilter.spark.decode import decode_chunks
from replayfilter.spark.hadoop_folder import HadoopFolder, storage_errors
from replayfilter.spark.partitioning import partition_ids
from replayfilter.spark.pipeline_settings import FollowedUpstream, PipelineSettings

NAME = "replayfilter"
LONGEST_WAIT_S = 1.0  # before the planner answers that there is nothing new; a query stops only then
POLL_S = 0.01  # between two requests for the ends of partitions, at first
SLOWEST_POLL_S = 0.05  # after a while without records,
SLOWEST_POLL_SHARE = 0.2  # or this share of the interval between batches, if that is longer
TASK_RECORDS = 2_000  # a task costs tens of milliseconds of CPU, however few its records
PARTITIONS_CHECK_S = 30.0  # how often topics are checked for new partitions
RETENTION_S = 30.0  # records that came within this time have not been deleted
QUIET_US = 2 * 10**6  # without records for so long, a watermark that a server tells is worth a batch
_START_AGAIN = "start with another service.name and service.checkpoint to read what is there now"

Ends = dict[InputPartition, int]


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What the source needs besides the pipeline's settings.

    ``batch_records``: the most offsets in a batch. ``tasks``: how many tasks read a batch. ``stop_at``:
    process no records from these offsets on.

    ``last_end``: the end of the last batch that Spark has planned, as its offset log has it; None for an
    empty checkpoint. ``last_time_us`` and ``first_offsets`` are for a checkpoint that Spark's Kafka connector
    began: the time of that batch, and where the first batch began, as the connector wrote it.
    """

    pipeline: PipelineSettings
    batch_records: int
    tasks: int
    stop_at: Mapping[InputPartition, int] | None = None
    last_end: str | None = None
    last_time_us: int = 0
    first_offsets: str = "{}"


@dataclass(frozen=True, slots=True)
class Task(ReadTask):
    """One task of a batch: the range of offsets to read of each partition, and the facts of the batch.

    ``tells_shards``: whether it sends the facts to every shard, even to those that get no records.
    """

    ranges: Mapping[InputPartition, Range]
    facts: BatchFacts
    tells_shards: bool = False


@dataclass(frozen=True, slots=True)
class _UpstreamNews:
    """Watermarks of the services before this one, and the ends of all partitions, asked for after them."""

    lows: Mapping[str, int]
    written: Ends

    def is_covered(self, found: Ends) -> bool:
        """Whether all that was written can be read, with these ends of what can be read."""
        return found.keys() == self.written.keys() and all(
            found[at] >= end for at, end in self.written.items()
        )


def decoded_rows(spark: SparkSession, settings: SourceSettings) -> DataFrame:
    """Rows of frames and payloads (see rows.py), read in at most ``settings.tasks`` tasks per batch."""
    spark.dataSource.register(_source_class(settings))
    return spark.readStream.format(NAME).load()


def _source_class(settings: SourceSettings) -> type[DataSource]:
    """A class that carries the settings: the options of a source are text, and Spark shows them."""

    class KafkaSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return rows.SCHEMA

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
            return BatchPlanner(settings)

    return KafkaSource


class BatchPlanner(DataSourceStreamReader):
    """Plans batches: Spark's calls, in the order in which it makes them for each batch.

    Raises BrokerError if no broker answers, and CheckpointError if Kafka no longer has what comes next.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings, self._pipeline = settings, settings.pipeline
        self._cluster: Cluster | None = None
        self._upstream: FollowedUpstream | None = None
        self._partitions: list[InputPartition] = []
        self._partitions_at = 0.0
        self._topic_ids = dict(self._pipeline.topic_ids)
        # What Spark compares: the same end again means that nothing is new.
        self._logged: dict[str, Any] = json.loads(settings.last_end) if settings.last_end else {}
        self._last = BatchEnd.from_json(self._logged)
        self._planned: dict[str, Any] | None = None  # the end of the last batch that this object planned
        self._planned_at_us: int | None = None  # when that was, by a clock that nobody sets
        self._only_new = False  # whether all records of that batch came since the batch before it was planned
        self._interval_s = self._pipeline.interval_us / 1e6 if settings.stop_at is None else 0.0
        self._slowest_poll_s = max(SLOWEST_POLL_S, min(self._interval_s, LONGEST_WAIT_S) * SLOWEST_POLL_SHARE)
        self._not_before = 0.0  # when the next batch may begin, in seconds of the monotonic clock
        self._pause_s = POLL_S  # until the next request, longer with each that found nothing

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Where the first batch begins. In logs of this source, that batch's own end says it."""
        first: dict[str, Any] = json.loads(self._settings.first_offsets)
        return first

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """The end of the next batch; the end of the last one, after a short wait, if nothing is new."""
        try:
            return self._plan_next()
        except BrokerError:
            self._cluster = None  # a client that lived through a broker's restart may be refused for minutes
            raise

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ReadTask]:
        """The tasks that read the batch from ``start`` to ``end``."""
        batch = BatchEnd.from_json(end)
        starts = dict(batch.began) | dict(BatchEnd.from_json(start).ends)
        ranges = {
            partition: (starts[partition], to)
            for partition, to in batch.ends.items()
            if partition in starts and to > starts[partition]
        }
        begun_before = end != self._planned  # before this process: the topics may have changed since
        if begun_before or not self._only_new:
            self._check_not_deleted(ranges)  # otherwise the reader notices, and with a worse message
        if begun_before:
            self._check_not_shorter(batch.ends, self._connect().end_offsets(ranges))
        facts = batch.facts or BatchFacts.at(self._settings.last_time_us)._replace(caught_up=False)
        tasks = spread(ranges, self._settings.tasks) or ([{}] if facts.upstream else [])
        return [Task(task, facts, bool(facts.upstream) and task is tasks[0]) for task in tasks]

    def read(self, partition: ReadTask) -> Iterator[pa.RecordBatch]:
        """Read and decode a task, in a worker."""
        assert isinstance(partition, Task)
        return read_task(self._pipeline, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark's call when a batch is finished. Deliveries have committed its offsets already."""

    def stop(self) -> None:
        """Spark's call at the end."""
        self._cluster = None
        if self._upstream is not None:
            self._upstream.stop()

    def _plan_next(self) -> dict[str, Any]:
        stop_at = self._settings.stop_at
        if stop_at is not None and _reached(self._last.ends, stop_at):
            return self._logged
        started = time.monotonic()
        if started < self._not_before:
            time.sleep(min(self._not_before - started, LONGEST_WAIT_S))
            if self._not_before - started > LONGEST_WAIT_S:
                return self._logged
        while True:
            cluster = self._connect()
            upstream = self._upstream_news(cluster)
            found = cluster.end_offsets(self._all_partitions(cluster))
            began = self._first_offsets(cluster, found)
            starts = dict(self._last.ends) | began
            self._check_not_shorter(starts, found)
            if stop_at is not None:
                found = {at: min(end, stop_at.get(at, 0)) for at, end in found.items()}
            waited = time.monotonic() - started
            if upstream is not None and not upstream.is_covered(found):
                upstream = None  # a transaction is open: what it has written before can't be read yet
            records = began or any(end > starts[partition] for partition, end in found.items())
            if records or (upstream is not None and self._is_quiet()):
                return self._plan(starts, found, began, round(waited * 1e6), upstream)
            if waited > LONGEST_WAIT_S:
                return self._logged
            time.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * 1.5, self._slowest_poll_s)

    def _upstream_news(self, cluster: Cluster) -> _UpstreamNews | None:
        """Watermarks of the services before this one that the last batch didn't have; None if there are none.

        They count for a batch that ends where the input ends, as it was asked for after they were told: what
        these services had written before is in the batch then. See docs/concepts/watermarks.md.
        """
        if self._pipeline.upstream is None or self._settings.stop_at is not None:
            return None
        if self._upstream is None:
            self._upstream = self._pipeline.upstream.follow()
        lows = self._upstream.lows
        if lows is None or lows == self._last.upstream or self._are_ahead(lows, time.time_ns() // 1000):
            return None
        return _UpstreamNews(lows, cluster.written_ends(self._all_partitions(cluster)))

    def _are_ahead(self, lows: Mapping[str, int], now_us: int) -> bool:
        """Whether a watermark is too far ahead to be true, by the rule for those that records carry."""
        return max(lows.values(), default=now_us) > now_us + self._pipeline.max_future_us

    def _is_quiet(self) -> bool:
        """Whether no batch was planned for a while: records bring the watermark too, at no cost."""
        planned = self._planned_at_us
        return planned is None or time.monotonic_ns() // 1000 - planned >= QUIET_US

    def _plan(
        self, starts: Ends, found: Ends, began: Ends, waited_us: int, news: _UpstreamNews | None = None
    ) -> dict[str, Any]:
        ends = next_ends(starts, found, self._settings.batch_records)
        behind = {
            partition: end - ends[partition] for partition, end in found.items() if end > ends[partition]
        }
        self._not_before = 0.0 if behind else time.monotonic() + self._interval_s
        self._pause_s = POLL_S
        now, running_us, before = time.time_ns() // 1000, time.monotonic_ns() // 1000, self._planned_at_us
        passed_us = running_us - before if before is not None else 0
        believed = believed_time(now, self._last.time_us, passed_us)
        self._only_new = before is not None and passed_us < RETENTION_S * 1e6 and not self._last.behind
        self._planned_at_us = running_us
        upstream = self._last.upstream if self._pipeline.upstream is not None else {}
        if news is not None and not behind and not self._are_ahead(news.lows, believed):
            upstream = news.lows
        began = dict(self._last.began) | began
        self._last = BatchEnd(starts | ends, now, behind, began, waited_us, believed, upstream)
        self._logged = self._planned = self._last.to_json()
        return self._logged

    def _connect(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._pipeline.bootstrap, self._pipeline.options)
        return self._cluster

    def _all_partitions(self, cluster: Cluster) -> list[InputPartition]:
        """All input partitions, among them those that were added a while ago."""
        if self._partitions and time.monotonic() <= self._partitions_at + PARTITIONS_CHECK_S:
            return self._partitions
        topics = cluster.topics(self._pipeline.topics)
        for name in self._pipeline.topics:
            if name not in topics:
                raise BrokerError(
                    f"input.topics: there is no topic {name} at {cluster.bootstrap} any more; create it "
                    "again or correct the name"
                )
            if self._topic_ids.setdefault(name, topics[name].id) != topics[name].id:
                raise CheckpointError(
                    f"input.topics: {name} was deleted and created again, so the checkpoint's offsets belong "
                    f"to other records; {_START_AGAIN}"
                )
        self._partitions = [(name, at) for name, topic in topics.items() for at in range(topic.partitions)]
        self._partitions_at = time.monotonic()
        return self._partitions

    def _first_offsets(self, cluster: Cluster, found: Ends) -> Ends:
        """Where partitions begin that no batch has read yet: as configured, or at the earliest if new."""
        new = [partition for partition in found if partition not in self._last.ends]
        if not new:
            return {}
        first, starting = not self._last.ends, self._pipeline.starting
        if first and starting == "latest":
            return {partition: found[partition] for partition in new}
        earliest = cluster.beginning_offsets(new)
        if not first or isinstance(starting, str):
            return earliest
        given = {(topic, part): at for topic, parts in starting.items() for part, at in parts.items()}
        return {partition: given.get(partition, earliest[partition]) for partition in new}

    def _check_not_shorter(self, starts: Mapping[InputPartition, int], found: Ends) -> None:
        """Raise CheckpointError if a partition ends before ``starts``, where the service goes on."""
        for (topic, partition), end in found.items():
            if end < starts[topic, partition]:
                raise CheckpointError(
                    f"{topic}-{partition} ends at offset {end}, but the service has read up to "
                    f"{starts[topic, partition]}: the topic was deleted and created again, or lost records; "
                    f"{_START_AGAIN}"
                )

    def _check_not_deleted(self, ranges: Mapping[InputPartition, Range]) -> None:
        """Raise CheckpointError if a partition begins only after the start of its range."""
        for (topic, partition), earliest in self._connect().beginning_offsets(ranges).items():
            start = ranges[topic, partition][0]
            if earliest > start:
                raise CheckpointError(
                    f"{topic}-{partition}: offsets {start} to {earliest - 1} have not been read, and Kafka "
                    f"has deleted them by retention; lengthen retention.ms, and {_START_AGAIN}"
                )


def _reached(ends: Mapping[InputPartition, int], stop_at: Mapping[InputPartition, int]) -> bool:
    return all(ends.get(partition, -1) >= end for partition, end in stop_at.items())


def spread(ranges: Mapping[InputPartition, Range], tasks: int) -> list[dict[InputPartition, Range]]:
    """Spread ranges over at most ``tasks`` tasks of about the same size; a range isn't cut.

    There are no more tasks than one for each :data:`TASK_RECORDS` offsets.

    >>> spread({("t", 0): (0, 500), ("t", 1): (0, 9_000), ("t", 2): (1_000, 7_000)}, 2)
    [{('t', 1): (0, 9000)}, {('t', 2): (1000, 7000), ('t', 0): (0, 500)}]
    >>> spread({("t", 0): (0, 500), ("t", 1): (0, 900)}, 2)
    [{('t', 1): (0, 900), ('t', 0): (0, 500)}]
    """
    tasks = min(tasks, -(-sum(end - start for start, end in ranges.values()) // TASK_RECORDS))
    sizes = [0] * tasks
    spread_out: list[dict[InputPartition, Range]] = [{} for _ in range(tasks)]
    for partition, (start, end) in sorted(
        ranges.items(), key=lambda item: (item[1][0] - item[1][1], item[0])
    ):
        task = sizes.index(min(sizes))
        sizes[task] += end - start
        spread_out[task][partition] = start, end
    return [task for task in spread_out if task]


def read_task(settings: PipelineSettings, task: Task) -> Iterator[pa.RecordBatch]:
    """Read and decode the ranges of a task; yields batches of rows."""
    try:
        if task.tells_shards:
            yield rows.empty_frames(
                partition_ids(settings.shards), partition_ids(settings.lanes)[0], task.facts
            )
        if task.ranges:
            yield from decode_chunks(settings, worker.reader(settings).read_chunks(task.ranges), task.facts)
    except BrokerError:
        worker.drop_reader(settings)
        raise


def last_planned_ends(spark: SparkSession, settings: PipelineSettings) -> Mapping[InputPartition, int]:
    """Where the last batch ends that Spark has planned; empty for an empty checkpoint."""
    last_end = with_last_batch(spark, SourceSettings(settings, batch_records=0, tasks=0)).last_end
    return BatchEnd.from_json(json.loads(last_end)).ends if last_end else {}


def with_last_batch(spark: SparkSession, settings: SourceSettings) -> SourceSettings:
    """The settings with the last planned batch of the checkpoint, read by Spark's own offset log."""
    jvm: Any = spark._jvm  # PySpark has no types for it
    checkpoint = settings.pipeline.checkpoint
    with storage_errors(checkpoint):
        log = jvm.org.apache.spark.sql.execution.streaming.OffsetSeqLog(
            spark._jsparkSession, f"{checkpoint}/offsets"
        )
        latest = log.getLatest()
    if latest.isEmpty():
        return settings
    batch = latest.get()._2()
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    first = HadoopFolder(checkpoint, jvm, conf).read(CONNECTOR_FIRST_OFFSETS)
    return replace(
        settings,
        last_end=batch.offsets().head().get().json(),
        last_time_us=batch.metadata().get().batchTimestampMs() * 1000,
        first_offsets=last_line(first) if first is not None else "{}",
    )
