"""``route``: each record of a DataFrame gets the route that the service would give it.

For Spark jobs of your own: what is checked before the query starts, and the plan. What the workers do is in
``routed_rows.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    FractionalType,
    IntegralType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from replayfilter.core.clock.clocks import Clock
from replayfilter.core.clock.units import INT64_MIN, UNIT_NS
from replayfilter.core.rules import Rules
from replayfilter.errors import ConfigError
from replayfilter.settings.durations import length_in_units, parse_duration
from replayfilter.spark.jobs import PASSED, rocksdb_problem, unframe
from replayfilter.spark.routed_rows import (
    EXPIRY,
    KEY,
    ORDER,
    PARTITION,
    POSITION,
    RESULT,
    ROW,
    TIE,
    TIME,
    TOPIC,
    Job,
    ShardProcessor,
    cut_rows,
    decide_rows,
    sorted_records,
)

Field = str | Column
_PARTITIONS = "spark.sql.shuffle.partitions"
_CLOCKS = ("tuple", "system", "ordered", "categorical", "none")
_MAX_SHARDS = 1024
_TIMES = (TimestampType, TimestampNTZType, DateType)
_PLAIN = (StringType, BinaryType, BooleanType, IntegralType, FractionalType)
_UNHASHED = ("map<", "variant", "interval")  # what is in a type that Spark's xxhash64 doesn't take


def route(
    df: DataFrame,
    key: Field | Sequence[Field],
    expiry_key: Field | None = None,
    period: str | int | None = None,
    *,
    unit: Literal["s", "ms", "us", "ns", "iso8601", "integer"] = "ms",
    clock: Literal["tuple", "system", "ordered", "categorical", "none"] = "tuple",
    max_future: str = "10m",
    order: str = "offset",
    stamp: Literal["none", "key", "header"] = "none",
    shards: int = 8,
) -> DataFrame:
    """All records of ``df`` with all their columns, and what the service would do with each.

    - ``route``: "unique", "duplicate", "expired" or "error"; "replay" with stamps.
    - ``reason``: of an error, why, as in the service's header ``rf-reason``; "order" if it has no order.
    - ``first``: of a duplicate, the topic, partition and offset of the first record with its key.

    ``df`` is a stream or not. If it has the columns ``topic`` and ``partition``, these are its input
    partitions, otherwise all of it is one. ``order`` is the column (an integer or a timestamp) by which the
    records of an input partition are decided, so it should tell them apart.

    ``key`` is one column or several, and ``expiry_key`` one, by name or as expressions. ``period``, ``unit``,
    ``clock`` and ``max_future`` are those of the service's section ``dedup``. ``unit`` is that of numbers;
    timestamps and dates are converted to it. ``stamp`` says where stamps are.

    A stream keeps its state in ``shards`` partitions. Its session needs Spark's RocksDB state store and
    ``spark.sql.shuffle.partitions`` equal to ``shards``. Raises ConfigError with everything that is wrong.
    The query raises CheckpointError if its checkpoint was made with another key, clock, unit or ``shards``.

        route(source, "event_id", "ts", "36h").where("route = 'unique'").drop("route", "reason", "first")
    """
    keys = [key] if isinstance(key, str | Column) else list(key)
    fields = {f"{KEY}_{number}": _column(each) for number, each in enumerate(keys)}
    if expiry_key is not None and clock != "none":
        fields[EXPIRY] = _column(expiry_key)
    errors = [*_wrong_columns(df, order, stamp), *_wrong_session(df, shards)]
    rules, max_future_us = _rules(clock, unit, period, stamp, max_future, errors)
    if not keys:
        errors.append("key: empty; name the columns that make two records the same")
    if rules.clock.expires and expiry_key is None:
        errors.append(f'expiry_key: missing; clock = "{clock}" needs the column that ages a record')
    if errors:
        raise ConfigError(errors)

    reads = {Clock.CATEGORICAL: "category", Clock.ORDERED: "integer"}.get(rules.clock, unit)
    names = [each if isinstance(each, str) else str(each) for each in keys]
    job = Job(
        columns=tuple(df.columns),
        keys=tuple(names),
        expiry=str(expiry_key) if EXPIRY in fields else None,
        unit=reads,
        in_partitions=_in_partitions(df),
        stamp=stamp,
        rules=rules,
        max_future_us=max_future_us,
        shards=shards,
    )
    records = df.select("*", *(column.alias(name) for name, column in (fields | _place(df, order)).items()))
    types = {name: records.schema[name].dataType for name in fields}
    for name, shown in zip(fields, [*names, job.expiry or ""], strict=False):
        errors += _wrong_type(shown, types[name], reads if name == EXPIRY else "category")
    if errors:
        raise ConfigError(errors)
    return _routed(records, df.schema, job)


def _routed(records: DataFrame, schema: StructType, job: Job) -> DataFrame:
    result = StructType([*schema.fields, *RESULT.fields])
    if records.isStreaming:
        placed = records.repartition(TOPIC, PARTITION).mapInArrow(partial(_cut_sorted, job), ROW)
        decided = placed.groupBy("shard").transformWithStateInPandas(
            ShardProcessor(job), PASSED, outputMode="append", timeMode="None"
        )
        # No record may leave before all shards have decided: one of them may refuse the checkpoint.
        return decided.repartition("topic", "partition").mapInArrow(_in_order, result)
    ordered = records.repartitionByRange(TOPIC, PARTITION, ORDER).sortWithinPartitions(*POSITION)
    rows = ordered.mapInArrow(partial(cut_rows, job), ROW).repartition(job.shards, "shard")
    rows = rows.sortWithinPartitions("shard", "kind", "topic", "partition", "first")
    return rows.mapInArrow(partial(decide_rows, job), result)


def _cut_sorted(job: Job, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return cut_rows(job, sorted_records(batches))


def _in_order(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in unframe(batches, ORDER):
        yield batch.drop_columns([ORDER])


def _column(field: Field) -> Column:
    return f.col(field) if isinstance(field, str) else field


def _in_partitions(df: DataFrame) -> bool:
    return {"topic", "partition"} <= set(df.columns)


def _place(df: DataFrame, order: str) -> dict[str, Column]:
    """Where each record is in the input, and the time of its batch."""
    topic, partition = f.lit(""), f.lit(0)
    if _in_partitions(df):
        topic, partition = f.coalesce("topic", topic), f.coalesce(f.col("partition").cast("int"), partition)
    at = f.col(_quoted(order))
    if isinstance(df.schema[order].dataType, TimestampType):
        at = f.unix_micros(at)
    hashed = [
        field.name for field in df.schema
        if not any(kind in field.dataType.simpleString() for kind in _UNHASHED)
    ]  # fmt: skip
    return {
        TOPIC: topic,
        PARTITION: partition,
        ORDER: f.coalesce(at.cast("bigint"), f.lit(INT64_MIN)),
        TIE: f.xxhash64(*(f.col(_quoted(name)) for name in hashed)),
        TIME: f.unix_micros(f.current_timestamp()),
    }


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _rules(
    clock: str, unit: str, period: str | int | None, stamp: str, max_future: str, errors: list[str]
) -> tuple[Rules, int]:
    """The rules, and the microseconds of ``max_future``. What is wrong is added to ``errors``."""
    length, future_us = 0, 0
    if clock not in _CLOCKS:
        errors.append(f"clock = {clock!r}: use one of {', '.join(_CLOCKS)}")
        clock = "none"
    known = Clock(clock)
    units = [*UNIT_NS] if known.reads_time else [*UNIT_NS, "integer"]
    if unit not in units:
        errors.append(f"unit = {unit!r}: with clock = {clock!r} use one of {', '.join(units)}")
    elif known.expires:
        try:
            if period is None:
                raise ValueError('missing; say how long keys are remembered, such as "36h"')
            length = length_in_units(period, "integer" if known.reads_integers else unit)
            if not length and known is not Clock.CATEGORICAL:
                raise ValueError("must be more than zero; increase it")
        except ValueError as error:
            errors.append(f"period = {period!r}: {error}")
    try:
        future_us = parse_duration(max_future)
    except ValueError as error:
        errors.append(f"max_future = {max_future!r}: {error}")
    return Rules(
        replay=stamp != "none", clock=known, period=length, span=max(1, length // 12), unit=unit,
        remember_first=True,
    ), future_us  # fmt: skip


def _wrong_columns(df: DataFrame, order: str, stamp: str) -> Iterator[str]:
    if taken := {"route", "reason", "first"} & {name.lower() for name in df.columns}:
        yield f"there is a column {', '.join(sorted(taken))} already, which route() adds; rename it before"
    if order not in df.columns:
        yield f"order = {order!r}: there is no such column; name one by which the records are in order"
    elif not isinstance(df.schema[order].dataType, IntegralType | TimestampType):
        shown = df.schema[order].dataType.simpleString()
        yield f"order = {order!r}: the column is of type {shown}; use an integer or a timestamp"
    if _in_partitions(df):
        for name, kind in (("topic", StringType), ("partition", IntegralType)):
            if not isinstance(found := df.schema[name].dataType, kind):
                shown = found.simpleString()
                yield f"the column {name} is of type {shown}, and not as Kafka's; rename or drop it"
    if stamp not in ("none", "key", "header"):
        yield f'stamp = {stamp!r}: use "none", "key" or "header"'
    else:
        column = {"key": "key", "header": "headers"}.get(stamp)
        if column and column not in df.columns:
            yield f"stamp = {stamp!r}: there is no column {column}; read it, or use another value"


def _wrong_session(df: DataFrame, shards: int) -> Iterator[str]:
    if not 1 <= shards <= _MAX_SHARDS:
        yield f"shards = {shards}: use 1 to {_MAX_SHARDS}"
    elif df.isStreaming:
        yield from rocksdb_problem(df.sparkSession, "route")
        partitions = df.sparkSession.conf.get(_PARTITIONS, "")
        if partitions != str(shards):
            yield (
                f"{_PARTITIONS} = {partitions}: a stream needs as many as shards = {shards}; set it to "
                f"{shards}, or shards to another number (neither can change on a live checkpoint)"
            )


def _wrong_type(name: str, kind: DataType, reads: str) -> Iterator[str]:
    """What is wrong with the type of a key, or of an expiry key that is read in unit ``reads``."""
    shown = kind.simpleString()
    if not _is_key(kind):
        yield f"{name}: a key can't be of type {shown}; select the fields that it needs, or cast it"
    elif reads == "category":
        return
    elif isinstance(kind, _TIMES):
        if reads not in UNIT_NS:
            yield f"{name}: a {shown} is no integer; cast it to bigint"
    elif reads == "iso8601":
        if not isinstance(kind, StringType):
            yield f"{name}: {shown}, but unit = 'iso8601' reads text; use the unit of the numbers"
    elif not isinstance(kind, IntegralType | FractionalType):
        yield f"{name}: {shown}, but unit = {reads!r} reads numbers; cast it, or use 'iso8601' for text"


def _is_key(kind: DataType, nested: bool = False) -> bool:
    if isinstance(kind, ArrayType):
        return _is_key(kind.elementType, nested=True)
    if isinstance(kind, StructType):
        return all(_is_key(field.dataType, nested=True) for field in kind.fields)
    return isinstance(kind, _PLAIN) or (isinstance(kind, _TIMES) and not nested)
