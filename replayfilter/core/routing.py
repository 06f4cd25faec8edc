"""Routing: one shard decides all of its records of one batch at once.

A record's route is the first of these steps that applies to it:

1. *error*: it can't be parsed. Decode has decided that before, and the record is in no frame.
2. *replay*: it is stamped, and its offset is not above the mark of its source.
3. *future*: its expiry key is a time later than batch time + max_future. Decode has flagged it.
4. *jump* or *expired*: its expiry key is too far ahead of the latest point, or a period behind it. A null
   value has no expiry key, and is neither.
5. *duplicate*: its key was accepted before. Null values have other keys, or none: see ``Rules.on_null``. If
   digests of the content are kept, and those of the two records differ, it is a *conflict*.
6. *unique*: all others. Their keys are remembered.

The records of a batch are decided in the order (topic, partition, offset), and the decisions depend only
on the arguments of :func:`route_batch`. A batch that is tried again is therefore decided in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.batch_clock import BatchClock
from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.buckets import Buckets, RunStore
from replayfilter.core.clock.expiry import behind
from replayfilter.core.clock.periods import BUCKETS, buckets_of
from replayfilter.core.clock.units import UNIT_NS, UNKNOWN
from replayfilter.core.columns import Columns
from replayfilter.core.dedup import Candidates, find_duplicates
from replayfilter.core.frames import FUTURE, NULL, OWN, Frame
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.key_run import INDEX, OFFSET
from replayfilter.core.part_groups import Parts, rows_of_ranges
from replayfilter.core.replay.marks import BatchMarks
from replayfilter.core.rules import OnNull, Rules
from replayfilter.core.state import ShardState
from replayfilter.core.stats import LATE_ROUTES, LENGTHS
from replayfilter.core.watermark.watermark_state import Observation, WatermarkState
from replayfilter.errors import StampError


class Route(IntEnum):
    """Where a record goes. FUTURE and JUMP are errors, with the reasons ``future`` and ``jump``.

    CONFLICT is a duplicate whose content is not that of the record that it repeats.
    """

    UNDECIDED = 0
    UNIQUE = 1
    DUPLICATE = 2
    EXPIRED = 3
    REPLAY = 4
    ERROR = 5
    FUTURE = 6
    JUMP = 7
    CONFLICT = 8


_LENGTH_NAMES = [name for names in LENGTHS.values() for name in names]
_LATE_GROUP = np.full(len(Route), -1)  # of a route, the index in LATE_ROUTES
_LATE_GROUP[[Route.UNIQUE, Route.DUPLICATE, Route.EXPIRED, Route.CONFLICT]] = 0, 1, 2, 1


@dataclass(frozen=True, slots=True)
class FirstSeen:
    """The first records that d duplicates repeat.

    ``rows`` uint32[d]: the duplicates' indexes in the chunk. ``input_index`` uint32[d], ``input_offset``
    int64[d]: where the first record of each is; the index is one in ``partitions``.
    """

    rows: NDArray[np.uint32]
    input_index: NDArray[np.uint32]
    input_offset: NDArray[np.int64]
    partitions: tuple[InputPartition, ...]


@dataclass(frozen=True, slots=True)
class Routes:
    """The routes of one chunk's own rows: ``rows`` uint32[k], their indexes in the chunk, ``codes`` uint8[k].

    ``first_seen``: what the duplicates repeat, where first records are remembered. ``late`` uint64[e]: how
    far each of the e expired rows is behind the latest point, in units of the expiry key; None if there are
    none, or the clock has no latest point.
    """

    topic: str
    partition: int
    first: int
    rows: NDArray[np.uint32]
    codes: NDArray[np.uint8]
    first_seen: FirstSeen | None = None
    late: NDArray[np.uint64] | None = None


@dataclass(frozen=True, slots=True)
class RoutedBatch:
    """What a shard has decided: ``routes``, the ``state`` after the batch, and ``stats`` (see ``stats.py``).

    ``low``: the low watermark before the batch in microseconds, which the batch's records carry.
    """

    routes: list[Routes]
    state: ShardState
    stats: dict[str, int]
    low: int = UNKNOWN


def route_batch(
    frames: Iterable[Frame], rules: Rules, state: ShardState, store: RunStore, facts: BatchFacts
) -> RoutedBatch:
    """Decide one batch of one shard: a route for each of its own rows, and the state after it.

    ``state`` is not changed; runs are written to ``store`` and dropped from it.
    """
    parts = Parts(frames)
    state = state.at(facts.time_us)
    marks = BatchMarks(parts, partial(state.marks.find, store=store), state.mark_time_us)
    watermark = state.watermark or WatermarkState()
    clock = BatchClock(rules, state, parts, watermark.low, facts.believed_us)
    own, observed = _check_groups(parts, clock, marks)
    partitions = state.partitions
    if rules.remember_first:
        partitions = tuple(dict.fromkeys([*partitions, *parts.inputs]))
    first_seen = None
    apart = np.zeros(0, np.uint64)
    buckets = Buckets(rules, store, {bucket: list(entries) for bucket, entries in state.runs.items()})
    if rules.dedup:
        clock.evict_before(buckets)
        first_seen, apart = _decide_duplicates(own, buckets, parts, partitions)
        clock.evict_after(buckets)
    lengths = _lengths_of(own, apart, rules)
    if rules.on_null is OnNull.UNIQUE:
        own.codes[own.codes == Route.UNDECIDED] = Route.UNIQUE
    seen = kept = state.marks.with_changed(marks.result(), marks.before, store)
    if facts.caught_up:
        kept = seen.without_idle(state.mark_time_us, rules.mark_ttl_us, store)
    if kept.sources > max(rules.max_sources, state.marks.sources):
        kept = kept.compacted(store)
        _check_sources(kept.sources, rules.max_sources, parts)
    state_after = replace(
        state,
        latest=clock.latest,
        marks=kept,
        runs=buckets.entries,
        categories=clock.categories.columns() if clock.categories is not None else None,
        partitions=partitions,
    )
    if rules.watermark is not None:
        watermark_after = watermark.after(observed, rules.watermark, facts.believed_us, facts.upstream)
        state_after = replace(state_after, watermark=watermark_after)
    stats = _stats_of(state_after, buckets)
    stats |= {"gaps": marks.gaps, "forgotten": seen.sources - kept.sources, **lengths}
    late = rules.clock.has_latest_point and bool((own.codes == Route.EXPIRED).any())
    return RoutedBatch(_routes_of(own, parts, first_seen, late), state_after, stats, watermark.low)


def _check_sources(sources: int, most: int, parts: Parts) -> None:
    """Raise StampError if there are too many sources, before anything of the batch is delivered."""
    if sources > most:
        topics = ", ".join(sorted({topic for topic, _ in parts.inputs}))
        raise StampError(
            f"replay.max_sources = {most}: with this batch there would be {sources} sources in {topics}; "
            "if these are keys of 20 bytes and no stamps, such as SHA-1, records with equal keys would be "
            'dropped as replays, so set input.stamp = "header" if the stamps are in the header rf-stamp, '
            'otherwise replay.enabled = false and input.stamp = "none"; if they are stamps, raise '
            "replay.max_sources; nothing of this batch is delivered yet"
        )


class _OwnRows(NamedTuple):
    """The shard's k own rows of p parts, and what was found out about them so far.

    ``parts`` intp[p]: the parts' numbers in the order of decision; ``sizes`` int64[p]: their own rows.
    ``rows``: indexes in the chunk. ``latest``: latest points. The other columns are as in a frame.
    """

    parts: NDArray[np.intp]
    sizes: NDArray[np.int64]
    rows: NDArray[np.uint32]
    codes: NDArray[np.uint8]
    latest: NDArray[np.int64]
    expiry: NDArray[np.int64]
    hi: NDArray[np.uint64]
    lo: NDArray[np.uint64]
    kept: Columns

    @classmethod
    def in_order(cls, groups: list[_OwnRows]) -> _OwnRows:
        """The own rows of all groups, in the order of decision."""
        kept = {name: np.concatenate([each.kept[name] for each in groups]) for name in groups[0].kept}
        columns: Any = map(np.concatenate, zip(*(each[:-1] for each in groups), strict=True))
        joined = cls(*[*columns, kept])
        if (np.diff(joined.parts) > 0).all():
            return joined
        order = np.argsort(joined.parts)
        sizes = joined.sizes[order]
        starts = (np.cumsum(joined.sizes) - joined.sizes)[order]
        rows = rows_of_ranges(starts, sizes)
        columns = [column[rows] for column in joined[2:-1]]
        return cls(*[joined.parts[order], sizes, *columns, {name: kept[name][rows] for name in kept}])


def _check_groups(
    parts: Parts, clock: BatchClock, marks: BatchMarks
) -> tuple[_OwnRows, list[tuple[InputPartition, Observation]]]:
    """Steps 2 to 4 for all parts: the own rows, and what is observed, in the order of decision.

    All other rows are UNIQUE for now, and candidates for step 5, or UNDECIDED if they are unique in any case.
    """
    rules = clock.rules
    own_rows: list[_OwnRows] = []
    observed: dict[int, tuple[InputPartition, Observation]] = {}
    for group in parts.groups():
        replay = marks.replays(group)
        future = (group.flags & FUTURE) != 0
        ages = clock.check(group, ~(replay | future))
        steps = [(replay, Route.REPLAY)]
        if rules.dedup:
            steps += [(future, Route.FUTURE), (ages.jumps, Route.JUMP), (ages.expired, Route.EXPIRED)]
        if rules.on_null is OnNull.UNIQUE:
            steps.append(((group.flags & NULL) != 0, Route.UNDECIDED))  # no candidate for step 5
        codes = _first_that_applies(steps)
        counts = (codes <= Route.UNIQUE) | (codes == Route.EXPIRED)
        for part, rows, seen in zip(group.parts.tolist(), group.slices(), group.observations, strict=True):
            if seen is not None:
                counting = group.row[rows][counts[rows]]
                observed[part] = parts.chunks[part][:2], seen.counting(counting)
        own = (group.flags & OWN) != 0
        sizes = np.diff(group.own_ends, prepend=0)
        columns = (group.row[own], codes[own], ages.latest[own], ages.expiry[own])
        own_rows.append(_OwnRows(group.parts, sizes, *columns, group.hi, group.lo, group.kept))
    return _OwnRows.in_order(own_rows or [_NO_ROWS]), [observed[part] for part in sorted(observed)]


_EMPTY: Any = [np.zeros(0, dtype) for dtype in (np.intp, np.int64, np.uint32, np.uint8, *"qqQQ")]
_NO_ROWS = _OwnRows(*[*_EMPTY, {}])


def _first_that_applies(steps: list[tuple[NDArray[np.bool_], Route]]) -> NDArray[np.uint8]:
    """The route of each row: that of the first step, a mask and a route, that applies, else UNIQUE."""
    codes = np.full(len(steps[0][0]), Route.UNIQUE, np.uint8)
    for mask, route in steps:
        if mask.any():
            codes[mask & (codes == Route.UNIQUE)] = route
    return codes


def _decide_duplicates(
    own: _OwnRows, buckets: Buckets, parts: Parts, partitions: tuple[InputPartition, ...]
) -> tuple[FirstSeen | None, NDArray[np.uint64]]:
    """Steps 5 and 6: DUPLICATE or CONFLICT in the codes where it applies; the other keys are remembered.

    Returns what the duplicates repeat, by their indexes among the own rows, if first records are remembered;
    and how far apart they are, as in :class:`Verdicts`.
    """
    open_ = own.codes == Route.UNIQUE
    kept = {name: column[open_] for name, column in own.kept.items()}
    if OFFSET in kept:
        known = {partition: number for number, partition in enumerate(partitions)}
        of_part = np.array([known[chunk[:2]] for chunk in parts.chunks], np.uint32)
        kept = {INDEX: np.repeat(of_part, own.sizes)[open_], **kept}
    columns = (own.hi[open_], own.lo[open_], own.expiry[open_], own.latest[open_])
    found = find_duplicates(Candidates(*columns, kept), buckets)
    repeats = np.flatnonzero(open_)[found.duplicate]
    own.codes[repeats] = Route.DUPLICATE
    first = {name: column[found.duplicate] for name, column in found.accepted.items()}
    if (name := buckets.rules.content) in first:
        content = kept[name][found.duplicate]
        both_known = (content != 0) & (first[name] != 0)
        own.codes[repeats[both_known & (content != first[name])]] = Route.CONFLICT
    seen = None
    if OFFSET in first:
        seen = FirstSeen(repeats.astype(np.uint32), first[INDEX], first[OFFSET], partitions)
    return seen, found.apart


def _lengths_of(own: _OwnRows, apart: NDArray[np.uint64], rules: Rules) -> dict[str, int]:
    """How many records are how late, and duplicates how far apart, where expiry keys are times."""
    if not rules.dedup or not rules.clock.has_latest_point or rules.unit not in UNIT_NS:
        return {}
    group = _LATE_GROUP[own.codes]
    aged = group >= 0
    latest, expiry = own.latest[aged], own.expiry[aged]
    late = np.where(expiry > latest, np.uint64(0), behind(latest, expiry))
    # The distances are one more group behind those of the routes.
    buckets = buckets_of(np.concatenate([late, apart]), rules.unit)
    groups = np.concatenate([group[aged], np.full(len(apart), len(LATE_ROUTES))])
    counts = np.bincount(groups * BUCKETS + buckets).tolist()
    return {name: count for name, count in zip(_LENGTH_NAMES, counts, strict=False) if count}


def _routes_of(own: _OwnRows, parts: Parts, seen: FirstSeen | None, late: bool) -> list[Routes]:
    """The routes of the parts that have own rows. ``late``: whether there are rows that may say how late."""
    found = []
    ends = np.cumsum(own.sizes)
    cuts = np.searchsorted(seen.rows, ends).tolist() if seen is not None else [0] * len(ends)
    start = cut = 0
    for chunk, end, cut_end in zip(parts.chunks, ends.tolist(), cuts, strict=True):
        if end > start:
            rows, first_seen = own.rows[start:end], None
            if seen is not None:
                repeats, here = rows[seen.rows[cut:cut_end] - start], slice(cut, cut_end)
                index, offset = seen.input_index[here], seen.input_offset[here]
                first_seen = FirstSeen(repeats, index, offset, seen.partitions)
            routes = Routes(*chunk, rows, own.codes[start:end], first_seen)
            if late and len(expired := start + np.flatnonzero(routes.codes == Route.EXPIRED)):
                routes = replace(routes, late=behind(own.latest[expired], own.expiry[expired]))
            found.append(routes)
        start, cut = end, cut_end
    return found


def _stats_of(state: ShardState, buckets: Buckets) -> dict[str, int]:
    """What there is to count in the state after a batch, and in what was done to its buckets."""
    entries = [entry for bucket in state.runs.values() for entry in bucket]
    return {
        "sources": state.marks.sources,
        "spread": state.marks.spread,
        "keys": state.keys,
        "memory": state.memory,
        "bytes": sum(entry.size for entry in entries),
        "runs": len(entries),
        "buckets": len(state.runs),
        "evicted": buckets.evicted,
        "false_hits": buckets.false_hits,
    }
