"""Rebuild: a query of one batch that writes a new checkpoint from what a service has delivered.

    recall -> exchange by shard -+-> rebuild
                                 +-> nothing

The shards' states are those of the service's own stateful stage, under the same names, and the batch ends
at the committed offsets of the group. So to Spark it is the first batch of the service's query, and the
service goes on with the second one. Spark's offset log has an end for each reader of a source, and the
service's plan has two, so this plan has a second one, too. The work is spread like the service's, and the
exchange is on disk.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.datasource import InputPartition as ReadTask
from pyspark.sql.streaming.stateful_processor import TimerValues
from pyspark.sql.types import StructType

from replayfilter.core.input_partition import InputPartition
from replayfilter.core.rebuilt_state import Delivered, RebuiltShard
from replayfilter.kafka.reader import Range
from replayfilter.spark import counts, recall, worker
from replayfilter.spark.batch_range import BatchEnd
from replayfilter.spark.failures import explain, jvm_errors
from replayfilter.spark.hadoop_folder import storage_errors
from replayfilter.spark.pipeline import NEVER, OBSERVED, ROWS, observe_counts
from replayfilter.spark.recall import RecallSettings, recall_task
from replayfilter.spark.router import Router, StateRuns
from replayfilter.spark.session import start_session

NAME = "replayfilter-rebuild"
TASK_RECORDS = 250_000  # offsets in a task; the progress moves with each task
POLL_SECONDS = 0.5

Ranges = Mapping[InputPartition, Range]


def rebuild_state(
    settings: RecallSettings,
    ranges: Ranges,
    ends: Mapping[InputPartition, int],
    on_progress: Callable[[int, int], None],
    shared: Sequence[int] = (),
) -> dict[str, int]:
    """Write Spark's checkpoint; what was counted, the sum of all shards.

    ``ranges``: what to read of the output topics and the input topics. ``ends``: the next offset of each
    input partition. ``on_progress`` is called with the tasks that are done, and all tasks. ``shared``: file
    descriptors that the JVM keeps open.

    Raises a ReplayfilterError that says why if the query fails, and SparkLost if the JVM has ended. Then the
    checkpoint can't be used.
    """
    pipeline = settings.pipeline
    time_us = settings.time_us
    end = BatchEnd(ends, time_us, began=ends, believed_us=time_us).to_json()
    tasks = cut_tasks(ranges, TASK_RECORDS)
    with jvm_errors():
        session = start_session(pipeline, shared)
        writer = _plan(session, _SourceSettings(settings, tasks, end)).writeStream.format("noop")
        writer = writer.outputMode("append").queryName(pipeline.service).trigger(once=True)
        with storage_errors(pipeline.checkpoint):
            query = writer.option("checkpointLocation", pipeline.checkpoint).start()
        progress = _TaskProgress(session, len(tasks) + pipeline.shards)
        try:
            while not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]  # may be a fraction
                on_progress(*progress.done())
        except StreamingQueryException as error:
            raise explain(str(error), "run `replayfilter rebuild CONFIG` again") from error
        last = query.lastProgress
        observed = json.loads(last.json)["observedMetrics"] if last is not None else {}
    total: Counter[str] = Counter()
    for row in observed.get(OBSERVED, {}).get(ROWS, []):
        total.update(json.loads(row))
    return dict(total)


def cut_tasks(ranges: Ranges, size: int) -> list[dict[InputPartition, Range]]:
    """Cut ranges into tasks of ``size`` offsets each; there is one task at least.

    >>> cut_tasks({("t", 0): (0, 5), ("t", 1): (7, 8), ("t", 2): (0, 1)}, 3)
    [{('t', 0): (0, 3)}, {('t', 0): (3, 5), ('t', 1): (7, 8)}, {('t', 2): (0, 1)}]
    """
    tasks: list[dict[InputPartition, Range]] = [{}]
    room = size
    for partition, (start, end) in sorted(ranges.items()):
        while start < end:
            if not room:
                tasks.append({})
                room = size
            stop = min(end, start + room)
            tasks[-1][partition] = start, stop
            room -= stop - start
            start = stop
    return tasks


class Rebuilder(Router):
    """The stage with state: it has the states of the service's, and makes them from what was delivered."""

    def __init__(self, settings: RecallSettings) -> None:
        super().__init__(settings.pipeline)
        self._recall = settings

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: tuple[Any, ...],
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Make the state of one shard. Its rows come part by part, so they need not fit into memory."""
        rules = self._settings.rules
        store = StateRuns(self._runs, worker.run_cache(self._settings.cache_bytes))
        inputs = self._recall.inputs if rules.remember_first else ()
        shard = RebuiltShard(rules, store, self._recall.time_us, inputs)
        found: Counter[str] = Counter()
        for part in rows:
            for body in part["body"]:
                delivered = Delivered.from_bytes(body)
                shard.add(delivered)
                found.update(delivered.counts)
        state = shard.state()
        self._state.update((state.to_bytes(),))
        found["keys"] = state.keys
        found["sources_in_shards"] = state.marks.sources
        yield pd.DataFrame({"shard": [int(key[0])], "body": [json.dumps(found).encode()]})


@dataclass(frozen=True, slots=True)
class _SourceSettings:
    recall: RecallSettings
    tasks: list[dict[InputPartition, Range]]
    end: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Task(ReadTask):
    ranges: Ranges


class _Planner(DataSourceStreamReader):
    """Plans the only batch, which ends where the service goes on."""

    def __init__(self, settings: _SourceSettings) -> None:
        self._settings = settings

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        return {}

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        return self._settings.end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ReadTask]:
        return [_Task(ranges) for ranges in self._settings.tasks]

    def read(self, partition: ReadTask) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Task)
        return recall_task(self._settings.recall, partition.ranges)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark's call when the batch is finished."""

    def stop(self) -> None:
        """Spark's call at the end."""


def _plan(spark: SparkSession, settings: _SourceSettings) -> DataFrame:
    class RecallSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return recall.SCHEMA

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
            return _Planner(settings)

    shards = settings.recall.pipeline.shards
    spark.conf.set("spark.sql.shuffle.partitions", str(shards))
    spark.dataSource.register(RecallSource)
    recalled = spark.readStream.format(NAME).load().repartition(shards, "shard")
    rebuilt = recalled.groupBy("shard").transformWithStateInPandas(
        Rebuilder(settings.recall), recall.SCHEMA, outputMode="append", timeMode="None"
    )
    both = rebuilt.unionByName(recalled.where(NEVER))
    return observe_counts(both.select(f.col("body").cast("string").alias(counts.ROW)))


class _TaskProgress:
    """How many of ``total`` tasks are done, as Spark's scheduler counts them."""

    def __init__(self, spark: SparkSession, total: int) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._stages: set[int] = set()
        self._total = total

    def done(self) -> tuple[int, int]:
        self._stages.update(self._tracker.getActiveStageIds())
        found = (self._tracker.getStageInfo(stage) for stage in self._stages)
        done = sum(stage.numCompletedTasks for stage in found if stage is not None)
        return min(done, self._total), self._total
