"""Writes the records of a Spark job to Kafka with their stamps, exactly once.

Readers that drop replays need a writer that never leaves out a record and writes a later one. Spark's stock
Kafka sink does that: Kafka's Java producer gives up a record after ``delivery.timeout.ms``, while others that
it holds go out later. When the task is tried again, the record is below the mark of its source, and its
reader drops it as a replay.

Here each lane writes its part of a batch in one Kafka transaction, together with the next source offsets (see
:mod:`replayfilter.kafka.lanes`): everything of it can be read, or nothing. A task or a query that is started
again leaves out what was delivered before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from replayfilter.core.input_partition import InputPartition
from replayfilter.errors import ConfigError, StampError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.chunk import Chunk
from replayfilter.kafka.client_settings import unusable_options
from replayfilter.kafka.lanes import Lanes
from replayfilter.spark.jobs import Where, stamp
from replayfilter.spark.output_headers import own_headers
from replayfilter.spark.partitioning import partition_ids

LANES = 4
OBSERVED = "write_stamped"  # the name of the counts in the query's progress
_SORT_CHECK = "spark.sql.streaming.unsupportedOperationCheck"
_HEADERS = "array<struct<key:string,value:binary>>"
_TYPES = {
    "topic": ("string",),
    "partition": ("int",),
    "offset": ("bigint",),
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": (_HEADERS,),
    "timestamp": ("timestamp",),
}
_REQUIRED = ("topic", "partition", "offset", "value")
_TOPIC, _PARTITION = "__replayfilter_source_topic", "__replayfilter_source_partition"
_COUNTS = pa.schema([("written", pa.int64()), ("skipped", pa.int64())])


class Target(NamedTuple):
    """What the tasks need to know to deliver. ``group`` names the consumer group and the transactions."""

    bootstrap: str
    topic: str
    group: str
    lanes: int
    max_message_bytes: int | None
    options: tuple[tuple[str, str], ...]


def write_stamped(
    df: DataFrame,
    pid: int | Mapping[str, int],
    partitions: int,
    *,
    bootstrap: str,
    topic: str,
    job: str,
    where: Where = "key",
    lanes: int = LANES,
    options: Mapping[str, str] | None = None,
) -> DataStreamWriter:
    """A writer that stamps the records of a streaming DataFrame and delivers them exactly once, in order.

    - ``df``: with the columns topic, partition and offset of the Kafka source, and the value to be written.
      Also written are headers, timestamp (without it, the time of the batch), and key if ``where`` is
      "header". A source record may give one row at most, in the batch that reads it.
    - ``pid``, ``partitions``, ``where``: as in ``stamp``, which is called here.
    - ``topic``: is written to, at ``bootstrap``. The source topics must be in the same cluster.
    - ``job``: ``<job>-<topic>`` names the consumer group and starts the transactional ids. The group's
      offsets say what was delivered, also to a query with a new checkpoint.
    - ``lanes``: how many tasks write at the same time. Don't change it while a query of this name runs.
    - ``options``: client settings in Kafka's own names, such as those for security.

    Set the checkpoint and the trigger, then start it. The query's progress has the numbers of records
    ``written`` and ``skipped`` (delivered before) in ``observedMetrics`` under ``write_stamped``. Raises
    ConfigError with all problems found, StampError as ``stamp`` does, BrokerError if no broker answers.

        writer = write_stamped(df, pid, 4, bootstrap="localhost:9092", topic="orders", job="cleaner")
        query = writer.option("checkpointLocation", folder).start()
    """
    errors = [*_problems(df), *unusable_options(options or {}, produces=True).values()]
    if lanes < 1:
        errors.append(f"lanes = {lanes}: use 1 or more")
    if not job:
        errors.append("job is empty: give the job a name of its own, which stays the same")
    if errors:
        raise ConfigError(errors)
    cluster = Cluster(bootstrap, options)
    if errors := _topic_problems(cluster, topic, partitions):
        raise ConfigError(errors)
    limit = cluster.max_message_bytes([topic])
    given = tuple(sorted((options or {}).items()))
    target = Target(bootstrap, topic, f"{job}-{topic}", lanes, limit, given)
    counted = _rows(df, pid, partitions, where, lanes).mapInArrow(
        partial(write_lanes, target), "written BIGINT, skipped BIGINT"
    )
    totals = [f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in _COUNTS.names]
    return counted.observe(OBSERVED, *totals).writeStream.format("noop").queryName(target.group)


def _problems(df: DataFrame) -> list[str]:
    """What a streaming DataFrame or its session lacks, one sentence each."""
    errors = []
    if not df.isStreaming:
        errors.append("write_stamped needs a streaming DataFrame: read the source with spark.readStream")
    if (value := df.sparkSession.conf.get(_SORT_CHECK, "true")) != "false":
        errors.append(
            f"{_SORT_CHECK} = {value}: set it to false for the session; otherwise Spark refuses to sort a "
            "stream, and write_stamped sorts each batch"
        )
    types = {field.name: field.dataType.simpleString() for field in df.schema}
    for name, usable in _TYPES.items():
        if name not in types:
            if name in _REQUIRED:
                errors.append(f"column {name} is missing: keep this column of the Kafka source")
        elif types[name] not in usable:
            errors.append(f"column {name} is {types[name]}: make it {' or '.join(usable)}")
    return errors


def _topic_problems(cluster: Cluster, topic: str, partitions: int) -> list[str]:
    found = cluster.topics([topic]).get(topic)
    if found is None:
        return [f"there is no topic {topic!r} at {cluster.bootstrap}: create it first, or correct its name"]
    if found.partitions < partitions:
        return [f"partitions = {partitions}: topic {topic!r} has {found.partitions}; give at most that many"]
    return []


def _rows(
    df: DataFrame, pid: int | Mapping[str, int], partitions: int, where: Where, lanes: int
) -> DataFrame:
    """The stamped records, exchanged by lane and sorted by their place in the source."""
    place = {_TOPIC: f.col("topic"), _PARTITION: f.col("partition")}  # stamp() replaces them
    stamped = stamp(df.withColumns(place), pid, partitions, where)

    def optional(name: str, kind: str) -> Column:
        return (f.col(name) if name in stamped.columns else f.lit(None)).cast(kind)

    lane = f.pmod(f.crc32(f.col(_TOPIC).cast("binary")) + f.col(_PARTITION), f.lit(lanes)).cast("int")
    time = f.coalesce(optional("timestamp", "timestamp"), f.current_timestamp())
    no_headers = f.array().cast(_HEADERS)  # a column of nulls costs Spark's Arrow writer 4 us per record
    return (
        stamped.select(
            f.get(f.array(*map(f.lit, partition_ids(lanes))), lane).alias("lane"),
            f.col(_TOPIC).alias("topic"),
            f.col(_PARTITION).alias("partition"),
            "offset",
            f.col("partition").alias("target"),
            optional("key", "binary").alias("key"),
            f.col("value").cast("binary").alias("value"),
            f.coalesce(optional("headers", _HEADERS), no_headers).alias("headers"),
            f.unix_millis(time).alias("time"),
        )
        .repartition(lanes, "lane")
        .sortWithinPartitions("lane", "topic", "partition", "offset")
    )


def write_lanes(target: Target, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Deliver the rows of a task, each lane in one transaction, and yield counts; for mapInArrow."""
    chunks = (pair for batch in batches for pair in _chunks(target, batch))
    for lane_id, found in groupby(chunks, key=lambda pair: pair[0]):
        next_offsets: dict[InputPartition, int] = {}
        with lanes_of(target).open(partition_ids(target.lanes).index(lane_id)) as delivery:
            for _, chunk in found:
                _check_offsets(chunk, next_offsets.get(chunk.input_partition, -1))
                delivery.write(chunk)
                # The job may have left out later records; then the next batch begins above this offset.
                next_offsets[chunk.input_partition] = chunk.offsets[-1] + 1
            stats = delivery.commit(next_offsets)
        yield pa.RecordBatch.from_pydict({"written": [stats.written], "skipped": [stats.skipped]}, _COUNTS)


@cache
def lanes_of(target: Target) -> Lanes:
    """This worker's lanes. This module is imported by name, so they are kept from task to task."""
    return Lanes(
        target.bootstrap, target.group, dict(target.options), max_message_bytes=target.max_message_bytes
    )


def _chunks(target: Target, batch: pa.RecordBatch) -> Iterator[tuple[int, Chunk]]:
    """The id of the lane, and the rows, of each input partition in a sorted Arrow batch."""
    columns = (batch.column(name).to_pylist() for name in ("lane", "topic", "partition"))
    start = 0
    for (lane, topic, partition), rows in groupby(zip(*columns, strict=True)):
        part = batch.slice(start, n := len(list(rows)))
        start += n
        yield (
            lane,
            Chunk(
                input_partition=(topic, partition),
                offsets=part.column("offset").to_pylist(),
                topics=[target.topic] * n,
                partitions=part.column("target").to_pylist(),
                keys=part.column("key").to_pylist(),
                values=part.column("value").to_pylist(),
                timestamps_ms=part.column("time").to_pylist(),
                headers=own_headers(part.column("headers")),
            ),
        )


def _check_offsets(chunk: Chunk, next_offset: int) -> None:
    """Raise StampError if two rows have the same place in the source; they are sorted by it."""
    offsets = np.array([next_offset - 1, *chunk.offsets])
    same = np.flatnonzero(offsets[1:] == offsets[:-1])
    if len(same):
        topic, partition = chunk.input_partition
        raise StampError(
            f"two rows come from {topic}[{partition}] offset {chunk.offsets[same[0]]}: they would get the "
            "same stamp, and readers drop the second; make one row at most of each source record"
        )
