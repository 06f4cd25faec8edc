"""Which period? What each choice would find in a sample of a stream, and what it would cost.

A study is given the records that a service would read, slice by slice. A slice stands for a batch: a record's
latest point is that of the slices before, or the largest expiry key so far in its own input partition. From
this follow, for each period in ``clock/periods.py``, the routes that the service would decide with
``match = "window"`` and the clock ``tuple``; the rules are those of ``dedup.py`` and ``clock/expiry.py``.

- *Lateness*: how far a record is behind its latest point. It is expired unless the period is longer.
- *Distance*: how far the latest point at a record is ahead of the record before with the same key. The record
  is a duplicate of that one only if the period is longer.

Memory is bounded. Lateness is counted in fixed buckets, over all records. Of the keys a study keeps those
whose digest ends in a number of zero bits, and one bit more each time there are too many records: which keys
these are doesn't depend on how often or when they come, so counts of them can be scaled up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.expiry import aged, behind, latest_points
from replayfilter.core.clock.periods import BUCKETS, PERIODS_US, buckets_of, periods_in
from replayfilter.core.clock.units import UNIT_NS, UNKNOWN
from replayfilter.core.digest import DIGEST_BYTES

CAPACITY = 1_000_000  # records that a study keeps; each takes 56 bytes, and three times that in the end
FARTHEST = 100_000  # times the length of a sample: it says nothing about longer periods
SPANS = 12  # bucket spans in a period, by default
_INNER = 0.9  # the share of the expiry keys, from the middle, that says how long the sample is
_AGE_LIMIT = 1 << 32  # bucket spans above this have ages of 8 bytes


class Rows(NamedTuple):
    """n records of one input partition, in input order.

    ``offsets``, ``expiry`` int64[n]; ``digests`` uint64[n, 2]: of the keys; ``contents`` uint64[n]: hashes by
    which records of one key are compared.
    """

    offsets: NDArray[np.int64]
    expiry: NDArray[np.int64]
    digests: NDArray[np.uint64]
    contents: NDArray[np.uint64]


class Choice(NamedTuple):
    """What a period means for the sample; counts are scaled up to all of its records.

    ``seen``: whether the sample is longer than the period, so that it can show such distances. ``keys``:
    remembered with this period, ``state_bytes``: of them; None if the sample is too short to tell.
    """

    period_us: int
    unique: int
    duplicates: int
    expired: int
    keys: int | None
    state_bytes: int | None
    seen: bool


class Result(NamedTuple):
    """What a study has found.

    - ``records``: without those in the future, which ``future`` counts. ``share``: of the keys that are kept.
    - ``length_us``: how long the sample is, by expiry keys.
    - ``repeats``: records whose key came before. ``changed``: those of them whose content differs from that
      of the record before with their key.
    - ``distances``, ``lateness``: how many repeats and records are in each bucket of ``clock/periods.py``.
    """

    records: int
    future: int
    share: float
    length_us: int
    repeats: int
    changed: int
    distances: list[int]
    lateness: list[int]
    choices: list[Choice]


class PeriodStudy:
    """Collects a sample of a stream. ``unit``: of the expiry keys. ``future``: the largest that is accepted.

    Call :meth:`add` for the records of a slice, :meth:`end_slice` after them, and :meth:`result` in the end.

    >>> study = PeriodStudy("s", future=10_000)
    >>> digests = np.array([[0, 1], [0, 2], [0, 1]], np.uint64)
    >>> study.add(0, Rows(np.arange(3), np.array([0, 400, 0]), digests, np.zeros(3, np.uint64)))
    >>> result = study.result()
    >>> result.repeats, result.distances[:5], [choice.expired for choice in result.choices[:5]]
    (1, [0, 0, 0, 1, 0], [1, 1, 1, 0, 0])
    """

    def __init__(self, unit: str, future: int, capacity: int = CAPACITY) -> None:
        self._unit, self._future, self._capacity = unit, future, capacity
        self._periods = periods_in(unit)
        self._latest = UNKNOWN
        self._points: dict[int, int] = {}  # in this slice, by input partition
        self._records = self._in_future = self._slice = self._zeros = self._kept = 0
        self._lateness = np.zeros(BUCKETS, np.int64)
        self._rows: list[NDArray[np.void]] = []

    def add(self, partition: int, rows: Rows) -> None:
        """Add the next records of an input partition, which has any number."""
        n = len(rows.offsets)
        if not n:
            return
        passed = rows.expiry <= self._future
        before = np.array([self._points.get(partition, self._latest)])
        points, after = latest_points(before, rows.expiry, passed, np.array([n]))
        self._points[partition] = int(after[0])
        self._records += int(passed.sum())
        self._in_future += n - int(passed.sum())
        late = behind(points, rows.expiry)[passed]
        self._lateness += np.bincount(buckets_of(late, self._unit), minlength=BUCKETS)
        kept = np.flatnonzero(passed & self._is_kept(rows.digests[:, 1]))
        table = np.empty(len(kept), _ROW)
        table["hi"], table["lo"] = rows.digests[kept].T
        table["slice"], table["partition"], table["offset"] = self._slice, partition, rows.offsets[kept]
        table["expiry"], table["latest"] = rows.expiry[kept], points[kept]
        table["content"] = rows.contents[kept]
        self._rows.append(table)
        self._kept += len(table)
        while self._kept > self._capacity:
            self._zeros += 1
            together = np.concatenate(self._rows)
            self._rows = [together[self._is_kept(together["lo"])]]
            self._kept = len(self._rows[0])

    def end_slice(self) -> None:
        """From here on all input partitions see the latest point of the slice."""
        self._latest = max([self._latest, *self._points.values()])
        self._points.clear()
        self._slice += 1

    def result(self) -> Result:
        """What the sample shows so far."""
        table = np.concatenate([*self._rows, np.empty(0, _ROW)])
        table = table[np.lexsort([table[name] for name in ("offset", "partition", "slice", "lo", "hi")])]
        same = np.zeros(len(table), np.bool_)
        same[1:] = (table["hi"][1:] == table["hi"][:-1]) & (table["lo"][1:] == table["lo"][:-1])
        later = np.flatnonzero(same)
        latest, earlier = table["latest"][later], table["expiry"][later - 1]
        ahead = np.where(earlier > latest, np.uint64(0), behind(latest, earlier))
        changed = int((table["content"][later] != table["content"][later - 1]).sum())
        distances = np.bincount(buckets_of(ahead, self._unit), minlength=BUCKETS)
        scale = 1 << self._zeros
        length = self._length(table["expiry"])
        several = same | np.append(same[1:], False)
        choices: list[Choice] = []
        for number, period in enumerate(self._periods.tolist()):
            alone = ~aged(table["latest"], table["expiry"], period) & ~several
            unique, duplicates = count_routes(
                ~same[several], table["expiry"][several], table["latest"][several], period
            )
            unique = (unique + int(alone.sum())) * scale
            span = max(1, period // SPANS)
            keys = unique * (period + span) // length if length * FARTHEST >= max(1, period) else None
            choices.append(
                Choice(
                    PERIODS_US[number],
                    unique,
                    duplicates * scale,
                    int(self._lateness[number + 1 :].sum()),
                    keys,
                    None if keys is None else keys * (DIGEST_BYTES + (4 if span <= _AGE_LIMIT else 8)),
                    period <= length,
                )
            )
        return Result(
            self._records,
            self._in_future,
            1 / scale,
            length * UNIT_NS[self._unit] // 1_000,
            len(later) * scale,
            changed * scale,
            (distances * scale).tolist(),
            self._lateness.tolist(),
            choices,
        )

    def _is_kept(self, lo: NDArray[np.uint64]) -> NDArray[np.bool_]:
        zeros: NDArray[np.bool_] = (lo & np.uint64((1 << self._zeros) - 1)) == 0
        return zeros

    @staticmethod
    def _length(expiry: NDArray[np.int64]) -> int:
        """How long the sample is: by the middle of the expiry keys, since single ones may be far off."""
        if not len(expiry):
            return 0
        edge = int(len(expiry) * (1 - _INNER) / 2)
        middle = np.sort(expiry)[edge : len(expiry) - edge]
        return (int(middle[-1]) - int(middle[0])) * len(expiry) // len(middle)


_ROW = np.dtype(
    [
        *((name, "u8") for name in ("hi", "lo", "content")),
        *((name, "i8") for name in ("offset", "expiry", "latest")),
        *((name, "i4") for name in ("slice", "partition")),
    ]
)


def count_routes(
    first: NDArray[np.bool_], expiry: NDArray[np.int64], latest: NDArray[np.int64], period: int
) -> tuple[int, int]:
    """How many of n records are unique and duplicate; the others are expired.

    Records are sorted by key, those of a key in the order in which they are decided; ``first`` bool[n]: the
    first record of each key.

    >>> first, times = np.array([True, False, False]), np.array([0, 5, 12])
    >>> [count_routes(first, times, times, period) for period in (5, 6, 13)]
    [(3, 0), (2, 1), (1, 2)]
    """
    live = ~aged(latest, expiry, period)
    key = (np.cumsum(first) - 1)[live]
    expiry, latest = expiry[live], latest[live]
    n = len(key)
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    ends = np.append(starts[1:], n)[: len(starts)]
    number = np.repeat(np.arange(len(starts)), ends - starts)
    # The largest latest point so far, per key: the first record that reaches a point is where this does.
    highest, _ = latest_points(np.full(len(starts), UNKNOWN), latest, np.ones(n, np.bool_), ends)
    until = expiry + np.int64(period)  # of a key that is accepted here, it is remembered
    points, rank = np.unique(np.concatenate([highest, until]), return_inverse=True)
    base = number * len(points)
    reached = np.searchsorted(base + rank[:n], base + rank[n:])
    # Accepted records of a key have rising expiry keys. So no record before one of them reached its point:
    # that record would have been accepted, or be a duplicate of one with a larger expiry key.
    unique, accepted = 0, starts
    while len(accepted):
        unique += len(accepted)
        following = reached[accepted]
        accepted = following[following < ends[number[accepted]]]
    return unique, n - unique
