"""Expiry: what time it is, and which records are too old or too far ahead.

Rules (design, section 2):
- latest point = max(latest point after the previous batch, largest expiry key so far in the record's
  own input partition, the record included); replays, errors and future records don't advance it;
- expired iff latest point - expiry key >= period;
- clock ``tuple``: the above; ``system``: the largest batch time so far stands for the latest point (a
  host's clock may be set back, and what has expired is gone); ``watermark``: the low watermark before
  the batch stands for it; ``none``: no time;
- clock ``ordered``: as ``tuple``, for integer keys of any unit; a key more than max_jump above the latest
  point before it is a *jump*: an error that advances nothing (the very first key has nothing to be
  compared with, and the smallest int64 counts as none);
- clock ``categorical``: see categories.py;
- for time keys a record later than batch time + max_future is *future*: an error that advances nothing.

Expiry keys are int64 in their own unit; nothing here may overflow at the ends of int64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from replayfilter.core.watermark.watermark_state import WatermarkRules

CLOCKS = ("tuple", "system", "watermark", "ordered", "categorical", "none")
MOVED_BY_RECORDS = ("tuple", "ordered")  # the clocks whose latest point is the largest expiry key
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
UNKNOWN = INT64_MIN  # the latest point before the first record: any key is at least this

UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1, "iso8601": 10**3}  # iso8601 keys are held in us
_US_NS = 1_000


@dataclass(frozen=True, slots=True)
class Rules:
    """How a service decides; plain numbers, lengths in units of the expiry key.

    ``replay``: drop replays. ``mark_ttl_us``: microseconds until an idle mark is forgotten. ``dedup``:
    expire and deduplicate what passes. ``clock``, ``match`` ("window" or "bucket"), ``unit``: as in the
    config. ``period``, ``span``: how far behind a record may be, and the width of a bucket; with clock
    ``categorical`` the period is how many categories back are still open. ``max_jump``: clock ``ordered``
    only, the largest step of the latest point, None for any. ``remember_first``: keep with each key
    where its record was. ``watermark``: how the low watermark comes about, None for none.
    """

    replay: bool = True
    mark_ttl_us: int = 48 * 3600 * 10**6
    dedup: bool = True
    clock: str = "tuple"
    period: int = 3_600_000
    span: int = 300_000
    match: str = "window"
    unit: str = "ms"
    max_jump: int | None = None
    remember_first: bool = False
    watermark: WatermarkRules | None = None

    @property
    def searches_all(self) -> bool:
        """Whether a key is compared with those of all buckets, and not only of its own."""
        return self.match == "window" and self.clock != "none"

    @property
    def keeps_ages(self) -> bool:
        """Whether "within the period" is decided by each remembered key's own expiry key."""
        return self.searches_all and self.clock != "categorical"

    @property
    def needs_changes(self) -> bool:
        """Whether it matters in which order the expiry keys came, not only how large they are."""
        return self.clock == "categorical" or self.max_jump is not None


def time_in_unit(time_us: int, unit: str) -> int:
    """A time in microseconds since the epoch as a whole number of ``unit``, rounded down.

    >>> time_in_unit(1_999_999, "s")
    1
    """
    return time_us * _US_NS // UNIT_NS[unit]


def future_threshold(batch_time_us: int, max_future_us: int, unit: str) -> int:
    """The largest expiry key, in ``unit``, that is not future; clipped to int64.

    >>> future_threshold(5_000_000, 600_000_000, "s")
    605
    """
    return min(time_in_unit(batch_time_us + max_future_us, unit), INT64_MAX)


def latest_points(
    latest: int, expiry: NDArray[np.int64], counts: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], int]:
    """The latest point at each of n records of one input partition, int64[n], and after them all.

    ``latest`` is the point before them; ``counts`` bool[n] says which records advance it.

    >>> latest_points(0, np.array([10, 40, 20]), np.array([True, True, True]))
    (array([10, 40, 40]), 40)
    """
    if not len(expiry):
        return np.zeros(0, np.int64), latest
    points = np.maximum.accumulate(np.where(counts, expiry, np.int64(INT64_MIN)))
    np.maximum(points, np.int64(latest), out=points)
    return points, int(points[-1])


def aged(latest: NDArray[np.int64], expiry: NDArray[np.int64], period: int) -> NDArray[np.bool_]:
    """bool[n]: latest point - expiry key >= period, without overflow; period is 0 to 2**63 - 1.

    >>> aged(np.array([57, 57]), np.array([47, 48]), 10)
    array([ True, False])
    """
    reachable = latest >= INT64_MIN + period
    return reachable & (expiry <= latest - np.int64(period))


def find_jumps(
    latest: int, expiry: NDArray[np.int64], counts: NDArray[np.bool_], max_jump: int
) -> NDArray[np.bool_]:
    """bool[n]: which records are more than ``max_jump`` above the latest point before them.

    A jump advances nothing, so what comes after it is compared with the point before it.

    >>> find_jumps(0, np.array([5, 900, 8, 18]), np.ones(4, np.bool_), 10)
    array([False,  True, False, False])
    """
    jumps = np.zeros(len(expiry), np.bool_)
    points, _ = latest_points(latest, expiry, counts)
    before = np.concatenate([[np.int64(latest)], points])[:-1]
    # Read as unsigned a rise can't overflow; where nothing rises too far there is no jump to step over.
    rise = expiry.view(np.uint64) - before.view(np.uint64)
    if not (counts & (expiry > before) & (before != UNKNOWN) & (rise > max_jump)).any():
        return jumps
    for row in np.flatnonzero(counts).tolist():
        key = int(expiry[row])
        jumps[row] = latest != UNKNOWN and key - latest > max_jump
        if not jumps[row]:
            latest = max(latest, key)
    return jumps
