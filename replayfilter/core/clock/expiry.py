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
    latest: NDArray[np.int64],
    expiry: NDArray[np.int64],
    advances: NDArray[np.bool_],
    ends: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The latest point at each of n records, int64[n], and after all of them in each of p input partitions.

    ``latest`` int64[p]: the latest points before them. ``advances`` bool[n]: the records that may advance it.
    ``ends`` int64[p]: where the records of each input partition end.

    >>> keys, advances = np.array([10, 40, 20, 5, 3]), np.ones(5, np.bool_)
    >>> latest_points(np.array([0, 4]), keys, advances, np.array([3, 5]))
    (array([10, 40, 40,  5,  5]), array([40,  5]))
    """
    keys = np.where(advances, expiry, np.int64(INT64_MIN))
    sizes = np.diff(ends, prepend=0)
    if len(ends) == 1:
        points = np.maximum.accumulate(keys)
    else:  # a larger base for each input partition, so that its first record is above all before it
        found, rank = np.unique(keys, return_inverse=True)
        base = np.repeat(np.arange(len(ends)) * len(found), sizes)
        points = found[np.maximum.accumulate(base + rank) - base]
    np.maximum(points, np.repeat(latest, sizes), out=points)
    after = latest.copy()
    after[sizes > 0] = points[ends[sizes > 0] - 1]
    return points, after


def aged(latest: NDArray[np.int64], expiry: NDArray[np.int64], period: int) -> NDArray[np.bool_]:
    """bool[n]: latest point - expiry key >= period, without overflow. The period is 0 to 2**63 - 1.

    >>> aged(np.array([57, 57]), np.array([47, 48]), 10)
    array([ True, False])
    """
    reachable = latest >= INT64_MIN + period
    return reachable & (expiry <= latest - np.int64(period))


def behind(latest: NDArray[np.int64], expiry: NDArray[np.int64]) -> NDArray[np.uint64]:
    """uint64[n]: latest point - expiry key, for records that are not ahead of it.

    >>> behind(np.array([57, 2**63 - 1]), np.array([47, -(2**63)])).tolist()
    [10, 18446744073709551615]
    """
    return latest.view(np.uint64) - expiry.view(np.uint64)  # unsigned, so it can't overflow


def find_jumps(
    latest: int, expiry: NDArray[np.int64], advances: NDArray[np.bool_], max_jump: int
) -> NDArray[np.bool_]:
    """bool[n]: the records that are more than ``max_jump`` above the latest point before them.

    A jump doesn't advance the latest point, so the next record is compared with the same point as the jump.

    >>> find_jumps(0, np.array([5, 900, 8, 18]), np.ones(4, np.bool_), 10)
    array([False,  True, False, False])
    """
    jumps = np.zeros(len(expiry), np.bool_)
    before = np.concatenate([[np.int64(latest)], np.where(advances, expiry, np.int64(latest))[:-1]])[
        : len(jumps)
    ]
    np.maximum.accumulate(before, out=before)
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
