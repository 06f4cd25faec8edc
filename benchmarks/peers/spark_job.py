"""The job of a stock Spark user.

    python -m benchmarks.peers.spark_job KIND BOOTSTRAP INPUT OUTPUT BATCH_RECORDS CHECKPOINT

KIND is copy, plain (dropDuplicates) or within (dropDuplicatesWithinWatermark). It runs until it is killed,
and writes to Kafka with Spark's own sink.
"""

from __future__ import annotations

import os
import signal
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.orders import PERIOD_MS
from replayfilter.jvm.jars import connector_jars
from replayfilter.spark.session import STATE_STORE

CONF = {
    "spark.jars": ",".join(map(str, connector_jars())),
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.shuffle.compress": "false",
    "spark.kafka.consumer.cache.capacity": "1100",  # more than partitions; 64 by default
    "spark.sql.shuffle.partitions": str(os.cpu_count()),
    "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def unique(rows: DataFrame, kind: str) -> DataFrame:
    """The records to write."""
    if kind == "copy":
        return rows
    event = f.from_json(f.col("value").cast("string"), "event_id STRING, ts LONG")
    rows = rows.select("key", "value", event.alias("event")).select(
        "key", "value", "event.event_id", f.timestamp_millis("event.ts").alias("ts")
    )
    rows = rows.withWatermark("ts", f"{PERIOD_MS} milliseconds")
    if kind == "within":
        return rows.dropDuplicatesWithinWatermark(["event_id"])
    return rows.dropDuplicates(["event_id", "ts"])


def main(kind: str, bootstrap: str, topic: str, output: str, batch_records: str, checkpoint: str) -> None:
    builder = SparkSession.builder.appName(kind).master("local[*]")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    source = source.option("subscribe", topic).option("startingOffsets", "earliest")
    rows = source.option("maxOffsetsPerTrigger", batch_records).load()
    sink = unique(rows, kind).select("key", "value").writeStream.format("kafka")
    sink = sink.option("kafka.bootstrap.servers", bootstrap).option("topic", output)
    query = sink.option("checkpointLocation", checkpoint).start()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # state is on disk after each batch
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
