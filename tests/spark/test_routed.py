"""``route`` on a real Spark: streams, restarts, batches that are run again, and DataFrames at once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from replayfilter.core.clock.clocks import Clock
from replayfilter.core.rules import Rules
from replayfilter.errors import CheckpointError, ConfigError
from replayfilter.formats import KeySpec
from replayfilter.spark import route
from replayfilter.spark.failures import explain
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.session import start_session
from tests.support.reference import Position, Record
from tests.support.routed_records import COLUMNS, expected, row_of, rules_of, supported
from tests.support.streams import make_stream

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("key", pa.binary()),
     ("event", pa.int64()), ("at", pa.int64())]
)  # fmt: skip
DDL = "topic STRING, partition INT, offset BIGINT, key BINARY, event BIGINT, at BIGINT"
NEVER_FUTURE = "100000000d"
STREAMS = (("replays", 2), ("categorical", 7), ("ordered", 1))


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """The process's session, with two state partitions."""
    folder = tmp_path_factory.mktemp("routed")
    keys, rules = KeySpec("json", ("id",), "ts", "ms"), Rules()
    session = start_session(
        PipelineSettings(
            service="routed", checkpoint=str(folder), bootstrap="", topics=(), keys=keys, rules=rules,
            outputs={}, output_pids={}, shards=2, lanes=2, master="local[2]",
        )
    )  # fmt: skip
    session.conf.set("spark.sql.shuffle.partitions", "2")
    return session


class Query:
    """A streaming query from the files of a folder, one each batch, into another folder."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.files = 0
        (folder / "in").mkdir()

    def add(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add a batch."""
        path = self.folder / "in" / f"{self.files}.parquet"
        pq.write_table(pa.table(dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)), SCHEMA), path)
        os.utime(path, (self.files, self.files))  # Spark reads the oldest first
        self.files += 1

    def source(self) -> DataFrame:
        return self.spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(f"{self.folder}/in")

    def run(self, routed: DataFrame) -> None:
        """Run until all files are read; the same checkpoint each time."""
        writer = routed.writeStream.format("parquet").option(
            "checkpointLocation", f"{self.folder}/checkpoint"
        )
        query = writer.option("path", f"{self.folder}/out").trigger(availableNow=True).start()
        query.awaitTermination()

    def batch(self, number: int) -> list[list[dict[str, Any]]]:
        """What a batch has written: the rows of each file, in their order."""
        lines = (self.folder / "out" / "_spark_metadata" / str(number)).read_text().splitlines()[1:]
        paths = [json.loads(line)["path"].removeprefix("file://") for line in lines]
        return [pq.read_table(path).to_pylist() for path in paths]

    def forget_commit(self, number: int) -> None:
        """As if the query had ended before it committed its last batch."""
        for log in (self.folder / "checkpoint" / "commits", self.folder / "out" / "_spark_metadata"):
            for name in (str(number), f".{number}.crc"):
                (log / name).unlink(missing_ok=True)


def arguments(rules: Rules) -> dict[str, Any]:
    counted = rules.clock in (Clock.ORDERED, Clock.CATEGORICAL)
    return {
        "key": "event",
        "expiry_key": "at",
        "period": rules.period if counted else f"{rules.period}ms",
        "clock": rules.clock.value,
        "stamp": "key" if rules.replay else "none",
        "max_future": NEVER_FUTURE,
        "shards": 2,
    }


def routes(rows: Iterable[dict[str, Any]]) -> dict[Position, tuple[str, Position | None]]:
    return {
        Position(row["topic"], row["partition"], row["offset"]): (
            row["route"], Position(*row["first"].values()) if row["first"] else None,
        )
        for row in rows
    }  # fmt: skip


def flat(files: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [row for rows in files for row in rows]


@pytest.mark.parametrize(("profile", "seed"), STREAMS)
def test_a_stream_with_a_restart_and_a_batch_that_is_run_again(
    spark: SparkSession, tmp_path: Path, profile: str, seed: int
) -> None:
    stream = make_stream(seed, profile)
    batches = supported(stream)
    rules = rules_of(stream, max_jump=None)
    assert len(batches) >= 3
    query, kwargs = Query(spark, tmp_path), arguments(rules)
    for number, batch in enumerate(batches):
        query.add(row_of(record, rules.clock) for record in reversed(batch))
        if number in (0, len(batches) - 1):  # what comes between is read after a restart
            query.run(route(query.source(), **kwargs))
    files = [query.batch(number) for number in range(len(batches))]
    want = expected(batches, rules)
    found = flat(rows for batch_files in files for rows in batch_files)
    assert len(found) == len(want)
    assert routes(found) == want
    assert len({decided[0] for decided in want.values()}) >= 5, "a stream that shows little"
    for written in files:
        partitions: set[tuple[str, int]] = set()
        for rows in written:
            positions = [Position(row["topic"], row["partition"], row["offset"]) for row in rows]
            own = {position[:2] for position in positions}
            assert not own & partitions, "the records of an input partition stay together"
            partitions |= own
            for each in own:
                assert (mine := [at for at in positions if at[:2] == each]) == sorted(mine)

    query.forget_commit(len(batches) - 1)
    query.run(route(query.source(), **kwargs))
    again = query.batch(len(batches) - 1)
    assert sorted(map(str, flat(again))) == sorted(map(str, flat(files[-1])))

    whole = route(spark.read.schema(DDL).parquet(f"{tmp_path}/in"), **kwargs)
    one_batch = [row.asDict(recursive=True) for row in whole.collect()]
    everything = [record for batch in batches for record in batch]
    assert len(one_batch) == len(everything)
    assert routes(one_batch) == expected([everything], rules)


def test_one_input_partition_gets_the_same_routes_as_a_stream_and_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Without Kafka's columns all records are one input partition, in the order of a column."""
    rules = rules_of(make_stream(1, "plain"), replay=False, period=17)
    records: list[Record] = []
    for seed in range(12):
        more = [record for batch in supported(make_stream(seed, "plain")) for record in batch]
        start = len(records)
        records += [
            Record(
                Position("", 0, start + number), None, None, each.key, start + each.key % 7 * 4, each.broken
            )
            for number, each in enumerate(more)
        ]
    query, kwargs = Query(spark, tmp_path), arguments(rules) | {"order": "sequence"}
    size = len(records) // 3
    for start in range(0, len(records), size):
        query.add(row_of(record, rules.clock) for record in reversed(records[start : start + size]))

    def one(df: DataFrame) -> DataFrame:
        own = df.select(f.col("offset").alias("sequence"), "event", "at")
        return route(own, **kwargs)

    query.run(one(query.source()))
    want = {
        at.offset: (name, first.offset if first else None)
        for at, (name, first) in expected([records], rules).items()
    }
    streamed = flat(rows for number in range(query.files) for rows in query.batch(number))
    at_once = [
        row.asDict(recursive=True) for row in one(spark.read.schema(DDL).parquet(f"{tmp_path}/in")).collect()
    ]
    for rows in (streamed, at_once):
        assert len(rows) == len(records)
        assert {
            row["sequence"]: (row["route"], row["first"]["offset"] if row["first"] else None) for row in rows
        } == want
        assert {row["first"]["topic"] for row in rows if row["first"]} == {None}
    assert {name for name, _ in want.values()} == {"unique", "duplicate", "expired", "error"}


def test_the_batch_time_stays_and_other_shards_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    query, now_ms = Query(spark, tmp_path), int(time.time() * 1000)
    query.add([("t", 0, n, None, n, now_ms + 1000 * (n - 60)) for n in range(900)])
    kwargs: dict[str, Any] = {"key": ["event"], "expiry_key": "at", "period": "1h", "max_future": "0s"}
    query.run(route(query.source(), **kwargs, shards=2))
    before = flat(query.batch(0))
    assert {(row["route"], row["reason"]) for row in before} == {("unique", None), ("error", "future")}
    query.forget_commit(0)
    time.sleep(1.1)  # by now more records would be in the past
    query.run(route(query.source(), **kwargs, shards=2))
    assert sorted(map(str, flat(query.batch(0)))) == sorted(map(str, before))

    query.add([("t", 1, n, None, n, now_ms) for n in range(9)])
    with pytest.raises(ConfigError, match=r"shuffle\.partitions = 2: a stream needs as many as shards = 3"):
        route(query.source(), **kwargs, shards=3)
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        with pytest.raises(StreamingQueryException) as caught:
            query.run(route(query.source(), **kwargs, shards=3))
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    error = explain(str(caught.value))
    assert isinstance(error, CheckpointError)
    assert "made with shards = 2, and now it is shards = 3" in str(error)
    assert not (tmp_path / "out" / "_spark_metadata" / "1").exists(), "nothing of the batch is written"
    query.run(route(query.source(), **kwargs | {"period": "2h"}, shards=2))
    assert [row["route"] for row in flat(query.batch(1))] == ["duplicate"] * 9


def test_keys_and_expiry_keys_of_many_types(spark: SparkSession) -> None:
    rows = spark.sql(
        """SELECT * FROM VALUES
        (1, 'a', TIMESTAMP '2024-05-01 12:00:00', '2024-05-01T12:00:00Z', array(1, 2), 1.50BD),
        (2, 'a', TIMESTAMP '2024-05-01 12:00:00', '2024-05-01T12:00:00Z', array(1, 2), 1.5BD),
        (3, 'a', TIMESTAMP '2024-05-01 13:00:01', 'yesterday', array(1, 2), 1.51BD),
        (4, 'a', TIMESTAMP '2024-05-01 12:00:00', NULL, array(1, 2), NULL)
        AS t(seq, id, at, text, items, price)"""
    )

    def found(*arguments: Any, **more: Any) -> list[tuple[str, str | None]]:
        routed = route(rows, *arguments, **more, order="seq", shards=1).orderBy("seq")
        return [(row.route, row.reason) for row in routed.collect()]

    unique, duplicate, expired = ("unique", None), ("duplicate", None), ("expired", None)
    assert found(["id", "items"], "at", "1h") == [unique, duplicate, unique, expired]
    assert found("items", "text", "1h", unit="iso8601") == [
        unique, duplicate, ("error", "expiry_type"), ("error", "expiry_missing"),
    ]  # fmt: skip
    assert found("price", clock="none") == [unique, duplicate, unique, ("error", "key")]
    assert found(f.upper("id"), f.to_date("at"), "1d", unit="s") == [unique, *[duplicate] * 3]
    assert found("id", "text", 1, clock="categorical")[:3] == [unique, duplicate, duplicate]


def test_everything_that_is_wrong_is_said_at_once(spark: SparkSession) -> None:
    df = spark.sql("SELECT 'a' AS id, 1 AS Route, map('a', 1) AS tags, 'x' AS offset")
    with pytest.raises(ConfigError) as caught:
        route(df, [], period="1 fortnight", clock="tuple", unit="s", stamp="key", shards=0)
    assert [error.split(":")[0] for error in caught.value.errors] == [
        "there is a column route already, which route() adds; rename it before",
        "order = 'offset'",
        "stamp = 'key'",
        "shards = 0",
        "period = '1 fortnight'",
        "key",
        "expiry_key",
    ]
    plain = df.select("tags", "id", f.lit(1).alias("offset"))
    with pytest.raises(ConfigError, match=r"tags: a key can't be of type map<string,int>"):
        route(plain, "tags", clock="none")
    with pytest.raises(ConfigError, match=r"id: string, but unit = 'ms' reads numbers"):
        route(plain, "id", "id", "1h")
