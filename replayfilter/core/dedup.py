"""Dedup: which records of a batch repeat an accepted record. The keys of all others are remembered.

Rules:
- with match ``window``, a record is a duplicate iff a record with the same key was accepted as unique and
  is still within the period: latest point - expiry key of the accepted record < period. The expiry key of
  the record itself doesn't matter;
- with ``refresh``, the key of an accepted record is remembered at the largest expiry key of that record and
  its duplicates, so a duplicate that is newer starts the period again. What a duplicate repeats is still the
  accepted record. Replays, errors and expired records refresh nothing, because they are no duplicates;
- with match ``bucket``, a record is a duplicate iff a record with the same key was accepted in its bucket;
- records are decided in the order given, so of several equal ones in a batch the first is accepted.

Keys are sorted once per batch, each distinct key is searched for once, and equal keys within the batch are
compared side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.buckets import Buckets, Found
from replayfilter.core.clock.expiry import aged, behind, latest_points
from replayfilter.core.columns import Columns
from replayfilter.core.key_run import OFFSET
from replayfilter.core.rules import Rules

_REMEMBERED = -1  # instead of a row of this batch: the accepted record came in an earlier batch


def columns_to_keep(
    rules: Rules, offsets: NDArray[np.int64], contents: NDArray[np.uint32] | None, rows: NDArray[np.intp]
) -> Columns:
    """What the shards must know of these rows to remember it with their keys, as columns of a run.

    Of all records, ``offsets`` are those in the input, and ``contents`` digests of the content, which must be
    given if conflicts are looked for.
    """
    kept: Columns = {OFFSET: offsets[rows]} if rules.remember_first else {}
    if rules.content and contents is not None:
        kept[rules.content] = contents[rows]
    return kept


@dataclass(frozen=True, slots=True)
class Candidates:
    """n records that may be duplicates, in the order in which they are decided.

    ``hi``, ``lo`` uint64[n]: digests. ``expiry``, ``latest`` int64[n]: expiry key, and latest point at the
    record. ``kept``: what is remembered of each with its key, as columns of a run: where it is, and a digest
    of its content.
    """

    hi: NDArray[np.uint64]
    lo: NDArray[np.uint64]
    expiry: NDArray[np.int64]
    latest: NDArray[np.int64]
    kept: Columns


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Which of n candidates are duplicates, and of what.

    ``duplicate`` bool[n]. ``accepted``: the columns that are kept, of the record that each duplicate repeats,
    and of each other record itself. ``apart`` uint64[d]: how far the latest point at each of d duplicates is
    ahead of the record that it repeats, in any order; empty where that isn't known.
    """

    duplicate: NDArray[np.bool_]
    accepted: Columns
    apart: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))


def find_duplicates(candidates: Candidates, buckets: Buckets) -> Verdicts:
    """Find the duplicates; the keys of the other candidates are added to ``buckets``."""
    n, rules = len(candidates.hi), buckets.rules
    duplicate = np.zeros(n, np.bool_)
    if not n:
        return Verdicts(duplicate, candidates.kept)
    bucket = buckets.bucket_of(candidates.hi, candidates.expiry)
    keys: list[NDArray[np.integer]] = [candidates.lo, candidates.hi]
    if not rules.searches_all_buckets:
        keys.insert(0, bucket)
    order = np.lexsort(keys)  # by key, and within a key in the order of decision
    starts = np.ones(n, np.bool_)
    starts[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    heads = order[starts]
    known = buckets.find(candidates.hi[heads], candidates.lo[heads], bucket[heads], candidates.kept)
    if rules.refresh:
        found, by, moved = _refreshing(candidates, order, starts, known, rules.period)
    elif rules.keeps_ages:
        found, by = _within_period(candidates, order, starts, known, rules.period)
        moved = ~found
    else:
        found, by = _ever_accepted(starts, known)
        moved = ~found
    duplicate[order] = found
    accepted: Columns = {}
    if candidates.kept:
        by = np.where(found, by, np.arange(n))
        group, earlier = np.cumsum(starts) - 1, by == _REMEMBERED
        for name, column in candidates.kept.items():
            accepted[name] = np.empty_like(column)
            accepted[name][order] = np.where(earlier, known.kept[name][group], column[order[by]])
    new = order[moved]
    kept = {name: column[new] for name, column in accepted.items()}
    buckets.add(candidates.hi[new], candidates.lo[new], candidates.expiry[new], bucket[new], kept)
    if not rules.keeps_ages or rules.refresh:  # with refresh, the age isn't that of the accepted record
        return Verdicts(duplicate, accepted)
    return Verdicts(duplicate, accepted, _apart(candidates, order, starts, known, found, by))


def _apart(
    candidates: Candidates,
    order: NDArray[np.intp],
    starts: NDArray[np.bool_],
    known: Found,
    found: NDArray[np.bool_],
    by: NDArray[np.intp],
) -> NDArray[np.uint64]:
    """``Verdicts.apart``; the arguments are as in :func:`_within_period`, or its result."""
    rows = np.flatnonzero(found)
    repeated = by[rows]
    remembered = known.newest[(np.cumsum(starts) - 1)[rows]]
    since = np.where(repeated == _REMEMBERED, remembered, candidates.expiry[order[repeated]])
    latest = candidates.latest[order[rows]]
    return np.where(since > latest, np.uint64(0), behind(latest, since))


def _ever_accepted(starts: NDArray[np.bool_], known: Found) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """As :func:`_within_period`, for rules by which any remembered key makes a duplicate."""
    group, heads = np.cumsum(starts) - 1, np.flatnonzero(starts)
    found = ~starts
    found[starts] = known.found
    return found, np.where(known.found, _REMEMBERED, heads)[group]


def _refreshing(
    candidates: Candidates, order: NDArray[np.intp], starts: NDArray[np.bool_], known: Found, period: int
) -> tuple[NDArray[np.bool_], NDArray[np.intp], NDArray[np.bool_]]:
    """As :func:`_within_period`, where a duplicate starts the period again; and bool[n]: what to remember.

    That is one row of each key that is accepted or refreshed: the last one that has moved its time.
    """
    n, rows = len(order), np.arange(len(order))
    heads, group = np.flatnonzero(starts), np.cumsum(starts) - 1
    expiry, latest = candidates.expiry[order], candidates.latest[order]
    points, _ = latest_points(known.newest, expiry, np.ones(n, np.bool_), np.append(heads[1:], n))
    before = np.where(starts, known.newest[group], np.roll(points, 1))  # when the key was seen last
    found = (known.found[group] | ~starts) & ~aged(latest, before, period)
    # The last accepted record counts: when it came, all before it with its key had expired, so it is newer.
    accepted = np.maximum.accumulate(np.where(found, _REMEMBERED, rows))
    by = np.where(accepted < heads[group], _REMEMBERED, accepted)
    moves = np.where(found & (expiry <= before), _REMEMBERED, rows)
    last = np.maximum.reduceat(moves, heads)
    moved = np.zeros(n, np.bool_)
    moved[last[last != _REMEMBERED]] = True
    return found, by, moved


def _within_period(
    candidates: Candidates, order: NDArray[np.intp], starts: NDArray[np.bool_], known: Found, period: int
) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """Which rows repeat a key that was accepted within the period, bool[n], and the row that accepted it.

    Rows are in ``order``. The accepting row is its index in ``order``, or ``_REMEMBERED``. ``starts``
    bool[n]: the first row of each key. ``known``: what was remembered of each key before the batch.
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
        # Rare: the key is accepted more than once in the batch, because the latest point moves that far.
        best = int(newest[number]) if known.found[number] else None
        best_by = _REMEMBERED
        for row in np.flatnonzero(group == number).tolist():
            found[row] = best is not None and int(latest[row]) - best < period
            by[row] = best_by
            if not found[row] and (best is None or int(expiry[row]) > best):
                best, best_by = int(expiry[row]), row
    return found, by
