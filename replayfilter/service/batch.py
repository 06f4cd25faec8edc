"""One finished batch, as Spark's progress tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from replayfilter.service.checkpoint import Offsets

ROUTES = ("unique", "duplicate", "expired", "error", "replay")

# Spark's names for the steps of a batch, by what they are for.
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
    """A batch: its ``number``, when it ended (``at``, Unix seconds), and how many ``records`` it took.

    ``seconds`` by step: asking Kafka for ``offsets``, ``planning``, Spark's ``log``, the ``run`` of its
    tasks, and the ``total``. ``counts``: see spark/counts.py. ``ends``: next offset by topic and partition.
    """

    number: int
    at: float
    records: int
    seconds: dict[str, float]
    counts: dict[str, int]
    ends: Offsets

    @property
    def routes(self) -> dict[str, int]:
        """Records of each route."""
        return {route: self.counts.get(route, 0) for route in ROUTES}

    @property
    def work(self) -> dict[str, float]:
        """Seconds that tasks worked, by stage, over all workers."""
        return {stage: self.counts.get(f"{stage}_us", 0) / 1e6 for stage in STAGES}

    @property
    def watermark(self) -> float | None:
        """The low watermark after the batch, Unix seconds; None where there is none, or none known yet."""
        low = self.counts.get("watermark_us", 0)
        return low / 1e6 if low else None

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds["total"] if self.seconds["total"] else 0.0


def read_batch(progress: Mapping[str, Any], at: float) -> Batch:
    """A batch from Spark's progress as a dict; what is missing there is 0.

    >>> read_batch({"batchId": 3, "durationMs": {"addBatch": 250}}, at=0.0).seconds["run"]
    0.25
    """
    took = progress.get("durationMs") or {}
    counts: dict[str, int] = {}
    for metrics in (progress.get("observedMetrics") or {}).values():
        counts |= {name: int(value) for name, value in metrics.items() if value is not None}
    ends: Offsets = {}
    for source in progress.get("sources") or ():
        for topic, partitions in (source.get("endOffset") or {}).items():
            ends[topic] = {int(partition): int(offset) for partition, offset in partitions.items()}
    return Batch(
        number=int(progress["batchId"]),
        at=at,
        records=int(progress.get("numInputRows", 0)),
        seconds={step: sum(took.get(name, 0) for name in names) / 1000 for step, names in _STEPS.items()},
        counts=counts,
        ends=ends,
    )
