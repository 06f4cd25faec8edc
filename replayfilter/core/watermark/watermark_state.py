"""The low watermark in a service: what is observed in each chunk, and what every shard remembers of it.

Rules:
- The *observation* of each chunk goes to every shard: the largest event time of each origin in it, and the
  watermarks that its records carry from the services before (see ``carried.py``).
- With a roster, the watermark is that of the roster. Without one, it is the smallest of the watermarks that
  the input partitions carry, once every input partition has carried one.
- A batch is decided with the watermark before it, and its records carry that watermark. What is observed in
  the batch counts from the next batch on. This way no record of a batch is behind the watermark that
  another record of the same batch carries, and a batch that is tried again with another roster has the same
  result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.columns import Columns
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.watermark.carried import UNNAMED, Carried, Upstream, Upstreams, advance
from replayfilter.core.watermark.low_watermark import LowWatermark


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
    watermarks that records carry. All that may count are in it; the shards find those that do.
    """

    origins: tuple[str, ...]
    times: NDArray[np.int64]
    carried: tuple[Carried, ...] = ()

    def counting(self, rows: NDArray[np.uint32]) -> Self:
        """The observation without what other rows than these carry."""
        if not self.carried:
            return self
        at = np.flatnonzero(np.isin([each.row for each in self.carried], rows))
        return replace(self, carried=tuple(self.carried[number] for number in at.tolist()))

    def to_meta(self) -> dict[str, Any]:
        """The observation for the ``meta`` of a column block."""
        return {"origins": self.origins, "times": self.times.tolist(), "carried": self.carried}

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> Observation:
        """Read what :meth:`to_meta` wrote."""
        carried = tuple(Carried(*each) for each in meta["carried"])
        return cls(tuple(meta["origins"]), np.array(meta["times"], np.int64), carried)


def observe(
    origins: Sequence[object], times_us: NDArray[np.int64], carried: tuple[Carried, ...] = ()
) -> Observation:
    """The observation of n rows. Rows whose origin is no text, bytes or integer are left out.

    >>> observe(["a", b"b", "a", None], np.array([5, 6, 3, 9]))
    Observation(origins=('a', 'b'), times=array([5, 6]), carried=())
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

    ``low``: the watermark. ``progress``: by origin. ``upstreams``: the services before, by input partition.
    ``idle``: the origins that are declared idle, with their progress when the declaration was
    first seen. An origin that has advanced since then counts again: new progress overrides the declaration,
    until it is withdrawn and made again.
    """

    low: int = UNKNOWN
    progress: Mapping[str, int] = field(default_factory=dict)
    upstreams: Mapping[InputPartition, Upstreams] = field(default_factory=dict)
    idle: Mapping[str, int] = field(default_factory=dict)

    @property
    def lows(self) -> dict[InputPartition, int]:
        """The carried watermark by input partition: that of the slowest service."""
        return {at: min(each.low for each in known.values()) for at, known in self.upstreams.items()}

    def after(
        self,
        observations: Iterable[tuple[InputPartition, Observation]],
        rules: WatermarkRules,
        batch_time_us: int,
        upstream: Iterable[tuple[str, int]] = (),
    ) -> WatermarkState:
        """The state after a batch with these observations, each with its input partition.

        ``upstream``: services with their watermarks. They count as if the last record of each input partition
        carried them.
        """
        observed = list(observations)
        if rules.roster is None:
            wanted = [(topic, number) for topic, count in rules.partitions.items() for number in range(count)]
            if told := tuple(Carried(0, service, low) for service, low in upstream):
                observed += [
                    (partition, Observation((), np.zeros(0, np.int64), told)) for partition in wanted
                ]
        upstreams = self._upstreams_after(observed, batch_time_us)
        if rules.roster is None:
            lows = WatermarkState(upstreams=upstreams).lows
            reached = min((lows.get(partition, UNKNOWN) for partition in wanted), default=UNKNOWN)
            return WatermarkState(max(self.low, reached), {}, upstreams)
        roster = LowWatermark(rules.completeness, rules.roster, low=self.low)
        roster.advance(list(self.progress), list(self.progress.values()))
        declared = {name: self.idle.get(name, self.progress.get(name, UNKNOWN)) for name in rules.idle}
        roster.declare_idle([name for name, at in declared.items() if self.progress.get(name, UNKNOWN) <= at])
        for _, each in observed:
            roster.advance(each.origins, each.times)
        known = roster.progress != UNKNOWN
        names = [roster.names[row] for row in np.flatnonzero(known).tolist()]
        progress = dict(zip(names, roster.progress[known].tolist(), strict=True))
        return WatermarkState(roster.settle(), progress, upstreams, declared)

    def _upstreams_after(
        self, observed: list[tuple[InputPartition, Observation]], batch_time_us: int
    ) -> dict[InputPartition, Upstreams]:
        carried: defaultdict[InputPartition, list[Carried]] = defaultdict(list)
        for partition, each in observed:
            carried[partition] += each.carried
        return dict(self.upstreams) | {
            partition: advance(self.upstreams.get(partition, {}), found, batch_time_us)
            for partition, found in carried.items()
            if found
        }

    def is_idle(self, origin: str) -> bool:
        """Whether an origin is declared idle and has not advanced since."""
        at = self.idle.get(origin)
        return at is not None and self.progress.get(origin, UNKNOWN) <= at

    def columns(self) -> Columns:
        """The progress of the origins, as a column of the state."""
        return {"tide_progress": np.fromiter(self.progress.values(), np.int64, len(self.progress))}

    def meta(self) -> dict[str, Any]:
        """Everything else, for the ``meta`` of the same column block."""
        services = ((at, *item) for at, known in self.upstreams.items() for item in known.items())
        return {
            "low": self.low,
            "origins": list(self.progress),
            "upstreams": [(*at, name, *upstream) for at, name, upstream in services],
            "idle": list(self.idle.items()),
        }

    @classmethod
    def restore(cls, columns: Columns, meta: Mapping[str, Any]) -> WatermarkState:
        """Read what :meth:`columns` and :meth:`meta` gave."""
        progress = dict(zip(meta["origins"], columns["tide_progress"].tolist(), strict=True))
        # Before services were told apart, there was one watermark for each input partition.
        unnamed = [(*at, UNNAMED, low, low, UNKNOWN) for *at, low in meta.get("lows", ())]
        upstreams: dict[InputPartition, dict[str, Upstream]] = {}
        for topic, partition, name, *numbers in meta.get("upstreams", unnamed):
            upstreams.setdefault((topic, partition), {})[name] = Upstream(*numbers)
        return cls(meta["low"], progress, upstreams, dict(meta.get("idle", ())))
