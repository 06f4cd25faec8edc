"""The plan as Spark executes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from replayfilter.core.stamp import Stamp
from replayfilter.spark.query import Service
from tests.support.pipelines import Pipeline, order, record

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def test_executed_plan(bootstrap: str, tmp_path: Path) -> None:
    """One exchange by shard, read twice, and one read of the topic."""
    pipeline = Pipeline(bootstrap, tmp_path, "planned")
    pipeline.publish([record(order(1, 0), Stamp(1, 0, 0).to_bytes())])
    plan = str(pipeline.run_once().query._jsq.explainInternal(False))  # what StreamingQuery.explain prints
    assert len(re.findall(r"(?<!\], )Exchange hashpartitioning\(shard", plan)) == 1
    assert len(re.findall(r"ReusedExchange .*Exchange hashpartitioning\(shard", plan)) == 1
    assert len(re.findall(r"MicroBatchScan", plan)) == 1


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
