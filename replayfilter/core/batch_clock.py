"""The latest point while one batch is decided.

A record's latest point depends on the state before the batch and on the earlier records of its own input
partition, never on another partition's records of the same batch: those may be decided elsewhere at the
same time. After the batch the latest point is the largest over all input partitions. The rules of expiry
are in ``clock/expiry.py``, those of categories in ``clock/categories.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.batch_facts import CLOCK_STEP_US
from replayfilter.core.buckets import Buckets
from replayfilter.core.clock.categories import Categories
from replayfilter.core.clock.clocks import Clock
from replayfilter.core.clock.expiry import aged, find_jumps, latest_points
from replayfilter.core.clock.units import UNKNOWN, time_in_unit
from replayfilter.core.frames import NULL
from replayfilter.core.part_groups import PartGroup, Parts
from replayfilter.core.rules import OnNull, Rules
from replayfilter.core.state import ShardState


class Ages(NamedTuple):
    """For each of n rows: the latest point int64[n], whether it is expired, and whether it is a jump.

    ``expiry`` int64[n]: its expiry key; the latest point for a null value, which has none.
    """

    latest: NDArray[np.int64]
    expired: NDArray[np.bool_]
    jumps: NDArray[np.bool_]
    expiry: NDArray[np.int64]


class BatchClock:
    """What time it is for each row of a batch, and what has expired.

    Give it the groups of ``parts``. ``latest``: the latest point after all groups so far.
    ``categories``: with clock ``categorical`` only.
    """

    def __init__(self, rules: Rules, state: ShardState, parts: Parts, low: int, believed_us: int) -> None:
        self.rules = rules
        self._start = self.latest = _latest_before(rules, state.latest, low, believed_us)
        self._inputs = parts.inputs
        self._points = np.full(len(parts.inputs), self._start)  # the latest point of each input partition
        self.categories = Categories(state.categories) if rules.clock is Clock.CATEGORICAL else None

    def check(self, group: PartGroup, passed: NDArray[np.bool_]) -> Ages:
        """The ages of a group's rows; ``passed`` bool[n]: those that are neither replay nor future."""
        rules, nothing = self.rules, np.zeros(len(passed), np.bool_)
        if rules.on_null is not OnNull.ERROR:
            null = (group.flags & NULL) != 0
            if null.any():
                return self._check_with_nulls(group, passed, null)
        if self.categories is not None:
            closed = self._closed(self.categories, group, passed)
            return Ages(group.expiry, closed, nothing, group.expiry)
        advances = passed if rules.clock.moved_by_records else nothing
        jumps = nothing
        before = self._points[group.inputs]
        if rules.max_jump is not None:
            limit, given = rules.max_jump, zip(before.tolist(), group.slices(), strict=True)
            found = [find_jumps(at, group.expiry[own], advances[own], limit) for at, own in given]
            jumps = np.concatenate([nothing[:0], *found])
        points, after = latest_points(before, group.expiry, advances & ~jumps, group.row_ends)
        self._points[group.inputs] = after
        self.latest = max(self.latest, int(after.max(initial=self.latest)))
        expired = aged(points, group.expiry, rules.period) if rules.clock.expires else nothing
        return Ages(points, expired, jumps, group.expiry)

    def _check_with_nulls(self, group: PartGroup, passed: NDArray[np.bool_], null: NDArray[np.bool_]) -> Ages:
        """The same for a group with null values: they don't advance the latest point and are as old as it."""
        flags = group.flags & ~np.uint8(NULL)
        ages = self.check(replace(group, flags=flags), passed & ~null)
        expiry = group.expiry
        if self.rules.clock.has_latest_point:
            expiry = np.where(null, ages.latest, expiry)
        return ages._replace(expired=ages.expired & ~null, expiry=expiry)

    def _closed(
        self, categories: Categories, group: PartGroup, passed: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """bool[n]: the rows whose category is closed."""
        closed = np.zeros(len(passed), np.bool_)
        for at, own in zip(group.inputs.tolist(), group.slices(), strict=True):
            topic, partition = self._inputs[at]
            names, counts = group.expiry[own], passed[own]
            closed[own] = categories.advance(topic, partition, names, counts, self.rules.period)
        return closed

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
