"""The text output of ``run``: a progress line on a terminal, otherwise plain lines."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from replayfilter.service.monitor.batch import Batch, read_batch
from replayfilter.service.runtime.reporting.console import Reporter


def progress(batch: int, **counts: int | None) -> Batch:
    """A batch from the part of Spark's progress that is read, with another observation beside it."""
    facts: dict[str, Any] = {
        "batchId": batch,
        "durationMs": {"triggerExecution": 500, "addBatch": 400},
        "observedMetrics": {"counts": {**counts, "state_keys": 7, "written": 99}, "other": {"rows": 1}},
    }
    return read_batch(facts, at=1.0)


def test_without_a_terminal_each_batch_is_a_line() -> None:
    out = io.StringIO()
    with Reporter(Console(file=out, width=40)) as reporter:
        reporter.batch(progress(0, unique=900, duplicate=60, expired=30, error=8, replay=2))
        reporter.batch(progress(1))
        reporter.batch(progress(2, unique=50, duplicate=None))
    assert out.getvalue().splitlines() == [
        "batch 0: 1,000 records in 0.50 s (2,000 records/s): "
        "unique 900, duplicate 60, expired 30, error 8, replay 2",
        "batch 2: 50 records in 0.50 s (100 records/s): unique 50, duplicate 0, expired 0, error 0, replay 0",
        "2 batches: unique 950, duplicate 60, expired 30, error 8, replay 2",
    ]


def test_on_a_terminal_the_progress_line_is_removed_and_the_total_stays() -> None:
    out = io.StringIO()
    with Reporter(Console(file=out, width=200, force_terminal=True)) as reporter:
        for batch in range(3):
            reporter.batch(progress(batch, unique=10))
    text = out.getvalue()
    assert "batch 2: 10 records" in text
    assert "\x1b[2K" in text, "the progress line is erased"
    assert text.endswith("3 batches: unique 30, duplicate 0, expired 0, error 0, replay 0\n")


def test_progress_without_metrics_has_no_counts() -> None:
    batch = read_batch({"batchId": 0, "observedMetrics": None}, at=1.0)
    assert batch.counts == {}
    assert not any(batch.routes.values())
