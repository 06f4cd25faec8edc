"""Routing: one shard decides whole frames at once.

The order of checks for each record: parse (decided before) -> replay -> future -> expired -> duplicate
-> unique. The records of a batch are decided in the order (topic, partition, offset), so that a batch
that is tried again decides the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.buckets import Buckets, Entry, RunStore, directory_columns, directory_entries
from replayfilter.core.clock.categories import Categories
from replayfilter.core.clock.expiry import (
    MOVED_BY_RECORDS,
    UNKNOWN,
    Rules,
    aged,
    find_jumps,
    latest_points,
    time_in_unit,
)
from replayfilter.core.columns import Columns, pack, unpack
from replayfilter.core.dedup import Candidates, find_duplicates
from replayfilter.core.frames import FUTURE as FUTURE_FLAG
from replayfilter.core.frames import OWN, Frame
from replayfilter.core.key_run import prepared_size
from replayfilter.core.replay.marks import MARK_DTYPES, BatchMarks, Marks
from replayfilter.core.watermark.watermark_state import WatermarkState

STATE_VERSION = 1


class Route(IntEnum):
    """Where a record goes; FUTURE and JUMP are the error topic, with reasons ``future`` and ``jump``."""

    UNDECIDED = 0
    UNIQUE = 1
    DUPLICATE = 2
    EXPIRED = 3
    REPLAY = 4
    ERROR = 5
    FUTURE = 6
    JUMP = 7


@dataclass(frozen=True, slots=True)
class ShardState:
    """All that a shard remembers: the latest point, every source's mark, its own runs of digests."""

    latest: int
    marks: Marks
    runs: dict[int, list[Entry]] = field(default_factory=dict)
    categories: Columns | None = None  # clock ``categorical`` only
    places: tuple[tuple[str, int], ...] = ()  # input partitions by number, where origins are remembered
    watermark: WatermarkState | None = None  # where a low watermark is kept
    mark_changes: int = 0  # edits of marks by hand that were applied so far

    @classmethod
    def empty(cls) -> ShardState:
        """The state before the first record."""
        return cls(UNKNOWN, Marks.empty())

    def columns(self) -> Columns:
        """All that it is made of but a few single values."""
        return {
            **self.marks.columns(),
            **directory_columns(self.runs.values()),
            **(self.categories or {}),
            **(self.watermark.columns() if self.watermark is not None else {}),
        }

    @property
    def keys(self) -> int:
        """Dedup keys remembered."""
        return sum(entry.keys for entries in self.runs.values() for entry in entries)

    @property
    def memory(self) -> int:
        """Bytes in a worker's memory: the runs as a cache maps them, and the columns."""
        runs = (prepared_size(entry.keys, entry.size) for entries in self.runs.values() for entry in entries)
        return sum(runs) + sum(column.nbytes for column in self.columns().values())

    def to_bytes(self) -> bytes:
        """The state as a column block."""
        meta = {
            "version": STATE_VERSION,
            "latest": self.latest,
            "places": self.places,
            "edits": self.mark_changes,
        }
        return pack(
            self.columns(), meta | ({"tide": self.watermark.meta()} if self.watermark is not None else {})
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> ShardState:
        """Read a state. Raises ``ValueError`` for other bytes, or those of another version."""
        columns, meta = unpack(data)
        if meta["version"] != STATE_VERSION:
            raise ValueError(f"shard state has version {meta['version']}, this program reads {STATE_VERSION}")
        marks = Marks(**{name: columns[name] for name in MARK_DTYPES})
        categories = {name: column for name, column in columns.items() if name.startswith("category_")}
        places = tuple((topic, partition) for topic, partition in meta["places"])
        watermark = WatermarkState.restore(columns, meta["tide"]) if "tide" in meta else None
        runs, mark_changes = directory_entries(columns), meta.get("edits", 0)
        return cls(meta["latest"], marks, runs, categories or None, places, watermark, mark_changes)


@dataclass(frozen=True, slots=True)
class Origins:
    """Of d duplicates, ``rows`` uint32[d]: where the accepted records are that they repeat.

    ``place`` uint32[d]: index into ``names``, the input partitions; ``offset`` int64[d].
    """

    rows: NDArray[np.uint32]
    place: NDArray[np.uint32]
    offset: NDArray[np.int64]
    names: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Routes:
    """The routes of one frame's own rows: ``rows`` uint32[k], indexes in the run, ``codes`` uint8[k].

    ``origins``: where they are remembered.
    """

    topic: str
    partition: int
    first: int
    rows: NDArray[np.uint32]
    codes: NDArray[np.uint8]
    origins: Origins | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """What a shard decided: ``routes``, the ``state`` after, and ``stats``, named by :data:`STATS`.

    ``low``: the low watermark before the batch, in microseconds, by which its records are stamped.
    """

    routes: list[Routes]
    state: ShardState
    stats: dict[str, int]
    low: int = UNKNOWN


STATS = {
    "sources": "marks kept; the same in every shard",
    "gaps": "jumps above mark + 1 in this batch; the same in every shard",
    "forgotten": "marks forgotten because idle; the same in every shard",
    "spread": "sources seen in several input partitions; the same in every shard",
    "keys": "dedup keys remembered by this shard",
    "bytes": "bytes of this shard's runs in the state",
    "memory": "bytes in memory of this shard: runs with Bloom filters as a cache maps them, marks, directory",
    "runs": "runs of this shard",
    "buckets": "buckets of this shard",
    "evicted": "keys that expired with their bucket in this batch",
    "false_hits": "digests that passed a Bloom filter in vain in this batch",
}


def route_batch(
    frames: Iterable[Frame], rules: Rules, state: ShardState, store: RunStore, batch_time_us: int
) -> Batch:
    """Decide one batch of one shard: a route for each of its own rows, and the state after.

    ``state`` is left as it is; runs are written to and dropped from ``store``.
    """
    ordered = sorted(frames, key=lambda frame: (frame.topic, frame.partition, frame.first))
    kept = state.marks.without_idle(batch_time_us, rules.mark_ttl_us)
    marks = BatchMarks(kept, ordered, batch_time_us)
    start = state.latest
    if rules.clock == "system":
        start = max(start, time_in_unit(batch_time_us, rules.unit))
    before = state.watermark or WatermarkState()
    if rules.clock == "watermark" and before.low != UNKNOWN:
        start = max(start, time_in_unit(before.low, rules.unit))
    clock = _Clock(rules, start, Categories(state.categories) if rules.clock == "categorical" else None)
    places = list(state.places)
    routes, candidates = _check_frames(ordered, clock, marks, places)
    buckets = Buckets(rules, store, {bucket: list(entries) for bucket, entries in state.runs.items()})
    if rules.dedup:
        clock.evict_before(buckets)
        routes = _decide_duplicates(routes, candidates, buckets, tuple(places))
        clock.evict_after(buckets)
    after = marks.result()
    entries = [entry for bucket in buckets.entries.values() for entry in bucket]
    categories = clock.categories.columns() if clock.categories is not None else None
    observation = [
        ((each.topic, each.partition), each.observation) for each in ordered if each.observation is not None
    ]
    watermark = before.after(observation, rules.watermark) if rules.watermark is not None else state.watermark
    state_after = ShardState(clock.highest, after, buckets.entries, categories, tuple(places), watermark)
    stats = {
        "sources": len(after.mark),
        "gaps": marks.gaps,
        "forgotten": len(state.marks.mark) - len(kept.mark),
        "spread": int(after.spread.sum()),
        "keys": state_after.keys,
        "memory": state_after.memory,
        "bytes": sum(entry.size for entry in entries),
        "runs": len(entries),
        "buckets": len(buckets.entries),
        "evicted": buckets.evicted,
        "false_hits": buckets.false_hits,
    }
    return Batch([r for r in routes if len(r.rows)], state_after, stats, before.low)


class _Clock:
    """What time it is for each row of the batch, by input partition, and what has expired by it.

    ``start``: the latest point before the batch; ``highest``: after it, over all input partitions.
    """

    def __init__(self, rules: Rules, start: int, categories: Categories | None) -> None:
        self.rules, self._start, self.categories = rules, start, categories
        self._input: tuple[str, int] | None = None
        self._carry = self.highest = start

    def check(
        self, frame: Frame, passed: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Of each row: the latest point int64[n], and whether it is expired, and a jump, bool[n] each.

        ``passed``: the rows that are neither replay nor future. Frames come in the order of decision.
        """
        if self._input != (frame.topic, frame.partition):
            self._input, self._carry = (frame.topic, frame.partition), self._start
        rules, nothing = self.rules, np.zeros(len(passed), np.bool_)
        if self.categories is not None:
            closed = self.categories.advance(frame.topic, frame.partition, frame.expiry, passed, rules.period)
            return frame.expiry, closed, nothing
        moves, jumps = passed if rules.clock in MOVED_BY_RECORDS else nothing, nothing
        if rules.max_jump is not None:
            jumps = find_jumps(self._carry, frame.expiry, moves, rules.max_jump)
        points, self._carry = latest_points(self._carry, frame.expiry, moves & ~jumps)
        self.highest = max(self.highest, self._carry)
        old = nothing if rules.clock == "none" else aged(points, frame.expiry, rules.period)
        return points, old, jumps

    def evict_before(self, buckets: Buckets) -> None:
        """Drop what has expired before the batch: the period may have become shorter since."""
        if self.categories is None and self.rules.clock != "none":
            buckets.evict(self._start)

    def evict_after(self, buckets: Buckets) -> None:
        """Drop what has expired with the batch."""
        if self.categories is not None:
            buckets.drop(buckets.entries.keys() - self.categories.open(self.rules.period))
        elif self.rules.clock != "none":
            buckets.evict(self.highest)


def _check_frames(
    frames: list[Frame], clock: _Clock, marks: BatchMarks, places: list[tuple[str, int]]
) -> tuple[list[Routes], list[Candidates]]:
    """Replay, future, jump and expired for every frame; the rest is left UNIQUE, a candidate."""
    routes: list[Routes] = []
    parts: list[Candidates] = []
    for number, frame in enumerate(frames):
        replay = marks.replays(number, frame)
        future = (frame.flags & FUTURE_FLAG) != 0
        points, old, jumps = clock.check(frame, ~(replay | future))
        codes = np.full(len(replay), Route.UNIQUE, np.uint8)
        if clock.rules.dedup:
            codes[old] = Route.EXPIRED
            codes[jumps] = Route.JUMP
            codes[future] = Route.FUTURE
        codes[replay] = Route.REPLAY
        own = (frame.flags & OWN) != 0
        mine = codes[own]
        open_ = mine == Route.UNIQUE
        offsets, place = frame.input_offset, 0
        if clock.rules.remember_first:
            offsets = offsets[open_]
            place = _number(places, (frame.topic, frame.partition))
        parts.append(
            Candidates(
                frame.hi[open_],
                frame.lo[open_],
                frame.expiry[own][open_],
                points[own][open_],
                np.full(len(offsets), place, np.uint32),
                offsets,
            )
        )
        routes.append(Routes(frame.topic, frame.partition, frame.first, frame.row[own], mine))
    return routes, parts


def _decide_duplicates(
    routes: list[Routes],
    candidates: list[Candidates],
    buckets: Buckets,
    places: tuple[tuple[str, int], ...],
) -> list[Routes]:
    """The routes with DUPLICATE on the candidates that are; the others are remembered."""
    if not candidates:
        return routes
    found = find_duplicates(Candidates.joined(candidates), buckets)
    decided, at = [], 0
    for part, own in zip(routes, candidates, strict=True):
        open_, end = np.flatnonzero(part.codes == Route.UNIQUE), at + len(own.hi)
        repeats = np.flatnonzero(found.duplicate[at:end])
        part.codes[open_[repeats]] = Route.DUPLICATE
        if buckets.rules.remember_first:
            place, offset = found.place[at:end][repeats], found.offset[at:end][repeats]
            part = replace(part, origins=Origins(part.rows[open_[repeats]], place, offset, places))
        decided.append(part)
        at = end
    return decided


def _number(places: list[tuple[str, int]], place: tuple[str, int]) -> int:
    if place not in places:
        places.append(place)
    return places.index(place)
