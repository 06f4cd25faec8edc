"""``replayfilter.spark`` in a job with Spark's stock source and sink: each record passes exactly once."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Producer

from replayfilter import pid_for_topic
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.chunk import Headers
from tests.support.topics import new_topic, read_all, stamp_of

pytestmark = pytest.mark.spark

RECORDS = 3_000


def test_importing_replayfilter_spark_does_not_import_pyspark() -> None:
    code = "import sys, replayfilter.spark; assert not {'pyspark', 'pandas', 'pyarrow'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("where", ["key", "header"])
def test_stamp_and_filter_in_a_spark_job(bootstrap: str, tmp_path: Path, where: str) -> None:
    source, target = new_topic(bootstrap, "spark-in", 4), new_topic(bootstrap, "spark-out", 3)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        headers: Headers | None = [("trace", b"\x00\xff%d" % number)] if number % 3 else None
        producer.produce(
            source, str(number), b"user", partition=number % 4, headers=headers, timestamp=1_000 + number
        )
    producer.flush()
    producer.produce(target, b"no stamp", b"own key", partition=1)
    producer.flush()
    Cluster(bootstrap).create({f"{target}-example": 4, f"{target}-exact": 3})
    job = [sys.executable, "-m", "tests.support.spark_job", bootstrap, str(tmp_path), source, target, where]
    ended = subprocess.run(job, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-3_000:]

    written = read_all(bootstrap, target)
    assert len(written) == 2 * RECORDS + 1
    pid, seen = pid_for_topic(bootstrap, source, "spark-job"), set()
    for message in written:
        stamp = stamp_of(message, where)
        if stamp is not None:
            number = int(message.value() or b"")
            assert stamp == (pid, number % 4, number // 4)
            assert message.partition() == stamp.partition % 3
            assert where == "key" or message.key() == b"user"
            kept = [pair for pair in message.headers() or [] if pair[0] == "trace"]
            assert kept == ([("trace", b"\x00\xff%d" % number)] if number % 3 else [])
            seen.add(number)
    assert seen == set(range(RECORDS))

    example = read_all(bootstrap, f"{target}-example")
    assert sorted(int(m.value() or b"") for m in example) == list(range(RECORDS))
    order = [(stamp_of(m).partition, stamp_of(m).offset) for m in example]  # type: ignore[union-attr]
    for partition in range(4):
        assert [o for p, o in order if p == partition] == list(range(RECORDS // 4)), (
            "in the order of the source"
        )

    exact = read_all(bootstrap, f"{target}-exact")
    found = defaultdict(list)
    for message in exact:
        number, stamp = int(message.value() or b""), stamp_of(message, where)
        assert stamp == (pid, number % 4, number // 4)
        assert message.partition() == stamp.partition % 3
        assert message.timestamp()[1] == 1_000 + number
        assert where == "key" or message.key() == b"user"
        kept = [pair for pair in message.headers() or [] if pair[0] == "trace"]
        assert kept == ([("trace", b"\x00\xff%d" % number)] if number % 3 else [])
        found[stamp.partition].append(number)
    for partition in range(4):
        numbers = range(partition, RECORDS, 4)
        assert found[partition] == [number for number in numbers if number % 8 < 4], "once and in order"

    lines = [line for path in (tmp_path / "rows").glob("*.json") for line in path.read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    values = [base64.b64decode(row["value"]) for row in rows]
    assert sorted(values) == sorted([b"no stamp", *(str(number).encode() for number in range(RECORDS))])
    first: dict[tuple[int, int], bytes] = {
        (m.partition() or 0, m.offset() or 0): m.value() or b"" for m in written
    }
    offsets = defaultdict(list)
    for row, value in zip(rows, values, strict=True):
        assert row["topic"] == target
        assert first[row["partition"], row["offset"]] == value
        offsets[value].append(row["offset"])
    originals = {m.value(): m.offset() for m in reversed(written)}
    assert {value: [originals[value]] for value in offsets} == offsets, (
        "the first copy is the one that passes"
    )

    lines = [line for path in (tmp_path / "routed").glob("*.json") for line in path.read_text().splitlines()]
    routes = defaultdict(list)
    for row in map(json.loads, lines):
        assert "first" not in row, "JSON leaves nulls out"
        routes[row["route"]].append(base64.b64decode(row["value"]))
    once = sorted(str(number).encode() for number in range(RECORDS))
    assert sorted(routes.pop("replay")) == once
    assert sorted(routes.pop("unique")) == sorted([b"no stamp", *once])
    assert not routes
