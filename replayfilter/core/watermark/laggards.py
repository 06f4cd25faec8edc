"""Who holds the low watermark of a service back: numbers, and the worst few by name.

All shards know the same, so one of them tells. What it tells is bounded: by :data:`NAMES` and the number of
input partitions, however many origins there are.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np

from replayfilter.core.clock.expiry import UNKNOWN
from replayfilter.core.watermark.low_watermark import Completeness
from replayfilter.core.watermark.watermark_state import WatermarkRules, WatermarkState

NAMES = 20  # the most origins that are named

Named = tuple[str, int | None]
Place = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Laggards:
    """The watermark after a batch, and what it waits for; times in microseconds, None: not known yet.

    ``expected``: origins in the roster, 0 without one; of those ``heard``: how many have brought a time, and
    ``lagging``: how many are at or behind the watermark, never heard of ones among them, and ``idle`` ones
    not. ``may_lag`` of them may: once no more do, the watermark goes on. ``front``: the largest time.
    ``slowest``: up to :data:`NAMES` of the lagging with their times, the slowest first. ``lows``: without a
    roster the watermark that each input partition brought, as (topic, partition, time).
    """

    low: int | None = None
    front: int | None = None
    expected: int = 0
    heard: int = 0
    idle: int = 0
    lagging: int = 0
    may_lag: int = 0
    slowest: tuple[Named, ...] = ()
    lows: tuple[Place, ...] = ()

    @property
    def behind(self) -> int | None:
        """How far the watermark is behind the largest time."""
        return None if self.low is None or self.front is None else self.front - self.low

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Laggards:
        """What :meth:`to_text` gave."""
        facts = json.loads(text)
        facts |= {name: tuple(map(tuple, facts[name])) for name in ("slowest", "lows")}
        return cls(**facts)


def laggards_of(watermark: WatermarkState, rules: WatermarkRules) -> Laggards:
    """Who holds back the watermark that ``watermark`` remembers.

    >>> tide = WatermarkState(5, {"a": 5, "b": 9})
    >>> found = laggards_of(tide, WatermarkRules(("a", "b", "c"), "0.6"))
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
