"""Highwater marks: the highest offset already accepted from each source.

Rules (design, section 2), for one source (pid, source partition):
- no mark: accept, and set it; offset above the mark: accept, and advance it; otherwise a replay;
- records without a stamp pass and are counted;
- an accepted offset beyond mark + 1 is a gap: legal, counted;
- in a batch each input partition sees the marks before the batch and its own earlier records; after
  the batch a mark is the largest over all input partitions;
- a mark not seen for longer than its time to live, by batch time, is forgotten before a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import xxhash
from numpy.typing import NDArray

from replayfilter.core.columns import Columns
from replayfilter.core.frames import FIRST, JUMP, NO_SOURCE, Frame
from replayfilter.core.stamp import Stamp, Stamps


class ReplayFilter:
    """Drops replays, a record at a time or many: the filter for a plain consumer.

    ``marks`` maps (pid, source partition) to the highest accepted offset; ``gaps`` and ``unstamped``
    count what was seen of each.

    >>> keep = ReplayFilter()
    >>> [keep.accept(Stamp(7, 0, offset)) for offset in (5, 5, 6, 4, 7)]
    [True, False, True, False, True]
    >>> keep.marks
    {(7, 0): 7}
    """

    def __init__(self, marks: dict[tuple[int, int], int] | None = None) -> None:
        self.marks: dict[tuple[int, int], int] = dict(marks or {})
        self.gaps = 0
        self.unstamped = 0

    def accept(self, stamp: Stamp | None) -> bool:
        """Whether the record passes; advances its source's mark if so. No stamp: passes, counted."""
        if stamp is None:
            self.unstamped += 1
            return True
        source = (stamp.pid, stamp.partition)
        mark = self.marks.get(source)
        if mark is not None:
            if stamp.offset <= mark:
                return False
            self.gaps += stamp.offset > mark + 1
        self.marks[source] = stamp.offset
        return True

    def accept_many(self, stamps: Stamps) -> NDArray[np.bool_]:
        """The same for n records in their order: bool[n], whether each passes."""
        rows = zip(
            stamps.valid,
            stamps.pids.tolist(),
            stamps.partitions.tolist(),
            stamps.offsets.tolist(),
            strict=True,
        )
        passes = (
            self.accept(Stamp(pid, part, offset) if valid else None) for valid, pid, part, offset in rows
        )
        return np.fromiter(passes, np.bool_, len(stamps.valid))


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of s sources, sorted by (pid, partition); all columns have length s.

    ``pid`` int64, ``partition`` int32, ``mark`` int64, ``seen`` int64: batch time when last seen, in
    microseconds, ``gaps`` int64: jumps counted, ``place`` int64: hash of the input partition last seen
    in, ``spread`` bool: whether it was seen in more than one (a stamping producer never does that).
    """

    pid: NDArray[np.int64]
    partition: NDArray[np.int32]
    mark: NDArray[np.int64]
    seen: NDArray[np.int64]
    gaps: NDArray[np.int64]
    place: NDArray[np.int64]
    spread: NDArray[np.bool_]

    @classmethod
    def empty(cls) -> Marks:
        """No marks at all."""
        return cls(**{name: np.zeros(0, dtype) for name, dtype in MARK_DTYPES.items()})

    def columns(self) -> Columns:
        """The columns by name, as they are kept in the state."""
        return {name: getattr(self, name) for name in MARK_DTYPES}

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Marks:
        """The marks of these rows."""
        return Marks(**{name: column[rows] for name, column in self.columns().items()})

    def without_idle(self, batch_time_us: int, ttl_us: int) -> Marks:
        """The marks seen within the last ``ttl_us`` microseconds before ``batch_time_us``."""
        alive = self.seen >= batch_time_us - ttl_us
        return self if alive.all() else self.take(alive)

    def as_dict(self) -> dict[tuple[int, int], int]:
        """(pid, partition) -> mark, for people and tests."""
        sources = zip(self.pid.tolist(), self.partition.tolist(), strict=True)
        return dict(zip(sources, self.mark.tolist(), strict=True))


MARK_DTYPES = {
    "pid": np.int64, "partition": np.int32, "mark": np.int64, "seen": np.int64,
    "gaps": np.int64, "place": np.int64, "spread": np.bool_,
}  # fmt: skip

_SOURCE = np.dtype([("pid", np.int64), ("partition", np.int32)])


class BatchMarks:
    """The marks while one batch is decided.

    Give it the frames of a batch in the order (topic, partition, first), one after the other;
    :meth:`replays` answers for each, :meth:`result` gives the marks after the batch.
    """

    def __init__(self, marks: Marks, frames: list[Frame], batch_time_us: int) -> None:
        table = _sources(marks.pid, marks.partition)
        named = [_sources(frame.pids, frame.partitions) for frame in frames]
        sources, index = np.unique(np.concatenate([table, *named]), return_inverse=True)
        at, ends = index[: len(table)], np.cumsum([len(table), *map(len, named)])
        self._frame_sources = [index[a:b] for a, b in pairwise(ends)]
        columns: Columns = {name: np.zeros(len(sources), dtype) for name, dtype in MARK_DTYPES.items()}
        for name, column in marks.columns().items():
            columns[name][at] = column
        columns["pid"], columns["partition"] = sources["pid"].copy(), sources["partition"].copy()
        self._after = Marks(**columns)
        self._known_before = np.zeros(len(sources), np.bool_)
        self._known_before[at] = True
        self._known = self._known_before.copy()
        self._before = self._after.mark.copy()
        self._time = batch_time_us
        self._input: tuple[str, int] | None = None
        self.gaps = 0

    def replays(self, number: int, frame: Frame) -> NDArray[np.bool_]:
        """bool[n]: which rows of the frame, the ``number``-th given, are replays."""
        if self._input != (frame.topic, frame.partition):
            self._input = (frame.topic, frame.partition)
            place = f"{frame.topic}\0{frame.partition}".encode()
            self._place = xxhash.xxh3_64_intdigest(place) >> 1
            self._carry, self._carry_known = self._before.copy(), self._known_before.copy()
        replays = np.zeros(len(frame.row), np.bool_)
        stamped = np.flatnonzero(frame.source != NO_SOURCE)
        if not len(stamped):
            return replays
        source = self._frame_sources[number][frame.source[stamped]]
        offset, flags = frame.offset[stamped], frame.flags[stamped]
        mark, known = self._carry[source], self._carry_known[source]
        replay = known & (offset <= mark)
        beyond = offset > mark + 1  # mark at the end of int64 wraps, but then the row is a replay
        gap = ~replay & (((flags & JUMP) != 0) & (~known | beyond) | ((flags & FIRST) != 0) & known & beyond)
        replays[stamped] = replay
        np.add.at(self._after.gaps, source, gap)
        self.gaps += int(gap.sum())
        self._advance(self._frame_sources[number], source, offset)
        return replays

    def _advance(
        self, sources: NDArray[np.intp], source: NDArray[np.intp], offset: NDArray[np.int64]
    ) -> None:
        after = self._after
        top = np.full(len(sources), np.iinfo(np.int64).min)
        position = np.searchsorted(sources, source)
        np.maximum.at(top, position, offset)
        for known, mark in ((self._carry_known, self._carry), (self._known, after.mark)):
            mark[sources] = np.where(known[sources], np.maximum(mark[sources], top), top)
        moved = self._known[sources] & (after.place[sources] != self._place)
        after.spread[sources] |= moved
        after.place[sources] = self._place
        after.seen[sources] = self._time
        self._known[sources] = self._carry_known[sources] = True

    def result(self) -> Marks:
        """The marks after the batch."""
        return self._after


def _sources(pids: NDArray[np.int64], partitions: NDArray[np.int32]) -> NDArray[np.void]:
    table = np.empty(len(pids), _SOURCE)
    table["pid"], table["partition"] = pids, partitions
    return table
