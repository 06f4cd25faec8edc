"""The plan as Spark executes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from replayfilter.core.stamp import Stamp
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


def test_no_code_is_generated(bootstrap: str, tmp_path: Path) -> None:
    pipeline = Pipeline(bootstrap, tmp_path, "interpreted", batch_records=1)
    pipeline.publish(record(order(n, 0), Stamp(1, 0, n).to_bytes()) for n in range(3))
    jvm = pipeline.session()._jvm
    assert jvm is not None
    compilations = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    before = compilations.getCount()
    pipeline.run_once()
    assert len(pipeline.progress) == 3
    assert compilations.getCount() == before
