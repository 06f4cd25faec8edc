"""What the driver reports to the watermark server after a batch."""

from __future__ import annotations

from typing import Any

from replayfilter.core.watermark.laggards import Laggards, laggards_of
from replayfilter.core.watermark.watermark_state import WatermarkRules, WatermarkState
from replayfilter.service.monitor.batch import Batch, read_batch
from replayfilter.service.runtime.run import report_watermark
from replayfilter.spark import counts
from replayfilter.spark.batch_range import BatchEnd


def batch(laggards: Laggards | None) -> Batch:
    text = "" if laggards is None else laggards.to_text()
    progress: dict[str, Any] = {
        "batchId": 1,
        "observedMetrics": {"counts": {"unique": 3, counts.LAGGARDS: text}, "other": {"rows": 1}},
        "sources": [{"endOffset": BatchEnd({("t", 0): 10, ("t", 1): 20}, 1, {("t", 1): 5}).to_json()}],
    }
    return read_batch(progress, at=1.0)


class FakeClient:
    """Keeps what was reported, in order."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, str, dict[str, Any]]] = []

    def report(self, stage: str, partition: str = "", **fields: Any) -> None:
        self.reports.append((stage, partition, fields))


def test_the_watermark_is_reported_before_those_of_partitions() -> None:
    client = FakeClient()
    report_watermark(client, "next", batch(Laggards(50, 70, lows=(("t", 0, 50), ("t", 1, 70)))))  # type: ignore[arg-type]
    assert client.reports == [
        ("next", "", {"low": 50, "laggards": None}),
        ("next", "t-0", {"low": 50, "backlog": 0}),
        ("next", "t-1", {"low": 70, "backlog": 5}),
    ]


def test_no_partition_is_reported_before_the_watermark_is_known() -> None:
    client = FakeClient()
    report_watermark(client, "next", batch(Laggards(None, 70, lows=(("t", 1, 70),))))  # type: ignore[arg-type]
    assert [fields["low"] for _, _, fields in client.reports] == [None, None, None]


def test_laggards_are_reported_and_a_batch_without_them_is_skipped() -> None:
    client = FakeClient()
    found = laggards_of(WatermarkState(5, {"a": 5, "b": 9}), WatermarkRules(("a", "b", "c"), "0.6"))
    report_watermark(client, "web", batch(found))  # type: ignore[arg-type]
    reported = client.reports[0][2]["laggards"]
    assert (reported.lagging, reported.may_lag, reported.slowest, reported.front) == (
        2,
        1,
        {"c": None, "a": 5},
        9,
    )
    client.reports.clear()
    report_watermark(client, "web", batch(None))  # type: ignore[arg-type]
    assert [(at, fields) for _, at, fields in client.reports] == [
        ("t-0", {"low": None, "backlog": 0}), ("t-1", {"low": None, "backlog": 5}),
    ]  # fmt: skip
