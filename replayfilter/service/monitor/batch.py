"""One finished batch, read from Spark's progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from replayfilter.core.watermark.laggards import Laggards
from replayfilter.spark.batch_range import BatchEnd
from replayfilter.spark.counts import LAGGARDS, ROUTES, records_in

Offsets = dict[str, dict[int, int]]  # topic: partition: offset

# Spark's names for the parts of each step.
_STEPS = {
    "offsets": ("latestOffset", "getBatch"),
    "planning": ("queryPlanning",),
    "log": ("walCommit", "commitOffsets", "commitBatch"),
    "run": ("addBatch",),
    "total": ("triggerExecution",),
}
STEPS = tuple(_STEPS)
_WAITING_STEPS = ("offsets", "total")  # those in which the source may have waited for records
STAGES = ("decode", "route", "deliver")


@dataclass(frozen=True, slots=True)
class Batch:
    """One finished batch.

    ``at``: when its report was read, Unix seconds. ``began``: when it began to work, Unix seconds.
    ``records``: how many it read.
    ``seconds``: by step: ``offsets`` (asking Kafka for them), ``planning``, ``log`` (Spark's own), ``run``
    (the tasks) and ``total``. Time that the source waited for records is left out.
    ``counts``: see spark/counts.py.
    ``ends``: the next offset of each partition.
    ``backlog``: how many offsets were waiting behind the batch when it began.
    ``laggards``: what holds the watermark back; None if no watermark is kept, or if the batch had neither
    records nor a told watermark.
    """

    number: int
    at: float
    began: float
    records: int
    seconds: dict[str, float]
    counts: dict[str, int]
    ends: Offsets
    backlog: Offsets = field(default_factory=dict)
    laggards: Laggards | None = None

    @property
    def routes(self) -> dict[str, int]:
        """Records per route."""
        return {route: self.counts.get(route, 0) for route in ROUTES}

    @property
    def work(self) -> dict[str, float]:
        """Seconds of work per stage, summed over all workers."""
        return {stage: self.counts.get(f"{stage}_us", 0) / 1e6 for stage in STAGES}

    @property
    def watermark(self) -> float | None:
        """The low watermark after the batch in Unix seconds; None if there is none or it is not known yet."""
        low = self.counts.get("watermark_us", 0)
        return low / 1e6 if low else None

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.seconds["total"] if self.seconds["total"] else 0.0


def read_batch(progress: Mapping[str, Any], at: float) -> Batch:
    """Read Spark's progress, given as a dict. Missing values count as 0.

    >>> read_batch({"batchId": 3, "durationMs": {"addBatch": 250}}, at=0.0).seconds["run"]
    0.25
    """
    durations = progress.get("durationMs") or {}
    counts: dict[str, int] = {}
    laggards = ""
    for metrics in (progress.get("observedMetrics") or {}).values():
        laggards = metrics.get(LAGGARDS) or laggards
        known = ((name, value) for name, value in metrics.items() if name != LAGGARDS and value is not None)
        counts |= {name: int(value) for name, value in known}
    source, *_ = progress.get("sources") or [{}]
    end = BatchEnd.from_json(source.get("endOffset") or {})
    ends: Offsets = {}
    backlog: Offsets = {}
    for (topic, partition), offset in end.ends.items():
        ends.setdefault(topic, {})[partition] = offset
        backlog.setdefault(topic, {})[partition] = end.behind.get((topic, partition), 0)
    seconds = {step: sum(durations.get(name, 0) for name in names) / 1000 for step, names in _STEPS.items()}
    for step in _WAITING_STEPS:
        seconds[step] = max(0.0, seconds[step] - end.waited_us / 1e6)
    began = at - seconds["total"]
    if timestamp := progress.get("timestamp"):  # of the trigger; then the source waited
        began = datetime.fromisoformat(timestamp).timestamp() + end.waited_us / 1e6
    return Batch(
        number=int(progress["batchId"]),
        at=at,
        began=began,
        records=records_in(counts),
        seconds=seconds,
        counts=counts,
        ends=ends,
        backlog=backlog,
        laggards=Laggards.from_text(laggards) if laggards else None,
    )
