"""The plan: from Kafka's rows to rows of counts, all in one streaming query.

    source -> decode -> exchange by shard -+-> fingerprints -> route -+-> exchange by lane -> deliver
                                           +-> payloads --------------+

The exchange by shard is run once and read twice. Spark finds out by itself that both readers want the same
one, if only nothing is pushed below it that differs: hence the filters that it can't see through.
"""

from __future__ import annotations

import json
from functools import partial

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from replayfilter.kafka.admin import Cluster
from replayfilter.spark import counts, rows
from replayfilter.spark.decode import decode_batches
from replayfilter.spark.deliver import deliver_batches
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.route import Router

OBSERVED = "counts"  # the name under which a query's progress carries the counts
_EARLIEST = -2  # Kafka's own number for it
_HEADERS = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
_NEVER = "spark_partition_id() < -1"  # no rule of Spark's evaluates this early; through rand() < 0 it sees


def build_pipeline(spark: SparkSession, settings: PipelineSettings, batch_records: int) -> DataFrame:
    """The streaming DataFrame of counts; running it delivers. ``batch_records``: in one batch at most."""
    spark.conf.set("spark.sql.shuffle.partitions", str(settings.shards))
    frames = decode(source(spark, settings, batch_records), settings)
    return observed(deliver(route(frames, settings), settings))


def source(spark: SparkSession, settings: PipelineSettings, batch_records: int) -> DataFrame:
    """Kafka's rows, with the batch's time: fixed by Spark's offset log, so the same when tried again."""
    options = {f"kafka.{name}": value for name, value in settings.options.items()}
    options |= {
        "kafka.bootstrap.servers": settings.bootstrap,
        "kafka.isolation.level": "read_committed",
        "subscribe": ",".join(settings.topics),
        "startingOffsets": _starting_offsets(settings),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "maxOffsetsPerTrigger": str(batch_records),
    }
    read = spark.readStream.format("kafka").options(**options).load()
    # A bare time would stand in the generated code, which Spark would then compile anew for each batch.
    times = f.transform(f.array(f.current_timestamp()), f.unix_micros)
    batch_time = f.get(times, 0).alias("batch_time")
    # Nulls alone in a column of arrays cost Spark's Arrow writer 4 us a record, empty ones nothing.
    headers = f.coalesce("headers", f.expr(f"CAST(ARRAY() AS {_HEADERS})")).alias("headers")
    return read.select("key", "value", headers, "topic", "partition", "offset", "timestamp", batch_time)


def decode(source: DataFrame, settings: PipelineSettings) -> DataFrame:
    """Frames, exchanged by shard. As many tasks as cores: a wave of tasks costs 50 ms however small.

    A cluster's cores aren't there yet when the plan is made; its shards say how many there should be.
    """
    local = settings.master.startswith("local")
    tasks = source.sparkSession.sparkContext.defaultParallelism if local else settings.shards
    frames = source.coalesce(tasks).mapInArrow(partial(decode_batches, settings), rows.SCHEMA)
    return frames.repartition(settings.shards, "shard")


def route(frames: DataFrame, settings: PipelineSettings) -> DataFrame:
    """Routes and stats by the shards' states, and the payloads past them, exchanged by lane in due order."""
    routes = (
        frames.where(_only(rows.FINGERPRINT))
        .groupBy("shard")
        .transformWithStateInPandas(Router(settings), rows.SCHEMA, outputMode="append", timeMode="None")
    )
    payloads = frames.where(_only(rows.PAYLOAD))
    united = routes.unionByName(payloads).repartition(settings.lanes, "lane")
    return united.sortWithinPartitions("kind", "topic", "partition", "first")


def deliver(united: DataFrame, settings: PipelineSettings) -> DataFrame:
    """Rows of counts, once what they count is delivered."""
    return united.mapInArrow(partial(deliver_batches, settings), counts.SCHEMA)


def observed(counted: DataFrame) -> DataFrame:
    """The same rows; the batch's totals go into the query's progress."""
    laggards = f.coalesce(f.max(counts.LAGGARDS), f.lit("")).alias(counts.LAGGARDS)  # all but one are empty
    return counted.observe(OBSERVED, *map(_total, counts.COUNTS), laggards)


def _total(name: str) -> Column:
    total = f.max(name) if name in counts.LARGEST else f.sum(name)
    return f.coalesce(total, f.lit(0)).alias(name)  # a query's first batch may be empty


def _only(kind: int) -> str:
    return f"kind = {kind} OR {_NEVER}"


def _starting_offsets(settings: PipelineSettings) -> str:
    if isinstance(settings.starting, str):
        return settings.starting
    # Spark wants to hear of every partition.
    topics = Cluster(settings.bootstrap, settings.options).topics(settings.topics)
    wanted = {
        name: {
            partition: settings.starting.get(name, {}).get(partition, _EARLIEST) for partition in range(count)
        }
        for name, (_, count) in topics.items()
    }
    return json.dumps(wanted)
