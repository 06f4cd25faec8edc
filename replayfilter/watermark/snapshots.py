"""What readers of the table see: immutable snapshots, published once their contents are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.watermark.stages import Lows
from replayfilter.watermark.api import Laggards, StageLows
from replayfilter.watermark.server_config import StageConfig


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The last report of an input partition, with the ``session`` and ``sequence`` of its client.

    ``laggards``: the origins that hold ``low`` back. ``since_us``: by origin, the time of the first report
    with its present progress. Neither is stored: after a restart they come with the next report.
    """

    low: int | None
    oldest: int | None
    backlog: int | None
    session: int
    sequence: int
    reported_us: int
    laggards: Laggards | None = None
    since_us: Mapping[str, int] = field(default_factory=dict)

    def after(self, previous: PartitionReport | None) -> PartitionReport:
        """The same report with ``since_us``, taken from the previous report for origins that didn't move."""
        if self.laggards is None:
            return self
        since = dict.fromkeys(self.laggards.slowest, self.reported_us)
        if previous is not None and previous.laggards is not None:
            unmoved = previous.laggards.slowest.items() & self.laggards.slowest.items()
            since |= {name: previous.since_us[name] for name, _ in unmoved}
        return replace(self, since_us=since)


@dataclass(frozen=True, slots=True)
class StageSnapshot:
    """A stage at one moment. The arrays are copies, in the order of ``names``.

    ``largest_time``: the largest event time that this stage or one upstream of it has seen. ``active``: the
    origins that count. ``unknown_origins``: names in reports that the roster doesn't have. ``errors``:
    problems with the roster file.
    """

    config: StageConfig
    lows: Lows
    upstream_low: int | None
    moved_us: int | None
    largest_time: int
    names: Sequence[str]
    progress: NDArray[np.int64]
    since_us: NDArray[np.int64]
    idle: NDArray[np.bool_]
    active: NDArray[np.bool_]
    may_lag: int
    roster_low: int | None
    partitions: Mapping[str, PartitionReport]
    unknown_origins: Mapping[str, int]
    errors: tuple[str, ...] = ()

    @property
    def stage_lows(self) -> StageLows:
        """The watermarks, as the API has them."""
        return StageLows(
            time_or_none(self.lows.input), time_or_none(self.lows.output), time_or_none(self.upstream_low)
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole table at the time ``at_us``; ``global_low`` is the global low watermark."""

    at_us: int
    global_low: int
    stages: Mapping[str, StageSnapshot]


def time_or_none(time: int | None) -> int | None:
    """A time as the API has it: None while it is unknown."""
    return None if time is None or time == UNKNOWN else time
