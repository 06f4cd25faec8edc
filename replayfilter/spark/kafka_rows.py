"""The rows of the input topics, read with Spark's Kafka connector, each with the batch time."""

from __future__ import annotations

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from replayfilter.kafka.admin import Cluster
from replayfilter.spark.pipeline_settings import PipelineSettings

_EARLIEST = -2  # Kafka's own number for the earliest offset
_HEADERS = "ARRAY<STRUCT<key: STRING, value: BINARY>>"


def kafka_rows(spark: SparkSession, settings: PipelineSettings, batch_records: int) -> DataFrame:
    """One row per input record; at most ``batch_records`` of them in a batch.

    ``batch_time`` is in microseconds since the epoch and the same in the whole batch. It comes from Spark's
    offset log, so a batch that is tried again has the same one.
    """
    read = spark.readStream.format("kafka").options(**_options(settings, batch_records)).load()
    # Plain current_timestamp() would be a constant in the generated code: Spark would compile every batch.
    times = f.transform(f.array(f.current_timestamp()), f.unix_micros)
    batch_time = f.get(times, 0).alias("batch_time")
    # A column of arrays that are all null costs Spark's Arrow writer 4 us per record; empty arrays are free.
    headers = f.coalesce("headers", f.expr(f"CAST(ARRAY() AS {_HEADERS})")).alias("headers")
    return read.select("key", "value", headers, "topic", "partition", "offset", "timestamp", batch_time)


def _options(settings: PipelineSettings, batch_records: int) -> dict[str, str]:
    client = {f"kafka.{name}": value for name, value in settings.options.items()}
    return client | {
        "kafka.bootstrap.servers": settings.bootstrap,
        "kafka.isolation.level": "read_committed",
        "subscribe": ",".join(settings.topics),
        "startingOffsets": _starting_offsets(settings),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "maxOffsetsPerTrigger": str(batch_records),
    }


def _starting_offsets(settings: PipelineSettings) -> str:
    """The connector's ``startingOffsets``: a word, or JSON, which must have every partition."""
    if isinstance(settings.starting, str):
        return settings.starting
    topics = Cluster(settings.bootstrap, settings.options).topics(settings.topics)
    offsets = {
        name: {
            partition: settings.starting.get(name, {}).get(partition, _EARLIEST)
            for partition in range(topic.partitions)
        }
        for name, topic in topics.items()
    }
    return json.dumps(offsets)
