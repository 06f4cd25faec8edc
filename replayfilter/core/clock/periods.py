"""Lengths of event time, counted in fixed buckets: how late records are, and how far apart duplicates.

Bucket i has the lengths below ``PERIODS_US[i]``, and not below the one before; the last bucket has the rest.
So a service with one of these periods would have expired what is in the buckets behind it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.units import UNIT_NS

_MINUTE, _HOUR, _DAY = 60 * 10**6, 3600 * 10**6, 86_400 * 10**6
PERIODS_US = (
    10 * 10**6,
    *(count * _MINUTE for count in (1, 5, 15)),
    *(count * _HOUR for count in (1, 3, 6, 12)),
    *(count * _DAY for count in (1, 2, 3, 7, 14, 30)),
)
BUCKETS = len(PERIODS_US) + 1


def periods_in(unit: str) -> NDArray[np.int64]:
    """The periods in a unit of time."""
    return np.array([period * 1_000 // UNIT_NS[unit] for period in PERIODS_US], np.int64)


def buckets_of(lengths: NDArray[np.uint64], unit: str) -> NDArray[np.intp]:
    """The bucket of each of n lengths, in a unit of time: intp[n].

    >>> buckets_of(np.array([0, 9, 10, 3600], np.uint64), "s")
    array([0, 0, 1, 5])
    """
    bounds = _bounds(unit)
    buckets = np.zeros(len(lengths), np.intp)
    longer = lengths >= bounds[0]
    if longer.any():  # most records are not late at all
        buckets[longer] = np.searchsorted(bounds, lengths[longer], side="right")
    return buckets


@cache
def _bounds(unit: str) -> NDArray[np.uint64]:
    return periods_in(unit).astype(np.uint64)
