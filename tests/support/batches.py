"""Finished batches as Spark reports them, and a status that has seen some."""

from __future__ import annotations

from typing import Any

from replayfilter.core.watermark.laggards import Laggards
from replayfilter.service.monitor.batch import Batch, read_batch
from replayfilter.service.monitor.lag import Lag
from replayfilter.service.monitor.status import Phase, Status
from replayfilter.service.monitor.storage import Storage
from replayfilter.spark.counts import COUNTS


def batch(number: int, at: float, **counts: int | str) -> Batch:
    """A batch of two seconds with these counts, read from two partitions of topic ``orders``."""
    facts: dict[str, Any] = {
        "batchId": number,
        "durationMs": {"triggerExecution": 2000, "addBatch": 1500, "walCommit": 100, "commitOffsets": 50},
        "sources": [{"endOffset": {"orders": {"0": 10, "1": 20}}}],
        "observedMetrics": {"counts": counts},
    }
    return read_batch(facts, at)


def busy_status() -> Status:
    """A status after two batches in each of which every count was 7."""
    status = Status("orders", 120.0, {}, 1000.0)
    status.enter(Phase.RUNNING, 1000.0)
    laggards = Laggards(5_000_000, 7_500_000, 30, 29, 1, 4, 3, (("h-29", None), ("h-1", 5_000_000)))
    for number in range(2):
        status.add_batch(batch(number, 1990.0, **dict.fromkeys(COUNTS, 7), laggards=laggards.to_text()))
    status.heartbeat(2000.0)
    status.set_storage(Storage(140, 210))
    status.set_lags([Lag("orders", 0, 10, 40, 3.5), Lag("orders", 1, 5, 5, None, 11, 65.0)], 1995.0)
    return status
