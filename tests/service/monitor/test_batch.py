"""What is read from Spark's progress of a finished batch."""

from __future__ import annotations

from replayfilter.service.monitor.batch import read_batch
from replayfilter.spark.batch_range import BatchEnd


def test_a_batch_of_records_that_came_while_the_source_waited() -> None:
    end = BatchEnd({("t", 0): 10, ("t", 1): 20}, 1, {("t", 1): 5}, {("t", 0): 3}, waited_us=200_000)
    progress = {
        "batchId": 4,
        "numInputRows": 6,  # frames and payloads
        "durationMs": {"latestOffset": 210, "addBatch": 500, "triggerExecution": 800},
        "sources": [{"endOffset": end.to_json()}],
        "observedMetrics": {"counts": {"unique": 1, "error": 2, "error_json": 2, "replay": 4}},
    }
    batch = read_batch(progress, at=1.0)
    assert (batch.number, batch.records) == (4, 7)
    assert batch.ends == {"t": {0: 10, 1: 20}}
    assert batch.backlog == {"t": {0: 0, 1: 5}}
    assert {step: round(seconds, 3) for step, seconds in batch.seconds.items()} == {
        "offsets": 0.01, "planning": 0.0, "log": 0.0, "run": 0.5, "total": 0.6,
    }  # fmt: skip


def test_a_batch_of_a_checkpoint_that_sparks_connector_began() -> None:
    batch = read_batch({"batchId": 0, "sources": [{"endOffset": {"t": {"0": 5}}}]}, at=1.0)
    assert (batch.ends, batch.backlog, batch.records) == ({"t": {0: 5}}, {"t": {0: 0}}, 0)
