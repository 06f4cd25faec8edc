"""Stamps and replay filtering in Spark jobs of your own, with Spark's stock Kafka source and sink.

Both take a DataFrame of the Kafka source, with its columns key, value, topic, partition, offset, and headers
if it was read with ``includeHeaders``. They rely only on Kafka's offsets, so they may follow any ``select``,
``where`` or ``withColumn``, but no join, aggregation or repartition: the records of a partition must keep
their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from replayfilter.core.stamp import STAMP_HEADER, Stamp
from replayfilter.errors import ConfigError, StampError
from replayfilter.spark.decode import last_headers, read_stamps

MARK_TTL_HOURS = 48
_ARROW_BATCH_RECORDS = 4_000
_SOURCE_BYTES = 12  # the start of a stamp: pid and source partition
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_FRAME = (
    "source BINARY, topic STRING, partition INT, first BIGINT, "
    "earliest_us BIGINT, latest_us BIGINT, body BINARY"
)
PASSED = "topic STRING, partition INT, body BINARY"
_FRAME_SCHEMA = pa.schema(
    [("source", pa.binary()), ("topic", pa.string()), ("partition", pa.int32()), ("first", pa.int64()),
     ("earliest_us", pa.int64()), ("latest_us", pa.int64()), ("body", pa.binary())]
)  # fmt: skip
_OFFSET, _TIMESTAMP = "__replayfilter_source_offset", "timestamp"

Where = Literal["key", "header"]


def stamp(df: DataFrame, pid: int | Mapping[str, int], partitions: int, where: Where = "key") -> DataFrame:
    """Add to each record of a Kafka source its stamp and its destination partition, for the stock Kafka sink.

    Prefer ``write_stamped``. When brokers are away, the stock sink can leave out a record and write a later
    one. When it writes the record after all, as the task is tried again, readers drop it as a replay.

    - ``pid``: one number, or a mapping from source topic to number; see ``pid_for_topic``.
    - ``partitions``: the destination topic's number of partitions.
    - ``where``: "key" replaces the column ``key`` by the stamp; "header" adds the stamp to ``headers``.

    Also replaces the column ``partition`` and drops ``topic``, so that the sink's ``topic`` option applies.
    All other columns stay. Raises StampError for a pid that is not an int64, and for wrong arguments.

        stamp(source, pid, 4).writeStream.format("kafka").option("topic", "orders")...
    """
    if where not in ("key", "header"):
        raise StampError(f"where = {where!r}: use 'key' or 'header'")
    if partitions < 1:
        raise StampError(f"partitions = {partitions}: give the destination topic's number of partitions")
    blob = f.concat(_pid_bytes(pid), _big_endian("partition", 8), _big_endian("offset", 16))
    number = f.expr(f"partition % {partitions}").cast("int")
    if where == "key":
        return df.withColumns({"key": blob, "partition": number}).drop("topic")
    pair = f.array(f.struct(f.lit(STAMP_HEADER).alias("key"), blob.alias("value")))
    if "headers" in df.columns:
        own = f.filter("headers", lambda header: header["key"] != STAMP_HEADER)
        pair = f.concat(f.coalesce(own, f.array().cast(df.schema["headers"].dataType)), pair)
    return df.withColumns({"headers": pair, "partition": number}).drop("topic")


def _pid_bytes(pid: int | Mapping[str, int]) -> Column:
    if not isinstance(pid, Mapping):
        return f.lit(bytearray(_first_bytes(pid)))
    if not pid:
        raise StampError("pid is empty: give the pid of each source topic")
    chosen: Any = f
    for topic, number in pid.items():
        chosen = chosen.when(f.col("topic") == topic, f.lit(bytearray(_first_bytes(number))))
    missing = f.raise_error(f.concat(f.lit("stamp(): no pid is given for topic "), f.col("topic")))
    column: Column = chosen.otherwise(missing.cast("binary"))
    return column


def _first_bytes(pid: int) -> bytes:
    return Stamp(pid, 0, 0).to_bytes()[:8]


def _big_endian(column: str, digits: int) -> Column:
    return f.unhex(f.lpad(f.hex(column), digits, "0"))


def filter_replays(df: DataFrame, where: Where = "key", mark_ttl_hours: int = MARK_TTL_HOURS) -> DataFrame:
    """The records that are no replays, with all their columns. The query's checkpoint holds the marks.

    ``df``: a streaming DataFrame of the Kafka source with the columns topic, partition, offset and key (or
    headers). ``where``: where the stamps are, "key" or "header". Records without a stamp pass. The records of
    an input partition come out together and in their order.

    A mark no longer counts for records that are more than ``mark_ttl_hours`` newer than all records of its
    source before them, by Kafka's column ``timestamp``. So downtime of the query is no silence of the source.
    Without that column marks always count. The state keeps one row per source.

    A task holds its part of the batch in memory, so set ``maxOffsetsPerTrigger``. Raises ConfigError unless
    ``spark.sql.streaming.stateStore.providerClass`` is Spark's RocksDB state store.

        filter_replays(source).select("value").writeStream...
    """
    if problems := list(rocksdb_problem(df.sparkSession, "filter_replays")):
        raise ConfigError(problems)
    schema = df.schema
    frames = df.mapInArrow(partial(_frame, where), _FRAME)
    passed = frames.groupBy("source").transformWithStateInPandas(
        _Marks(mark_ttl_hours * 3_600_000_000), PASSED, outputMode="append", timeMode="None"
    )
    return passed.repartition("topic", "partition").mapInArrow(unframe, schema)


def rocksdb_problem(spark: SparkSession, function: str) -> Iterator[str]:
    """What is wrong unless the session has Spark's RocksDB state store, which ``function`` needs."""
    provider = spark.conf.get(_PROVIDER, "") or ""
    if "RocksDB" not in provider:
        yield (
            f"{_PROVIDER} = {provider!r}: {function} needs RocksDB; set it to "
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        )


def _frame(where: Where, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row per source and input partition in an Arrow batch, with the records unchanged in its body.

    Records without a stamp make rows with an empty source.
    """
    for records in batches:
        if not records.num_rows:
            continue
        times_us = _timestamps_us(records)
        blobs = (
            records.column("key") if where == "key" else last_headers(records.column("headers"), STAMP_HEADER)
        )
        stamps = read_stamps(blobs)
        groups: dict[tuple[bytes, str, int], list[int]] = {}
        topics, partitions = records.column("topic").to_pylist(), records.column("partition").to_pylist()
        for row, (valid, pid, number) in enumerate(
            zip(stamps.valid.tolist(), stamps.pids.tolist(), stamps.partitions.tolist(), strict=True)
        ):
            source = Stamp(pid, number, 0).to_bytes()[:_SOURCE_BYTES] if valid else b""
            groups.setdefault((source, topics[row], partitions[row]), []).append(row)
        offsets = records.column("offset").to_numpy()
        marked = records.append_column(_OFFSET, pa.array(stamps.offsets))
        columns: list[list[Any]] = [[] for _ in _FRAME_SCHEMA]
        for (source, topic, partition), rows in groups.items():
            rows.sort(key=offsets.__getitem__)
            first, body = int(offsets[rows[0]]), to_bytes(marked.take(pa.array(rows)))
            earliest, latest = int(times_us[rows].min()), int(times_us[rows].max())
            for column, value in zip(
                columns, (source, topic, partition, first, earliest, latest, body), strict=True
            ):
                column.append(value)
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, _FRAME_SCHEMA, strict=True)],
            schema=_FRAME_SCHEMA,
        )


def _timestamps_us(records: pa.RecordBatch) -> NDArray[np.int64]:
    """Kafka's timestamps; all 0 if the column is gone, or another one has its name."""
    if _TIMESTAMP not in records.schema.names or not pa.types.is_timestamp(records[_TIMESTAMP].type):
        return np.zeros(records.num_rows, np.int64)
    times: NDArray[np.int64] = pc.fill_null(
        records[_TIMESTAMP].cast("timestamp[us]").cast("int64"), 0
    ).to_numpy()
    return times


def unframe(batches: Iterable[pa.RecordBatch], order: str = "offset") -> Iterator[pa.RecordBatch]:
    """The records of each input partition by the column ``order``; grouping has brought them out of it."""
    frames: dict[tuple[str, int], list[pa.RecordBatch]] = {}
    for batch in batches:
        names = batch.column("topic").to_pylist(), batch.column("partition").to_pylist()
        for partition, body in zip(zip(*names, strict=True), batch.column("body"), strict=True):
            frames.setdefault(partition, []).append(from_buffer(body.as_buffer()))
    for found in frames.values():
        yield from (
            pa.Table.from_batches(found).sort_by(order).to_batches(max_chunksize=_ARROW_BATCH_RECORDS)
        )


class _Marks(StatefulProcessor):
    """Filters one source's records by its mark, in the order (topic, partition, offset) within a batch."""

    def __init__(self, ttl_us: int) -> None:
        self._ttl = ttl_us

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("mark", "mark BIGINT, seen BIGINT")

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: tuple[Any, ...],
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Filter one batch of one source."""
        frames = pd.concat(list(rows)).sort_values(["topic", "partition", "first"], kind="stable")
        (source,) = key
        bodies = [from_buffer(pa.py_buffer(bytes(body))) for body in frames["body"]]
        if bytes(source):
            partitions = list(zip(frames["topic"], frames["partition"], strict=True))
            times_us = list(zip(frames["earliest_us"], frames["latest_us"], strict=True))
            bodies = self._filter(bodies, partitions, times_us)
        else:
            bodies = [body.drop_columns([_OFFSET]) for body in bodies]
        passed = frames.assign(body=[to_bytes(body) for body in bodies])
        yield passed.loc[[body.num_rows > 0 for body in bodies], ["topic", "partition", "body"]]

    def _filter(
        self, bodies: list[pa.RecordBatch], partitions: list[tuple[str, int]], times_us: list[tuple[int, int]]
    ) -> list[pa.RecordBatch]:
        """What passes of each body; every input partition starts with the mark before the batch.

        ``times_us``: the smallest and largest timestamp in each body.
        """
        stored = self._state.get()
        mark_before, seen = (int(stored[0]), int(stored[1])) if stored is not None else (None, 0)
        latest = max([seen, *(int(high) for _, high in times_us)])
        if stored is not None and min(int(low) for low, _ in times_us) - seen > self._ttl:
            mark_before = None
        highest, mark, current, passed = mark_before, mark_before, None, []
        for partition, body in zip(partitions, bodies, strict=True):
            if partition != current:
                current, mark = partition, mark_before
            offsets: NDArray[np.int64] = body.column(_OFFSET).to_numpy()
            passes, mark = above_mark(mark, offsets)
            highest = mark if highest is None else max(highest, mark)
            passed.append(body.filter(pa.array(passes)).drop_columns([_OFFSET]))
        self._state.update((highest, latest))
        return passed

    def close(self) -> None:
        """Called by Spark at the end; there is nothing to close."""


def above_mark(mark: int | None, offsets: NDArray[np.int64]) -> tuple[NDArray[np.bool_], int]:
    """Which of a source's records, in their order, are no replays, bool[n]; and the mark after them.

    >>> above_mark(4, np.array([4, 5, 5, 7, 6]))
    (array([False,  True, False,  True, False]), 7)
    """
    highest = np.maximum.accumulate(offsets)
    passes = np.ones(len(offsets), np.bool_)
    passes[1:] = offsets[1:] > highest[:-1]
    if mark is None:
        return passes, int(highest[-1])
    return passes & (offsets > mark), max(mark, int(highest[-1]))


def to_bytes(batch: pa.RecordBatch) -> bytes:
    """A record batch in Arrow's stream format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_buffer(data: pa.Buffer) -> pa.RecordBatch:
    """Read what :func:`to_bytes` wrote."""
    with pa.ipc.open_stream(data) as stream:
        return stream.read_next_batch()
