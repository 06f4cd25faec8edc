"""Expiry: the latest point at each record, and which records are too old or too far ahead.

Rules:
- latest point = max(latest point after the previous batch, largest expiry key so far in the record's
  own input partition, the record included). Replays, errors and future records don't advance it;
- expired iff latest point - expiry key >= period;
- with ``max_jump``, a key that is more than max_jump above the latest point before it is a *jump*: an
  error that doesn't advance the latest point. The very first key is never a jump: there is no latest
  point yet to compare it with (``UNKNOWN``, the smallest int64).

Expiry keys are int64 in their own unit; nothing here may overflow at the ends of int64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.units import INT64_MIN, UNKNOWN


def latest_points(
    latest: int, expiry: NDArray[np.int64], advances: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], int]:
    """The latest point at each of n records of one input partition, int64[n], and after all of them.

    ``latest``: the latest point before them. ``advances`` bool[n]: the records that may advance it.

    >>> latest_points(0, np.array([10, 40, 20]), np.array([True, True, True]))
    (array([10, 40, 40]), 40)
    """
    if not len(expiry):
        return np.zeros(0, np.int64), latest
    points = np.maximum.accumulate(np.where(advances, expiry, np.int64(INT64_MIN)))
    np.maximum(points, np.int64(latest), out=points)
    return points, int(points[-1])


def aged(latest: NDArray[np.int64], expiry: NDArray[np.int64], period: int) -> NDArray[np.bool_]:
    """bool[n]: latest point - expiry key >= period, without overflow. The period is 0 to 2**63 - 1.

    >>> aged(np.array([57, 57]), np.array([47, 48]), 10)
    array([ True, False])
    """
    reachable = latest >= INT64_MIN + period
    return reachable & (expiry <= latest - np.int64(period))


def find_jumps(
    latest: int, expiry: NDArray[np.int64], advances: NDArray[np.bool_], max_jump: int
) -> NDArray[np.bool_]:
    """bool[n]: the records that are more than ``max_jump`` above the latest point before them.

    A jump doesn't advance the latest point, so the next record is compared with the same point as the jump.

    >>> find_jumps(0, np.array([5, 900, 8, 18]), np.ones(4, np.bool_), 10)
    array([False,  True, False, False])
    """
    jumps = np.zeros(len(expiry), np.bool_)
    points, _ = latest_points(latest, expiry, advances)
    before = np.concatenate([[np.int64(latest)], points])[:-1]
    # Unsigned differences can't overflow. In the usual case no record rises too far, and there is no loop.
    rise = expiry.view(np.uint64) - before.view(np.uint64)
    if not (advances & (expiry > before) & (before != UNKNOWN) & (rise > max_jump)).any():
        return jumps
    for row in np.flatnonzero(advances).tolist():
        key = int(expiry[row])
        jumps[row] = latest != UNKNOWN and key - latest > max_jump
        if not jumps[row]:
            latest = max(latest, key)
    return jumps
