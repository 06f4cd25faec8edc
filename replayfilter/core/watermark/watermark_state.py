"""The low watermark within a service: what a run of records brings, and what all shards remember of it.

Rules:
- every run's *news* goes to every shard: the largest event time of each origin in it, and the largest
  watermark that its records carry from the service before;
- with a roster the watermark is that of the origins; without one it is the smallest of those that the input
  partitions brought, once each has brought one;
- a batch is decided and stamped with the watermark before it: what it brings counts from its end on. So
  no record of a batch is behind the watermark that another one of the same batch carries, and a batch that
  is tried again with another roster is decided and stamped as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.expiry import UNKNOWN
from replayfilter.core.columns import Columns
from replayfilter.core.watermark.low_watermark import LowWatermark

WATERMARK_HEADER = "rf-watermark"  # the low watermark of a service's output: decimal microseconds


@dataclass(frozen=True, slots=True)
class WatermarkRules:
    """How the watermark comes about; times are in microseconds.

    ``roster``: the origins to expect, or None to take the watermark that the input carries.
    ``completeness``: see Completeness. ``partitions``: how many each input topic has. ``idle``: origins that
    are declared idle, see WatermarkState.
    """

    roster: tuple[str, ...] | None
    completeness: str = "1"
    partitions: Mapping[str, int] = field(default_factory=dict)
    idle: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """What a run brings: ``times`` int64[o] by ``origins``, and ``low``, the watermark its records carry."""

    origins: tuple[str, ...]
    times: NDArray[np.int64]
    low: int = UNKNOWN

    def to_meta(self) -> dict[str, Any]:
        """For the ``meta`` of a column block."""
        return {"origins": self.origins, "times": self.times.tolist(), "low": self.low}

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> Observation:
        """What :meth:`to_meta` gave."""
        return cls(tuple(meta["origins"]), np.array(meta["times"], np.int64), meta["low"])


def observe(origins: Sequence[object], times_us: NDArray[np.int64], low: int) -> Observation:
    """The news of n rows; an origin that is no text, bytes or whole number says nothing.

    >>> read_news(["a", b"b", "a", None], np.array([5, 6, 3, 9]), 2)
    News(origins=('a', 'b'), times=array([5, 6]), low=2)
    """
    largest: dict[str, int] = {}
    for origin, time_us in zip(origins, times_us.tolist(), strict=True):
        name = origin_name(origin)
        if name is not None and time_us > largest.get(name, UNKNOWN):
            largest[name] = time_us
    return Observation(tuple(largest), np.fromiter(largest.values(), np.int64, len(largest)), low)


def origin_name(value: object) -> str | None:
    """A field's value as an origin's name; None if it is none."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace") or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class WatermarkState:
    """What is remembered: ``low``, the watermark; ``progress`` by origin; ``lows`` by input partition.

    ``idle``: of each origin that is declared idle its progress when that was first seen. Once it is further
    it counts again, for as long as the declaration stands: that it had nothing to say is refuted.
    """

    low: int = UNKNOWN
    progress: Mapping[str, int] = field(default_factory=dict)
    lows: Mapping[tuple[str, int], int] = field(default_factory=dict)
    idle: Mapping[str, int] = field(default_factory=dict)

    def after(
        self, observation: Iterable[tuple[tuple[str, int], Observation]], rules: WatermarkRules
    ) -> WatermarkState:
        """What is remembered after a batch; ``observation`` with the input partition that each came from."""
        arrived, lows = list(observation), dict(self.lows)
        for place, each in arrived:
            if each.low > lows.get(place, UNKNOWN):
                lows[place] = each.low
        if rules.roster is None:
            wanted = [(topic, part) for topic, count in rules.partitions.items() for part in range(count)]
            reached = min((lows.get(place, UNKNOWN) for place in wanted), default=UNKNOWN)
            return WatermarkState(max(self.low, reached), {}, lows)
        roster = LowWatermark(rules.completeness, rules.roster, low=self.low)
        roster.advance(list(self.progress), list(self.progress.values()))
        declared = {name: self.idle.get(name, self.progress.get(name, UNKNOWN)) for name in rules.idle}
        roster.declare_idle([name for name, at in declared.items() if self.progress.get(name, UNKNOWN) <= at])
        for _, each in arrived:
            roster.advance(each.origins, each.times)
        known = roster.progress != UNKNOWN
        names = [roster.names[row] for row in np.flatnonzero(known).tolist()]
        progress = dict(zip(names, roster.progress[known].tolist(), strict=True))
        return WatermarkState(roster.settle(), progress, lows, declared)

    def is_idle(self, origin: str) -> bool:
        """Whether an origin is declared idle and nothing was heard of it since."""
        at = self.idle.get(origin)
        return at is not None and self.progress.get(origin, UNKNOWN) <= at

    def columns(self) -> Columns:
        """The origins' times, for the state."""
        return {"tide_progress": np.fromiter(self.progress.values(), np.int64, len(self.progress))}

    def meta(self) -> dict[str, Any]:
        """The rest, for the ``meta`` of the same column block."""
        lows = [(topic, partition, low) for (topic, partition), low in self.lows.items()]
        return {
            "low": self.low,
            "origins": list(self.progress),
            "lows": lows,
            "idle": list(self.idle.items()),
        }

    @classmethod
    def restore(cls, columns: Columns, meta: Mapping[str, Any]) -> WatermarkState:
        """What :meth:`columns` and :meth:`meta` gave."""
        progress = dict(zip(meta["origins"], columns["tide_progress"].tolist(), strict=True))
        lows = {(topic, partition): low for topic, partition, low in meta["lows"]}
        return cls(meta["low"], progress, lows, dict(meta.get("idle", ())))
