"""The plan as Spark executes it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from replayfilter.core.stamp import Stamp
from replayfilter.spark.query import Service
from tests.support.pipelines import Pipeline, order, record

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def test_executed_plan(bootstrap: str, tmp_path: Path) -> None:
    """One exchange by shard, read twice; a batch that is tried again has the time of its first attempt."""
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


def test_code_is_compiled_for_the_first_batch_only(bootstrap: str, tmp_path: Path) -> None:
    pipeline = Pipeline(bootstrap, tmp_path, "compiled", batch_records=1)
    pipeline.publish(record(order(n, 0), Stamp(1, 0, n).to_bytes()) for n in range(4))
    jvm = pipeline.session()._jvm
    assert jvm is not None
    metrics = jvm.org.apache.spark.metrics.source.CodegenMetrics
    compiled: list[int] = []
    service = Service(
        pipeline.settings, [lambda _: compiled.append(metrics.METRIC_COMPILATION_TIME().getCount())]
    )
    service.start(once=True)
    service.await_end()
    assert len(compiled) == 4
    assert compiled[0] == compiled[-1]
