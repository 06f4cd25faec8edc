"""One finished batch, as Spark's progress tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from replayfilter.core.watermark.laggards import Laggards
from replayfilter.service.runtime.checkpoint import Offsets
from replayfilter.spark.counts import LAGGARDS

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
    tasks, and the ``total``. ``counts``: see spark/counts.py. ``ends``: next offset by topic and partition;
    ``backlog``: how many offsets waited behind it when the batch began. ``laggards``: who holds the watermark
    back, None where none is kept, or the batch had no records.
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
    said = ""
    for metrics in (progress.get("observedMetrics") or {}).values():
        said = metrics.get(LAGGARDS) or said
        given = ((name, value) for name, value in metrics.items() if name != LAGGARDS and value is not None)
        counts |= {name: int(value) for name, value in given}
    ends: Offsets = {}
    latest: Offsets = {}
    for source in progress.get("sources") or ():
        ends |= _offsets(source.get("endOffset"))
        latest |= _offsets(source.get("latestOffset"))
    backlog = {
        topic: {at: max(0, end - ends[topic][at]) for at, end in parts.items() if at in ends.get(topic, {})}
        for topic, parts in latest.items()
    }
    return Batch(
        number=int(progress["batchId"]),
        at=at,
        records=int(progress.get("numInputRows", 0)),
        seconds={step: sum(took.get(name, 0) for name in names) / 1000 for step, names in _STEPS.items()},
        counts=counts,
        ends=ends,
        backlog=backlog,
        laggards=Laggards.from_text(said) if said else None,
    )


def _offsets(told: Mapping[str, Mapping[str, int]] | None) -> Offsets:
    return {
        topic: {int(at): int(offset) for at, offset in parts.items()} for topic, parts in (told or {}).items()
    }
