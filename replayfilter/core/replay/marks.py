"""Highwater marks: the highest offset already accepted from each source.

A stamping producer writes the records of a source in offset order. A record at or below the highest
accepted offset was therefore accepted before: it is a replay.

Rules, for one source (pid, source partition):
- without a mark: accept, and set the mark. Offset above the mark: accept, and advance the mark. Otherwise
  the record is a replay;
- records without a stamp pass, and are counted;
- an accepted offset above mark + 1 is a gap. Gaps are legal, because sources may be filtered or compacted.
  They are counted;
- while a batch is decided, each input partition sees the marks before the batch and its own earlier
  records. After the batch a mark is the largest over all input partitions;
- a mark whose source was not seen for longer than the time to live is forgotten, but only after a batch
  that had all records that could be read, and after these are decided: what has not been read yet may be
  from the source.

Idleness is measured in *mark time*. It advances with the batch time, by an hour at most from one batch to
the next, and it never goes back. So neither a downtime nor a wrong clock makes a source idle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.columns import Columns
from replayfilter.core.frames import FIRST, JUMP, NO_SOURCE
from replayfilter.core.input_partition import partition_hash
from replayfilter.core.part_groups import PartGroup, Parts
from replayfilter.core.stamp import Stamp, Stamps


class ReplayFilter:
    """Finds replays, one record at a time or many: the filter for a plain consumer.

    ``marks`` maps (pid, source partition) to the highest accepted offset. ``gaps`` and ``unstamped`` count
    gaps, and records without a stamp.

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
        """Whether the record is no replay; if so, the mark of its source advances. None: no stamp."""
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
        """The same for n records in input order: bool[n], whether each is no replay."""
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
    """The marks of s sources; all columns have length s.

    - ``pid`` int64, ``partition`` int32: the source. ``mark`` int64.
    - ``seen`` int64: the mark time of the last batch with a record of the source, in microseconds.
    - ``gaps`` int64: gaps counted so far.
    - ``input_hash`` int64: hash of the input partition of the last record. ``spread`` bool: whether the
      source was seen in more than one input partition, which a stamping producer never causes.
    """

    pid: NDArray[np.int64]
    partition: NDArray[np.int32]
    mark: NDArray[np.int64]
    seen: NDArray[np.int64]
    gaps: NDArray[np.int64]
    input_hash: NDArray[np.int64]
    spread: NDArray[np.bool_]

    @classmethod
    def empty(cls) -> Marks:
        """No marks."""
        return cls.zeros(0)

    @classmethod
    def zeros(cls, n: int) -> Marks:
        """``n`` rows of zeros, to be filled in."""
        return cls(*(np.zeros(n, dtype) for _, _, dtype in _COLUMNS))

    @classmethod
    def from_columns(cls, columns: Columns) -> Marks:
        """The marks that :meth:`columns` gave; other columns may be beside them."""
        return cls(*(columns[name] for _, name, _ in _COLUMNS))

    def columns(self) -> Columns:
        """The columns by the names that they have in the state."""
        return {name: getattr(self, field) for field, name, _ in _COLUMNS}

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Marks:
        """The marks of these rows."""
        return Marks(*(getattr(self, field)[rows] for field, _, _ in _COLUMNS))

    def as_dict(self) -> dict[tuple[int, int], int]:
        """(pid, partition) -> mark, for messages and tests."""
        sources = zip(self.pid.tolist(), self.partition.tolist(), strict=True)
        return dict(zip(sources, self.mark.tolist(), strict=True))


_COLUMNS: tuple[tuple[str, str, type[np.generic]], ...] = (  # field, name in the state, dtype
    ("pid", "pid", np.int64),
    ("partition", "partition", np.int32),
    ("mark", "mark", np.int64),
    ("seen", "seen", np.int64),
    ("gaps", "gaps", np.int64),
    ("input_hash", "place", np.int64),
    ("spread", "spread", np.bool_),
)

_SOURCE = np.dtype([("pid", np.int64), ("partition", np.int32)])


class FoundMarks(NamedTuple):
    """What is known of n sources.

    - ``marks``: their marks, zeros where there is none. ``known`` bool[n]: whether there is one.
    - ``stored`` bool[n]: whether there is a row for the source, though its mark may be forgotten. ``spread``:
      how many of these rows say that their source is spread.
    """

    marks: Marks
    known: NDArray[np.bool_]
    stored: NDArray[np.bool_]
    spread: int


Find = Callable[[NDArray[np.int64], NDArray[np.int32]], FoundMarks]


class BatchMarks:
    """The marks of the batch's sources while it is decided.

    Call :meth:`replays` for each group of ``parts``, then :meth:`result` for the marks after the batch.
    ``before``: what ``find`` gave, which is called once. ``gaps``: the gaps so far.
    """

    def __init__(self, parts: Parts, find: Find, mark_time_us: int) -> None:
        pids, partitions, inputs = parts.sources
        named = np.flatnonzero(inputs >= 0)
        sources, index = np.unique(_sources(pids[named], partitions[named]), return_inverse=True)
        self.before = find(sources["pid"], sources["partition"])
        self._time = mark_time_us
        self._hashes = np.array([partition_hash(*each) for each in parts.inputs], np.int64)
        # Input partitions don't see each other's records: each has a *view* of the marks of its sources.
        # Views are sorted by source, and then by input partition.
        views, view = np.unique(index * len(parts.inputs) + inputs[named], return_inverse=True)
        self._view_of = np.full(len(pids), -1)
        self._view_of[named] = view
        self._source, self._input = np.divmod(views, max(1, len(parts.inputs)))
        self._known = self.before.known[self._source]
        self._mark = np.where(self._known, self.before.marks.mark[self._source], np.iinfo(np.int64).min)
        self._gaps = np.zeros(len(views), np.int64)
        self.gaps = 0

    def replays(self, group: PartGroup) -> NDArray[np.bool_]:
        """bool[n]: which rows of the group are replays."""
        replays = np.zeros(len(group.row), np.bool_)
        stamped = np.flatnonzero(group.source != NO_SOURCE)
        view = self._view_of[group.source[stamped]]
        offset, flags = group.offset[stamped], group.flags[stamped]
        mark, known = self._mark[view], self._known[view]
        replay = known & (offset <= mark)
        beyond = offset > mark + 1  # the largest int64 wraps around, but then every row is a replay
        gap = ~replay & (((flags & JUMP) != 0) & (~known | beyond) | ((flags & FIRST) != 0) & known & beyond)
        replays[stamped] = replay
        np.add.at(self._gaps, view[gap], 1)
        self.gaps += int(gap.sum())
        np.maximum.at(self._mark, view, offset)
        self._known[view] = True
        return replays

    def result(self) -> Marks:
        """The marks of the batch's sources after the batch."""
        before = self.before.marks
        if not len(self._source):
            return before
        starts = np.flatnonzero(np.diff(self._source, prepend=-1))
        hashes = self._hashes[self._input]
        moved = np.ones(len(hashes), np.bool_)
        moved[1:] = hashes[1:] != hashes[:-1]
        moved[starts] = self.before.known & (before.input_hash != hashes[starts])
        return replace(
            before,
            mark=np.maximum.reduceat(self._mark, starts),
            seen=np.full(len(starts), self._time),
            gaps=before.gaps + np.add.reduceat(self._gaps, starts),
            input_hash=hashes[np.append(starts[1:], len(hashes)) - 1],
            spread=before.spread | np.logical_or.reduceat(moved, starts),
        )


def _sources(pids: NDArray[np.int64], partitions: NDArray[np.int32]) -> NDArray[np.void]:
    table = np.empty(len(pids), _SOURCE)
    table["pid"], table["partition"] = pids, partitions
    return table
