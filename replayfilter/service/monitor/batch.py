"""One finished batch, read from Spark's progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from replayfilter.core.watermark.laggards import Laggards
from replayfilter.spark.counts import LAGGARDS

Offsets = dict[str, dict[int, int]]  # topic: partition: offset

ROUTES = ("unique", "duplicate", "expired", "error", "replay")

# Spark's names for the parts of each step.
_STEPS = {
    "offsets": ("latestOffset", "getBatch"),
    "planning": ("queryPlanning",),
    "log": ("walCommit", "commitOffsets", "commitBatch"),
    "run": ("addBatch",),
    "total": ("triggerExecution",),
}
STEPS = tuple(_STEPS)
STAGES = ("decode", "route", "deliver")


@dataclass(frozen=True, slots=True)
class Batch:
    """One finished batch.

    ``at``: when it ended, Unix seconds.
    ``records``: how many it read.
    ``seconds``: by step: ``offsets`` (asking Kafka for them), ``planning``, ``log`` (Spark's own), ``run``
    (the tasks) and ``total``.
    ``counts``: see spark/counts.py.
    ``ends``: the next offset of each partition.
    ``backlog``: how many offsets were waiting behind the batch when it began.
    ``laggards``: what holds the watermark back; None if no watermark is kept or the batch had no records.
    """

    number: int
    at: float
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
    ends: Offsets = {}
    latest: Offsets = {}
    for source in progress.get("sources") or ():
        ends |= _offsets(source.get("endOffset"))
        latest |= _offsets(source.get("latestOffset"))
    backlog = {
        topic: {
            number: max(0, end - ends[topic][number])
            for number, end in partitions.items()
            if number in ends.get(topic, {})
        }
        for topic, partitions in latest.items()
    }
    return Batch(
        number=int(progress["batchId"]),
        at=at,
        records=int(progress.get("numInputRows", 0)),
        seconds={
            step: sum(durations.get(name, 0) for name in names) / 1000 for step, names in _STEPS.items()
        },
        counts=counts,
        ends=ends,
        backlog=backlog,
        laggards=Laggards.from_text(laggards) if laggards else None,
    )


def _offsets(reported: Mapping[str, Mapping[str, int]] | None) -> Offsets:
    return {
        topic: {int(number): int(offset) for number, offset in partitions.items()}
        for topic, partitions in (reported or {}).items()
    }
