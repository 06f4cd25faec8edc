"""Laggards: the origins that hold the low watermark of a service back, counted, and the slowest by name.

All shards know the same, so one of them reports it. The report is bounded by :data:`NAMES` and the number
of input partitions, for any number of origins.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.watermark.low_watermark import Completeness
from replayfilter.core.watermark.watermark_state import WatermarkRules, WatermarkState

NAMES = 20  # at most this many origins are named

OriginTime = tuple[str, int | None]  # an origin, and its progress
PartitionTime = tuple[str, int, int]  # topic, partition, and the watermark that its records carry


@dataclass(frozen=True, slots=True)
class Laggards:
    """The watermark after a batch, and what it waits for. Times are in microseconds, None if not known yet.

    - ``low``: the watermark. ``front``: the largest time.
    - ``expected``: number of origins in the roster, 0 without one. ``heard``: those of them that have a
      progress. ``idle``: those that are declared idle.
    - ``lagging``: origins at or behind the watermark, with those that have no progress and without the idle
      ones. ``may_lag``: how many of them may lag; when no more than these lag, the watermark advances.
    - ``slowest``: up to :data:`NAMES` lagging origins with their times, the slowest first.
    - ``lows``: without a roster, the watermark that the records of each input partition carry.
    """

    low: int | None = None
    front: int | None = None
    expected: int = 0
    heard: int = 0
    idle: int = 0
    lagging: int = 0
    may_lag: int = 0
    slowest: tuple[OriginTime, ...] = ()
    lows: tuple[PartitionTime, ...] = ()

    @property
    def behind(self) -> int | None:
        """Microseconds between the watermark and the largest time."""
        return None if self.low is None or self.front is None else self.front - self.low

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Laggards:
        """Read what :meth:`to_text` wrote."""
        facts = json.loads(text)
        facts |= {name: tuple(map(tuple, facts[name])) for name in ("slowest", "lows")}
        return cls(**facts)


def laggards_of(watermark: WatermarkState, rules: WatermarkRules) -> Laggards:
    """The laggards of a watermark.

    >>> watermark = WatermarkState(5, {"a": 5, "b": 9})
    >>> found = laggards_of(watermark, WatermarkRules(("a", "b", "c"), "0.6"))
    >>> found.heard, found.lagging, found.may_lag, found.slowest, found.behind
    (2, 2, 1, (('c', None), ('a', 5)), 4)
    """
    low = _known(watermark.low)
    if rules.roster is None:
        lows = [
            (topic, part, time) for (topic, part), time in sorted(watermark.lows.items()) if time != UNKNOWN
        ]
        return Laggards(low, max((time for *_, time in lows), default=None), lows=tuple(lows))
    names = list(dict.fromkeys(rules.roster))
    times = np.fromiter((watermark.progress.get(name, UNKNOWN) for name in names), np.int64, len(names))
    active = np.ones(len(names), np.bool_)
    if watermark.idle:
        active[[row for row, name in enumerate(names) if watermark.is_idle(name)]] = False
    lagging = np.flatnonzero(active & (times <= watermark.low))
    counted = int(active.sum())
    chosen = lagging[np.argsort(times[lagging], kind="stable")[:NAMES]].tolist()
    return Laggards(
        low=low,
        front=_known(int(times.max(initial=UNKNOWN))),
        expected=len(names),
        heard=int((times != UNKNOWN).sum()),
        idle=len(names) - counted,
        lagging=len(lagging),
        may_lag=Completeness(rules.completeness).may_lag(counted),
        slowest=tuple((names[row], _known(int(times[row]))) for row in chosen),
    )


def _known(time: int) -> int | None:
    return None if time == UNKNOWN else time
