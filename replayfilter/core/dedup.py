"""Dedup: which of a batch's records repeat one that was accepted, and what is remembered of the others.

Rules (design, section 2):
- with match ``window`` a record is a duplicate iff a record with the same key was accepted as unique and
  is within the period: latest point - its expiry key < period, whatever this record's expiry key is;
- with match ``bucket`` iff one was accepted in the same bucket;
- records are decided in the order given, so within a batch the first of a kind is the one accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.buckets import Buckets, Found
from replayfilter.core.clock.expiry import aged

_REMEMBERED = -1  # in place of a row of the batch: the accepted record is of an earlier batch


@dataclass(frozen=True, slots=True)
class Candidates:
    """n records that may be duplicates, in the order in which they are decided.

    ``hi``, ``lo`` uint64[n]; ``expiry``, ``latest`` int64[n]: expiry key, and latest point at the record;
    ``place`` uint32[n], ``offset`` int64[n]: where it is in the input, of length 0 unless remembered.
    """

    hi: NDArray[np.uint64]
    lo: NDArray[np.uint64]
    expiry: NDArray[np.int64]
    latest: NDArray[np.int64]
    place: NDArray[np.uint32]
    offset: NDArray[np.int64]

    @classmethod
    def joined(cls, parts: list[Candidates]) -> Candidates:
        """All of them, one part after the other; there must be one."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))


@dataclass(frozen=True, slots=True)
class Verdicts:
    """For n candidates: ``duplicate`` bool[n]; ``place`` uint32[n] and ``offset`` int64[n] of the accepted
    record that each duplicate repeats, of length 0 unless remembered."""

    duplicate: NDArray[np.bool_]
    place: NDArray[np.uint32]
    offset: NDArray[np.int64]


def find_duplicates(candidates: Candidates, buckets: Buckets) -> Verdicts:
    """Tell duplicates from unique records; the unique ones are remembered in ``buckets``."""
    n, rules = len(candidates.hi), buckets.rules
    duplicate = np.zeros(n, np.bool_)
    if not n:
        return Verdicts(duplicate, candidates.place, candidates.offset)
    bucket = buckets.bucket_of(candidates.hi, candidates.expiry)
    keys = [candidates.lo, candidates.hi] if rules.searches_all else [bucket, candidates.lo, candidates.hi]
    order = np.lexsort(keys)  # by key, and within a key in the order of decision
    starts = np.ones(n, np.bool_)
    starts[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    heads = order[starts]
    known = buckets.find(candidates.hi[heads], candidates.lo[heads], bucket[heads])
    if rules.keeps_ages:
        found, by = _within_period(candidates, order, starts, known, rules.period)
    else:
        found, by = _ever_accepted(starts, known)
    duplicate[order] = found
    new = order[~found]
    origin = {}
    if rules.remember_first:
        origin = {"place": candidates.place[new], "offset": candidates.offset[new]}
    buckets.add(candidates.hi[new], candidates.lo[new], candidates.expiry[new], bucket[new], origin)
    if not rules.remember_first:
        return Verdicts(duplicate, candidates.place, candidates.offset)
    group, earlier = np.cumsum(starts) - 1, by == _REMEMBERED
    place, offset = np.zeros(n, np.uint32), np.zeros(n, np.int64)
    place[order] = np.where(earlier, known.place[group], candidates.place[order[by]])
    offset[order] = np.where(earlier, known.offset[group], candidates.offset[order[by]])
    return Verdicts(duplicate, place, offset)


def _ever_accepted(starts: NDArray[np.bool_], known: Found) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """As :func:`_within_period`, where a key remembered at all makes a duplicate."""
    group, heads = np.cumsum(starts) - 1, np.flatnonzero(starts)
    found = ~starts
    found[starts] = known.found
    return found, np.where(known.found, _REMEMBERED, heads)[group]


def _within_period(
    candidates: Candidates, order: NDArray[np.intp], starts: NDArray[np.bool_], known: Found, period: int
) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """Of the rows in ``order``: which find their key accepted within the period before them, bool[n];

    and by which row each was: its index in ``order``, or ``_REMEMBERED``. ``starts`` bool[n]: the first
    row of each key; ``known``: what was remembered of each key before.
    """
    expiry, latest = candidates.expiry[order], candidates.latest[order]
    found, newest = np.zeros(len(order), np.bool_), known.newest
    found[starts] = known.found & ~aged(latest[starts], newest, period)
    heads, group = np.flatnonzero(starts), np.cumsum(starts) - 1
    taken = ~found[starts] & (~known.found | (expiry[starts] > newest))
    accepted = np.where(taken, expiry[starts], newest)
    by = np.where(taken, heads, _REMEMBERED)[group]
    found[~starts] = ~aged(latest[~starts], accepted[group[~starts]], period)
    for number in np.unique(group[~starts & ~found]).tolist():
        # A key accepted again within the batch, since the clock has passed its first acceptance: rare.
        best = int(newest[number]) if known.found[number] else None
        best_by = _REMEMBERED
        for row in np.flatnonzero(group == number).tolist():
            found[row] = best is not None and int(latest[row]) - best < period
            by[row] = best_by
            if not found[row] and (best is None or int(expiry[row]) > best):
                best, best_by = int(expiry[row]), row
    return found, by
