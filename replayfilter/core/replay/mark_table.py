"""The marks of all sources, so that a batch costs what it changes and not what there is.

The marks that changed last are part of the shard's state. When there are many, they become a *run*, sorted
and immutable, in the same store as the runs of dedup keys and merged in the same way: see ``buckets.py`` and
``key_run.py``. Where a source is in several runs, the newest one is right.

An idle mark is forgotten at once: marks that were last seen before the *horizon* don't count. They take space
until all runs are merged, at the latest when the oldest is a quarter of the time to live too old.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.buckets import (
    Entry,
    RunStore,
    directory_columns,
    directory_entries,
    keep_run,
    merge_from,
)
from replayfilter.core.clock.units import INT64_MAX, INT64_MIN
from replayfilter.core.columns import Columns
from replayfilter.core.key_run import Run, bloom_masks
from replayfilter.core.replay.mark_changes import MarkChange
from replayfilter.core.replay.marks import FoundMarks, Marks

RECENT_MARKS = 1_024  # in the state itself, at most: 50 kB that each batch reads and writes
_BUCKET = INT64_MAX  # in the names of runs; behind the buckets of keys in a store that is sorted by name
_PREFIX = "mark_run"
FORGOTTEN = INT64_MIN  # ``seen`` of a mark that was forgotten by hand: before any horizon


@dataclass(frozen=True, slots=True)
class MarkTable:
    """The marks of a shard, as its state has them.

    - ``recent``: the marks that changed last. ``runs``: the others, oldest first.
    - ``horizon``: marks last seen before it are forgotten. ``oldest``: no mark in a run was last seen before.
    - ``sources``: how many sources have a row; ``spread``: how many of them are spread.
    """

    recent: Marks = field(default_factory=Marks.empty)
    runs: tuple[Entry, ...] = ()
    horizon: int = FORGOTTEN
    oldest: int = INT64_MAX
    sources: int = 0
    spread: int = 0

    @classmethod
    def of(cls, marks: Marks) -> MarkTable:
        """A table of these marks."""
        return cls(marks, sources=len(marks.mark), spread=int(marks.spread.sum()))

    def find(self, pids: NDArray[np.int64], partitions: NDArray[np.int32], store: RunStore) -> FoundMarks:
        """Find n sources, each given once."""
        hi, lo = _digests(pids, partitions)
        order = np.lexsort((lo, hi))
        hi, lo = hi[order], lo[order]
        masks = bloom_masks(lo)
        marks, stored = Marks.zeros(len(pids)), np.zeros(len(pids), np.bool_)
        for run in self._newest_first(store):
            missing = np.flatnonzero(~stored[order])
            if not len(missing):
                break
            hits, at, _ = run.search(hi[missing], lo[missing], masks[missing])
            rows = order[missing[hits]]
            for name, column in marks.columns().items():
                column[rows] = run.kept[name][at]
            stored[rows] = True
        known, spread = stored & self._counts(marks), int(marks.spread.sum())
        for column in marks.columns().values():
            column[~known] = 0
        marks.pid[:], marks.partition[:] = pids, partitions
        return FoundMarks(marks, known, stored, spread)

    def with_changed(self, changed: Marks, before: FoundMarks, store: RunStore) -> MarkTable:
        """The table with these marks, which are of the sources that were found ``before``."""
        if not len(changed.mark):
            return self
        recent = Run.merged([_as_run(self.recent), _as_run(changed)])
        table = replace(
            self,
            recent=Marks.from_columns(recent.kept),
            sources=self.sources + int((~before.stored).sum()),
            spread=self.spread + int(changed.spread.sum()) - before.spread,
        )
        if len(recent.hi) <= RECENT_MARKS:
            return table
        return table._merged(merge_from([entry.keys for entry in self.runs], len(recent.hi)), store)

    def with_changes(self, changes: Sequence[MarkChange], mark_time_us: int, store: RunStore) -> MarkTable:
        """The table after changes by hand; a source whose mark is set counts as seen now."""
        last = {(change.pid, change.partition): change.mark for change in changes}
        pids, partitions = (np.array([source[i] for source in last], np.int64) for i in (0, 1))
        before = self.find(pids, partitions.astype(np.int32), store)
        for row, mark in enumerate(last.values()):
            before.marks.mark[row] = mark or 0
            before.marks.seen[row] = FORGOTTEN if mark is None else mark_time_us
        return self.with_changed(before.marks, before, store)

    def without_idle(self, mark_time_us: int, ttl_us: int, store: RunStore) -> MarkTable:
        """The table after all marks are forgotten that are idle for longer than ``ttl_us``."""
        horizon = max(self.horizon, mark_time_us - ttl_us)
        table = replace(self, horizon=horizon)
        if not self.runs:
            return replace(MarkTable.of(table._alive(self.recent)), horizon=horizon)
        return table._merged(0, store) if self.oldest < horizon - ttl_us // 4 else table

    def compacted(self, store: RunStore) -> MarkTable:
        """The table without rows of forgotten marks, so that ``sources`` is exact."""
        return self._merged(0, store) if self.runs else self

    def all(self, store: RunStore) -> Marks:
        """All marks, sorted by source."""
        run = Run.merged([*(_read(entry, store) for entry in self.runs), _as_run(self.recent)])
        marks = self._alive(Marks.from_columns(run.kept))
        return marks.take(np.lexsort((marks.partition, marks.pid)))

    def columns(self) -> Columns:
        """The table's columns in the state."""
        return {**self.recent.columns(), **directory_columns([self.runs], _PREFIX)}

    def meta(self) -> dict[str, int]:
        """The table's numbers in the state."""
        return {name: getattr(self, name) for name in _NUMBERS}

    @classmethod
    def restore(cls, columns: Columns, meta: dict[str, int] | None) -> MarkTable:
        """What :meth:`columns` and :meth:`meta` gave; states of version 1 have only the marks."""
        recent = Marks.from_columns(columns)
        if meta is None:
            return cls.of(recent)
        entries = [entry for run in directory_entries(columns, _PREFIX).values() for entry in run]
        return cls(recent, tuple(entries), **meta)

    def _newest_first(self, store: RunStore) -> Iterator[Run]:
        yield _as_run(self.recent)
        yield from (_read(entry, store) for entry in reversed(self.runs))

    def _counts(self, marks: Marks) -> NDArray[np.bool_]:
        """bool[n]: which marks are not forgotten."""
        kept: NDArray[np.bool_] = (marks.seen >= self.horizon) & (marks.seen != FORGOTTEN)
        return kept

    def _merged(self, first: int, store: RunStore) -> MarkTable:
        """The table with the recent marks and the runs from ``first`` on in one run.

        Forgotten marks are removed only together with all older rows of their sources: if ``first`` is 0.
        """
        old, table = self.runs[first:], self
        run = Run.merged([*(_read(entry, store) for entry in old), _as_run(self.recent)])
        if first == 0:
            run = _as_run(self._alive(Marks.from_columns(run.kept)))
            table = replace(MarkTable.of(Marks.from_columns(run.kept)), horizon=self.horizon)
        if first or len(run.hi) > RECENT_MARKS:
            oldest = min(table.oldest, int(run.kept["seen"].min()))
            entry = keep_run(store, _BUCKET, run)
            table = replace(table, recent=Marks.empty(), runs=(*self.runs[:first], entry), oldest=oldest)
        for entry in old:
            if entry not in table.runs:
                store.drop(entry.name)
        return table

    def _alive(self, marks: Marks) -> Marks:
        alive = self._counts(marks)
        return marks if alive.all() else marks.take(alive)


_NUMBERS = ("horizon", "oldest", "sources", "spread")


def _read(entry: Entry, store: RunStore) -> Run:
    return Run.from_bytes(store.read(entry.name))


def _as_run(marks: Marks) -> Run:
    """The marks sorted by digest, without a Bloom filter."""
    hi, lo = _digests(marks.pid, marks.partition)
    order = np.lexsort((lo, hi))
    return Run(hi[order], lo[order], marks.take(order).columns())


def _digests(
    pids: NDArray[np.int64], partitions: NDArray[np.int32]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """(hi, lo) of each source: other numbers for each source, and spread like hashes."""
    lo = _mixed(partitions.astype(np.int64).view(np.uint64))
    return _mixed(pids.view(np.uint64) ^ lo), lo


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64, which maps no two numbers to the same one."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
