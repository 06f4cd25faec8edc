"""The plan: from Kafka's rows to rows of counts, all in one streaming query.

    kafka_rows -> decode -> exchange by shard -+-> frames -> route -+-> exchange by lane -> deliver
                                               +-> payloads --------+

The exchange by shard runs once and is read twice. Spark finds out by itself that both readers can share it,
but only if it pushes no different filter below it. That is why each reader's filter has a term that Spark's
optimizer can't evaluate.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from replayfilter.core.input_partition import InputPartition
from replayfilter.spark import counts, rows
from replayfilter.spark.deliver import deliver_batches
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.router import Router
from replayfilter.spark.source import SourceSettings, decoded_rows, with_last_batch

OBSERVED, ROWS = "counts", "rows"  # the observation and its column that carry the counts in the progress
NEVER = "spark_partition_id() < -1"  # false, but the optimizer can't tell; it does tell with rand() < 0


def build_pipeline(
    spark: SparkSession,
    settings: PipelineSettings,
    batch_records: int,
    stop_at: Mapping[InputPartition, int] | None = None,
) -> DataFrame:
    """The streaming DataFrame of counts; running it delivers. A batch has at most ``batch_records``.

    ``stop_at``: leave what comes from these offsets on; None to go on for ever.
    """
    spark.conf.set("spark.sql.shuffle.partitions", str(settings.shards))
    decoded = decode(spark, settings, batch_records, stop_at)
    return observe_counts(deliver(route(decoded, settings), settings))


def decode(
    spark: SparkSession,
    settings: PipelineSettings,
    batch_records: int,
    stop_at: Mapping[InputPartition, int] | None,
) -> DataFrame:
    """Frames and payloads, exchanged by shard.

    One task per core, since each wave of tasks costs 50 ms however small they are. When the plan is made, a
    cluster may not have given its cores yet, so there the number of tasks is the number of shards.
    """
    local = settings.master.startswith("local")
    tasks = spark.sparkContext.defaultParallelism if local else settings.shards
    source = with_last_batch(spark, SourceSettings(settings, batch_records, tasks, stop_at=stop_at))
    return decoded_rows(spark, source).repartition(settings.shards, "shard")


def route(decoded: DataFrame, settings: PipelineSettings) -> DataFrame:
    """Routes and reports from the shards, and the payloads unchanged, exchanged by lane and sorted for it."""
    routes = (
        decoded.where(_only(rows.FRAME))
        .groupBy("shard")
        .transformWithStateInPandas(Router(settings), rows.SCHEMA, outputMode="append", timeMode="None")
    )
    payloads = decoded.where(_only(rows.PAYLOAD))
    united = routes.unionByName(payloads).repartition(settings.lanes, "lane")
    return united.sortWithinPartitions("kind", "sequence")


def deliver(routed: DataFrame, settings: PipelineSettings) -> DataFrame:
    """Rows of counts, each yielded after what it counts is delivered."""
    return routed.mapInArrow(partial(deliver_batches, settings), counts.SCHEMA)


def observe_counts(counted: DataFrame) -> DataFrame:
    """The same rows; the query's progress carries them, too."""
    return counted.observe(OBSERVED, f.collect_list(counts.ROW).alias(ROWS))


def _only(kind: int) -> str:
    return f"kind = {kind} OR {NEVER}"
