"""Routing: one shard decides all of its records of one batch at once.

A record's route is the first of these steps that applies to it:

1. *error*: it can't be parsed. Decode has decided that before, and the record is in no frame.
2. *replay*: it is stamped, and its offset is not above the mark of its source.
3. *future*: its expiry key is a time later than batch time + max_future. Decode has flagged it.
4. *jump* or *expired*: its expiry key is too far ahead of the latest point, or a period behind it.
5. *duplicate*: its key was accepted before.
6. *unique*: all others. Their keys are remembered.

The records of a batch are decided in the order (topic, partition, offset), and the decisions depend only
on the arguments of :func:`route_batch`. A batch that is tried again is therefore decided in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.batch_clock import BatchClock
from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.buckets import Buckets, RunStore
from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.dedup import Candidates, find_duplicates
from replayfilter.core.frames import FUTURE, OWN, Frame, FramePart
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.replay.marks import BatchMarks
from replayfilter.core.rules import Rules
from replayfilter.core.state import ShardState
from replayfilter.core.watermark.watermark_state import Observation, WatermarkState
from replayfilter.errors import StampError


class Route(IntEnum):
    """Where a record goes. FUTURE and JUMP are errors, with the reasons ``future`` and ``jump``."""

    UNDECIDED = 0
    UNIQUE = 1
    DUPLICATE = 2
    EXPIRED = 3
    REPLAY = 4
    ERROR = 5
    FUTURE = 6
    JUMP = 7


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

    ``first_seen``: what the duplicates repeat, where first records are remembered.
    """

    topic: str
    partition: int
    first: int
    rows: NDArray[np.uint32]
    codes: NDArray[np.uint8]
    first_seen: FirstSeen | None = None


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
    parts = (part for frame in frames for part in frame.parts())
    ordered = sorted(parts, key=lambda part: (part.topic, part.partition, part.first))
    state = state.at(facts.time_us)
    marks = BatchMarks(ordered, partial(state.marks.find, store=store), state.mark_time_us)
    watermark = state.watermark or WatermarkState()
    clock = BatchClock(rules, state, watermark.low, facts.believed_us)
    partitions = list(state.partitions)
    routes, candidates, observed = _check_parts(ordered, clock, marks, partitions)
    buckets = Buckets(rules, store, {bucket: list(entries) for bucket, entries in state.runs.items()})
    if rules.dedup:
        clock.evict_before(buckets)
        routes = _decide_duplicates(routes, candidates, buckets, tuple(partitions))
        clock.evict_after(buckets)
    seen = kept = state.marks.with_changed(marks.result(), marks.before, store)
    if facts.caught_up:
        kept = seen.without_idle(state.mark_time_us, rules.mark_ttl_us, store)
    if kept.sources > max(rules.max_sources, state.marks.sources):
        kept = kept.compacted(store)
        _check_sources(kept.sources, rules.max_sources, ordered)
    state_after = replace(
        state,
        latest=clock.latest,
        marks=kept,
        runs=buckets.entries,
        categories=clock.categories.columns() if clock.categories is not None else None,
        partitions=tuple(partitions),
    )
    if rules.watermark is not None:
        watermark_after = watermark.after(observed, rules.watermark, facts.believed_us)
        state_after = replace(state_after, watermark=watermark_after)
    stats = _stats_of(state_after, buckets)
    stats |= {"gaps": marks.gaps, "forgotten": seen.sources - kept.sources}
    return RoutedBatch([each for each in routes if len(each.rows)], state_after, stats, watermark.low)


def _check_sources(sources: int, most: int, parts: list[FramePart]) -> None:
    """Raise StampError if there are too many sources, before anything of the batch is delivered."""
    if sources > most:
        topics = ", ".join(sorted({part.topic for part in parts}))
        raise StampError(
            f"replay.max_sources = {most}: with this batch there would be {sources} sources in {topics}; "
            "if these are keys of 20 bytes and no stamps, such as SHA-1, records with equal keys would be "
            'dropped as replays, so set input.stamp = "header" if the stamps are in the header rf-stamp, '
            'otherwise replay.enabled = false and input.stamp = "none"; if they are stamps, raise '
            "replay.max_sources; nothing of this batch is delivered yet"
        )


def _check_parts(
    parts: list[FramePart], clock: BatchClock, marks: BatchMarks, partitions: list[InputPartition]
) -> tuple[list[Routes], list[Candidates], list[tuple[InputPartition, Observation]]]:
    """Steps 2 to 4 for every part of a frame, and what is observed.

    All other rows are UNIQUE for now, and candidates for step 5.

    Input partitions whose records may be remembered as first are added to ``partitions``.
    """
    rules = clock.rules
    routes: list[Routes] = []
    candidates: list[Candidates] = []
    observed: list[tuple[InputPartition, Observation]] = []
    for number, part in enumerate(parts):
        replay = marks.replays(number, part)
        future = (part.flags & FUTURE) != 0
        ages = clock.check(part, ~(replay | future))
        steps = [(replay, Route.REPLAY)]
        if rules.dedup:
            steps += [(future, Route.FUTURE), (ages.jumps, Route.JUMP), (ages.expired, Route.EXPIRED)]
        decided = _first_that_applies(steps)
        if part.observation is not None:
            counting = part.row[(decided == Route.UNIQUE) | (decided == Route.EXPIRED)]
            observed.append(((part.topic, part.partition), part.observation.counting(counting)))
        own = (part.flags & OWN) != 0
        codes = decided[own]
        open_ = codes == Route.UNIQUE
        input_index, input_offset = 0, part.input_offset
        if rules.remember_first:
            input_index = _index_of((part.topic, part.partition), partitions)
            input_offset = input_offset[open_]
        candidates.append(
            Candidates(
                hi=part.hi[open_],
                lo=part.lo[open_],
                expiry=part.expiry[own][open_],
                latest=ages.latest[own][open_],
                input_index=np.full(len(input_offset), input_index, np.uint32),
                input_offset=input_offset,
            )
        )
        routes.append(Routes(part.topic, part.partition, part.first, part.row[own], codes))
    return routes, candidates, observed


def _first_that_applies(steps: list[tuple[NDArray[np.bool_], Route]]) -> NDArray[np.uint8]:
    """The route of each row: that of the first step, a mask and a route, that applies, else UNIQUE."""
    codes = np.full(len(steps[0][0]), Route.UNIQUE, np.uint8)
    for mask, route in steps:
        if mask.any():
            codes[mask & (codes == Route.UNIQUE)] = route
    return codes


def _decide_duplicates(
    routes: list[Routes],
    candidates: list[Candidates],
    buckets: Buckets,
    partitions: tuple[InputPartition, ...],
) -> list[Routes]:
    """Steps 5 and 6: the routes with DUPLICATE where it applies; the keys of the others are remembered."""
    if not candidates:
        return routes
    found = find_duplicates(Candidates.joined(candidates), buckets)
    decided, start = [], 0
    for part, own in zip(routes, candidates, strict=True):
        end = start + len(own.hi)
        open_ = np.flatnonzero(part.codes == Route.UNIQUE)
        repeats = np.flatnonzero(found.duplicate[start:end])
        part.codes[open_[repeats]] = Route.DUPLICATE
        if buckets.rules.remember_first:
            index, offset = found.first_index[start:end][repeats], found.first_offset[start:end][repeats]
            part = replace(part, first_seen=FirstSeen(part.rows[open_[repeats]], index, offset, partitions))
        decided.append(part)
        start = end
    return decided


def _index_of(partition: InputPartition, partitions: list[InputPartition]) -> int:
    if partition not in partitions:
        partitions.append(partition)
    return partitions.index(partition)


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
