"""The low watermark in a service: what is observed in each chunk, and what every shard remembers of it.

Rules:
- The *observation* of each chunk goes to every shard: the largest event time of each origin in it, and the
  largest watermark that its records carry from the service before.
- With a roster, the watermark is that of the roster. Without one, it is the smallest of the watermarks that
  the input partitions carry, once every input partition has carried one.
- A batch is decided with the watermark before it, and its records carry that watermark. What is observed in
  the batch counts from the next batch on. This way no record of a batch is behind the watermark that
  another record of the same batch carries, and a batch that is tried again with another roster has the same
  result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.columns import Columns
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.watermark.low_watermark import LowWatermark

WATERMARK_HEADER = "rf-watermark"  # carries the low watermark of a service's output: decimal microseconds


@dataclass(frozen=True, slots=True)
class WatermarkRules:
    """How the watermark is computed.

    ``roster``: the origins to expect, or None to use the watermark that the input carries.
    ``completeness``: see Completeness. ``partitions``: the number of partitions of each input topic.
    ``idle``: the origins that are declared idle.
    """

    roster: tuple[str, ...] | None
    completeness: str = "1"
    partitions: Mapping[str, int] = field(default_factory=dict)
    idle: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """What is observed in a chunk.

    ``times`` int64[o]: the largest event time of each of ``origins``, in microseconds. ``carried``: the
    largest watermark that the records carry, ``UNKNOWN`` if none does.
    """

    origins: tuple[str, ...]
    times: NDArray[np.int64]
    carried: int = UNKNOWN

    def to_meta(self) -> dict[str, Any]:
        """The observation for the ``meta`` of a column block."""
        return {"origins": self.origins, "times": self.times.tolist(), "low": self.carried}

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> Observation:
        """Read what :meth:`to_meta` wrote."""
        return cls(tuple(meta["origins"]), np.array(meta["times"], np.int64), meta["low"])


def observe(origins: Sequence[object], times_us: NDArray[np.int64], carried: int) -> Observation:
    """The observation of n rows. Rows whose origin is no text, bytes or integer are left out.

    >>> observe(["a", b"b", "a", None], np.array([5, 6, 3, 9]), 2)
    Observation(origins=('a', 'b'), times=array([5, 6]), carried=2)
    """
    largest: dict[str, int] = {}
    for origin, time_us in zip(origins, times_us.tolist(), strict=True):
        name = origin_name(origin)
        if name is not None and time_us > largest.get(name, UNKNOWN):
            largest[name] = time_us
    return Observation(tuple(largest), np.fromiter(largest.values(), np.int64, len(largest)), carried)


def origin_name(value: object) -> str | None:
    """The value of a field as the name of an origin; None if it can't be one."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace") or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class WatermarkState:
    """What every shard remembers of the watermark.

    ``low``: the watermark. ``progress``: by origin. ``lows``: the largest carried watermark by input
    partition. ``idle``: the origins that are declared idle, with their progress when the declaration was
    first seen. An origin that has advanced since then counts again: new progress overrides the declaration,
    until it is withdrawn and made again.
    """

    low: int = UNKNOWN
    progress: Mapping[str, int] = field(default_factory=dict)
    lows: Mapping[InputPartition, int] = field(default_factory=dict)
    idle: Mapping[str, int] = field(default_factory=dict)

    def after(
        self, observations: Iterable[tuple[InputPartition, Observation]], rules: WatermarkRules
    ) -> WatermarkState:
        """The state after a batch with these observations, each with its input partition."""
        observed, lows = list(observations), dict(self.lows)
        for partition, each in observed:
            if each.carried > lows.get(partition, UNKNOWN):
                lows[partition] = each.carried
        if rules.roster is None:
            wanted = [(topic, number) for topic, count in rules.partitions.items() for number in range(count)]
            reached = min((lows.get(partition, UNKNOWN) for partition in wanted), default=UNKNOWN)
            return WatermarkState(max(self.low, reached), {}, lows)
        roster = LowWatermark(rules.completeness, rules.roster, low=self.low)
        roster.advance(list(self.progress), list(self.progress.values()))
        declared = {name: self.idle.get(name, self.progress.get(name, UNKNOWN)) for name in rules.idle}
        roster.declare_idle([name for name, at in declared.items() if self.progress.get(name, UNKNOWN) <= at])
        for _, each in observed:
            roster.advance(each.origins, each.times)
        known = roster.progress != UNKNOWN
        names = [roster.names[row] for row in np.flatnonzero(known).tolist()]
        progress = dict(zip(names, roster.progress[known].tolist(), strict=True))
        return WatermarkState(roster.settle(), progress, lows, declared)

    def is_idle(self, origin: str) -> bool:
        """Whether an origin is declared idle and has not advanced since."""
        at = self.idle.get(origin)
        return at is not None and self.progress.get(origin, UNKNOWN) <= at

    def columns(self) -> Columns:
        """The progress of the origins, as a column of the state."""
        return {"tide_progress": np.fromiter(self.progress.values(), np.int64, len(self.progress))}

    def meta(self) -> dict[str, Any]:
        """Everything else, for the ``meta`` of the same column block."""
        lows = [(topic, partition, low) for (topic, partition), low in self.lows.items()]
        return {
            "low": self.low,
            "origins": list(self.progress),
            "lows": lows,
            "idle": list(self.idle.items()),
        }

    @classmethod
    def restore(cls, columns: Columns, meta: Mapping[str, Any]) -> WatermarkState:
        """Read what :meth:`columns` and :meth:`meta` gave."""
        progress = dict(zip(meta["origins"], columns["tide_progress"].tolist(), strict=True))
        lows = {(topic, partition): low for topic, partition, low in meta["lows"]}
        return cls(meta["low"], progress, lows, dict(meta.get("idle", ())))
