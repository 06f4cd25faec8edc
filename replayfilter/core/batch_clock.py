"""The latest point while one batch is decided.

A record's latest point depends on the state before the batch and on the earlier records of its own input
partition, never on another partition's records of the same batch: those may be decided elsewhere at the
same time. After the batch the latest point is the largest over all input partitions. The rules of expiry
are in ``clock/expiry.py``, those of categories in ``clock/categories.py``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.batch_facts import CLOCK_STEP_US
from replayfilter.core.buckets import Buckets
from replayfilter.core.clock.categories import Categories
from replayfilter.core.clock.clocks import Clock
from replayfilter.core.clock.expiry import aged, find_jumps, latest_points
from replayfilter.core.clock.units import UNKNOWN, time_in_unit
from replayfilter.core.frames import FramePart
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.rules import Rules
from replayfilter.core.state import ShardState


class Ages(NamedTuple):
    """For each of n rows: the latest point int64[n], whether it is expired, and whether it is a jump."""

    latest: NDArray[np.int64]
    expired: NDArray[np.bool_]
    jumps: NDArray[np.bool_]


class BatchClock:
    """What time it is for each row of a batch, and what has expired.

    Give it the parts of frames in the order of decision. ``latest``: the latest point after all parts so far;
    ``categories``: with clock ``categorical`` only.
    """

    def __init__(self, rules: Rules, state: ShardState, low: int, believed_us: int) -> None:
        self.rules = rules
        self._start = _latest_before(rules, state.latest, low, believed_us)
        self.latest = self._carry = self._start
        self.categories = Categories(state.categories) if rules.clock is Clock.CATEGORICAL else None
        self._partition: InputPartition | None = None

    def check(self, part: FramePart, passed: NDArray[np.bool_]) -> Ages:
        """The ages of a part's rows; ``passed`` bool[n]: those that are neither replay nor future."""
        if self._partition != (part.topic, part.partition):
            self._partition, self._carry = (part.topic, part.partition), self._start
        rules, nothing = self.rules, np.zeros(len(passed), np.bool_)
        if self.categories is not None:
            closed = self.categories.advance(part.topic, part.partition, part.expiry, passed, rules.period)
            return Ages(part.expiry, closed, nothing)
        advances = passed if rules.clock.moved_by_records else nothing
        jumps = nothing
        if rules.max_jump is not None:
            jumps = find_jumps(self._carry, part.expiry, advances, rules.max_jump)
        points, self._carry = latest_points(self._carry, part.expiry, advances & ~jumps)
        self.latest = max(self.latest, self._carry)
        expired = aged(points, part.expiry, rules.period) if rules.clock.expires else nothing
        return Ages(points, expired, jumps)

    def evict_before(self, buckets: Buckets) -> None:
        """Drop the buckets that were expired before the batch: the period may be shorter than it was."""
        if self.rules.clock.has_latest_point:
            buckets.evict(self._start)

    def evict_after(self, buckets: Buckets) -> None:
        """Drop the buckets that have expired in the batch."""
        if self.categories is not None:
            self.categories.forget_closed(self.rules.period)
            buckets.drop(buckets.entries.keys() - self.categories.open_categories(self.rules.period))
        elif self.rules.clock.has_latest_point:
            buckets.evict(self.latest)


def _latest_before(rules: Rules, latest: int, low: int, believed_us: int) -> int:
    """The latest point before the batch.

    It goes back only from a time so far ahead that a clock must have been wrong.
    """
    if rules.clock is Clock.SYSTEM:
        wrong = latest > time_in_unit(believed_us + CLOCK_STEP_US, rules.unit)
        return max(latest if not wrong else UNKNOWN, time_in_unit(believed_us, rules.unit))
    if rules.clock is Clock.WATERMARK and low != UNKNOWN:
        return max(latest, time_in_unit(low, rules.unit))
    return latest
