"""The plan as Spark executes it, and the stages without Spark."""

from __future__ import annotations

import json
import re
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from replayfilter.core.columns import pack
from replayfilter.core.routing import STATS
from replayfilter.core.stamp import Stamp
from replayfilter.errors import CheckpointError, DeliveryError, ReplayfilterError
from replayfilter.spark import counts
from replayfilter.spark.decode import cut_chunks, last_headers, read_stamps
from replayfilter.spark.deliver import _Name, _Routes
from replayfilter.spark.failures import explain
from replayfilter.spark.partitioning import assigned_index, partition_ids, spark_hash
from replayfilter.spark.query import Service
from replayfilter.spark.run_cache import RunCache
from tests.support.pipelines import Pipeline, order, record

pytestmark = pytest.mark.spark

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_executed_plan(bootstrap: str, tmp_path: Path) -> None:
    """One exchange by shard, read twice; and a batch that is tried again has the time of the first try."""
    pipeline = Pipeline(bootstrap, tmp_path, "planned")
    pipeline.publish([record(order(1, 0), Stamp(1, 0, 0).to_bytes())])
    first = executed_plan(pipeline)
    assert len(re.findall(r"(?<!\], )Exchange hashpartitioning\(shard", first)) == 1
    assert len(re.findall(r"ReusedExchange .*Exchange hashpartitioning\(shard", first)) == 1
    assert len(re.findall(r"MicroBatchScan", first)) == 1
    assert "Coalesce 2" in first

    written = Path(pipeline.settings.checkpoint, "offsets", "0").read_text().splitlines()
    batch_ms = json.loads(written[1])["batchTimestampMs"]
    for crc in ("0", ".0.crc"):
        Path(pipeline.settings.checkpoint, "commits", crc).unlink()
    again = executed_plan(pipeline)
    assert batch_time(first) == batch_time(again)
    assert np.datetime64(batch_time(first), "ms") == np.datetime64(batch_ms, "ms")


def executed_plan(pipeline: Pipeline) -> str:
    query = pipeline.run_once().query
    return str(query._jsq.explainInternal(False))  # what StreamingQuery.explain prints


def batch_time(plan: str) -> str:
    found = re.search(r"transform\(array\(([^)]+)\), .*AS batch_time", plan)
    assert found, plan
    return found[1]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_batch_compiles_code_anew(bootstrap: str, tmp_path: Path) -> None:
    pipeline = Pipeline(bootstrap, tmp_path, "compiled", batch_records=1)
    pipeline.publish(record(order(n, 0), Stamp(1, 0, n).to_bytes()) for n in range(4))
    metrics = pipeline.session()._jvm.org.apache.spark.metrics.source.CodegenMetrics
    compiled: list[int] = []
    service = Service(
        pipeline.settings, [lambda _: compiled.append(metrics.METRIC_COMPILATION_TIME().getCount())]
    )
    service.start(once=True)
    service.await_end()
    assert len(compiled) == 4
    assert compiled[0] == compiled[-1]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_partition_ids_are_sparks(bootstrap: str, tmp_path: Path, count: int) -> None:
    spark = Pipeline(bootstrap, tmp_path, "hashed").session()
    ids = partition_ids(count)
    values = ", ".join(f"({id})" for id in ids)
    rows = spark.sql(f"SELECT id, hash(id), pmod(hash(id), {count}) FROM VALUES {values} AS t(id)").collect()
    assert [tuple(row) for row in rows] == [(id, spark_hash(id), part) for part, id in enumerate(ids)]


def test_places_of_a_topic_are_spread_evenly() -> None:
    for count in (2, 3, 5):
        places = [assigned_index("orders", partition, count) for partition in range(count * 2)]
        assert sorted(places) == sorted([*range(count)] * 2)


def test_runs_are_cut_where_the_input_partition_changes() -> None:
    batch = pa.RecordBatch.from_pydict({
        "topic": ["a", "a", "a", "b", "b"],
        "partition": pa.array([0, 0, 1, 1, 1], pa.int32()),
        "offset": [5, 6, 1, 1, 2],
    })  # fmt: skip
    runs = [(run.column("topic")[0].as_py(), run.column("offset").to_pylist()) for run in cut_chunks(batch)]
    assert runs == [("a", [5, 6]), ("a", [1]), ("b", [1, 2])]
    assert [run.num_rows for run in cut_chunks(batch.slice(1, 1))] == [1]
    assert list(cut_chunks(batch.slice(0, 0))) == []


def test_stamps_of_a_slice() -> None:
    good = [Stamp(7, 1, offset).to_bytes() for offset in range(3)]
    column = pa.array([good[0], None, good[1], b"", b"short", good[2]], pa.binary())
    stamps = read_stamps(column.slice(1, 5))
    assert stamps.valid.tolist() == [False, True, False, False, True]
    assert stamps.offsets.tolist() == [0, 1, 0, 0, 2]
    assert read_stamps(pa.nulls(2, pa.binary())).valid.tolist() == [False, False]


def test_the_last_header_of_a_name_wins() -> None:
    rows = [
        [("s", b"before the slice")],
        [("s", b"1"), ("x", b"2"), ("s", b"3")],
        None,
        [],
        [("x", b"4")],
        [("s", None)],
        [("s", b"5")],
    ]
    found = last_headers(pa.array(rows, HEADERS).slice(1), "s")
    assert found.to_pylist() == [b"3", None, None, None, None, b"5"]
    assert last_headers(pa.nulls(2, HEADERS), "s").to_pylist() == [None, None]


def routes(*parts: tuple[list[int], list[int]]) -> _Routes:
    made = _Routes()
    for rows, codes in parts:
        body = pack({"rows": np.array(rows, np.uint32), "codes": np.array(codes, np.uint8)})
        made.add(_Name("t", 0, 5), pa.py_buffer(body))
    return made


def test_each_record_gets_exactly_one_route() -> None:
    decided = np.array([0, 5, 0, 0], np.uint8)
    name = _Name("t", 0, 5)
    given = routes(([0, 3], [1, 2]), ([2], [3]))
    assert given.sources() == [("t", 0)]
    assert given.apply_to(name, decided).tolist() == [1, 5, 3, 2]
    given.check_used_up()
    for wrong in (
        routes(([0, 3], [1, 2])),  # row 2 has none
        routes(([0, 3], [1, 2]), ([3], [3])),  # row 2 has none, row 3 has two
        routes(([0, 2, 3], [1, 2, 3]), ([2], [2])),  # row 2 has two
        routes(([0, 1, 3], [1, 1, 1])),  # row 1 was decided before
        routes(([0, 2, 3], [1, 0, 1])),  # row 2 is undecided
        routes(),
    ):
        with pytest.raises(DeliveryError, match=r"t\[0\] from offset 5"):
            wrong.apply_to(name, decided)
    with pytest.raises(DeliveryError, match="no records"):
        routes(([0], [1])).check_used_up()


def test_counts_are_a_closed_list() -> None:
    assert counts.count_row({"unique": 3}).to_pylist()[0]["unique"] == 3
    with pytest.raises(KeyError, match="other"):
        counts.count_row({"other": 1})
    assert {"state_sources", "state_gaps"} <= counts.LARGEST
    assert {f"state_{name}" for name in STATS} <= counts.COUNTS.keys()


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (
            "x\nreplayfilter.errors.DeliveryError: lane a-0 failed; try again\n\tat org",
            DeliveryError,
            "lane a-0",
        ),
        ("[KAFKA_DATA_LOSS.START_OFFSET_RESET] ...", CheckpointError, "retention"),
        ("Traceback\nValueError: bad\n\tat org.x", ReplayfilterError, "ValueError: bad"),
        (
            "java\nCaused by: java.io.IOException: No space left on device\n",
            ReplayfilterError,
            "No space left",
        ),
        ("something else\nmore", ReplayfilterError, "something else"),
    ],
)
def test_failures_are_told_in_a_sentence(text: str, kind: type[ReplayfilterError], words: str) -> None:
    error = explain(text)
    assert type(error) is kind
    assert words in str(error)
    assert "\n" not in str(error)


def test_the_lane_of_a_failed_delivery_survives_the_text_of_its_traceback() -> None:
    try:
        try:
            raise DeliveryError("lane a-1 was fenced; try again", 1)
        except DeliveryError as cause:
            raise DeliveryError("lane a-12 failed; try again", 12) from cause
    except DeliveryError:
        text = f"PythonException: {traceback.format_exc()}\n\tat org.apache.spark.Task"
    error = explain(text)
    assert isinstance(error, DeliveryError)
    assert (str(error), error.lane) == ("lane a-12 failed; try again", 12)
    unknown = explain("replayfilter.errors.DeliveryError: the offsets could not be read; try again\n")
    assert isinstance(unknown, DeliveryError)
    assert unknown.lane is None


class TestRunCache:
    def test_keeps_for_others_what_one_puts(self, tmp_path: Path) -> None:
        RunCache(tmp_path, 1_000_000).put("a", b"run")
        found = RunCache(tmp_path, 1_000_000).get("a")
        assert found is not None
        assert bytes(found) == b"run"
        assert RunCache(tmp_path, 1_000_000).get("b") is None

    def test_takes_no_spoiled_file_for_a_run(self, tmp_path: Path) -> None:
        cache = RunCache(tmp_path, 1_000_000)
        for name, spoiled in {"cut": b"run", "empty": b"", "zeros": bytes(40)}.items():
            (cache.folder / name).write_bytes(spoiled)
            assert cache.get(name) is None

    def test_stays_within_its_limit_and_keeps_what_was_used_last(self, tmp_path: Path) -> None:
        cache = RunCache(tmp_path, 100_000)
        for number in range(100):
            cache.put(str(number), bytes(5_000))
            assert RunCache(tmp_path, 100_000).get("0") is not None  # used again and again
        size = sum(file.stat().st_size for file in cache.folder.iterdir())
        assert size <= 100_000 * (1 + 1 / 16) + 5_016
        assert cache.get("99") is not None
        assert cache.get("1") is None

    def test_a_mapped_run_outlives_its_file(self, tmp_path: Path) -> None:
        cache = RunCache(tmp_path, 1_000_000)
        cache.put("a", b"run")
        held = cache.get("a")
        cache.drop("a")
        assert held is not None
        assert bytes(held) == b"run"
        assert cache.get("a") is None

    def test_many_write_at_once(self, tmp_path: Path) -> None:
        def work(number: int) -> bool:
            cache = RunCache(tmp_path, 20_000)
            for name in map(str, range(50)):
                cache.put(name, name.encode() * 500)
                found = cache.get(name)
                if found is not None and bytes(found) != name.encode() * 500:
                    return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(4)))

    def test_others_may_not_write_where_it_reads(self, tmp_path: Path) -> None:
        folder = RunCache(tmp_path, 1_000).folder
        folder.chmod(0o777)
        assert RunCache(tmp_path, 1_000).folder != folder
