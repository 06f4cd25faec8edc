"""The state of a shard, rebuilt from what was delivered.

What a shard remembers depends on the routes of its records, but not on the batches that they came in:

- *keys*: those of the unique records, with their expiry keys, unless their bucket has expired. With
  ``refresh`` also those of the duplicates: the largest expiry key of a key counts;
- *latest point*: the largest expiry key of a unique or duplicate record. Expired records are behind it, and
  errors don't move it. With clock ``system`` it is the time of the rebuild;
- *marks*: the highest offset of each source, among all records that are no errors of decode. A replay isn't
  above its mark, so it makes no difference.

So the same state comes from these records in any order, for any number of shards, and with another key,
period or bucket span than the records were decided by.

What can't be rebuilt: how long a source has been idle (each counts as seen at the time of the rebuild), how
many gaps it had, and marks that were changed or forgotten (the highest offset counts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.buckets import MAX_RUN_KEYS, Buckets, RunStore
from replayfilter.core.clock.clocks import Clock
from replayfilter.core.clock.units import UNKNOWN, time_in_unit
from replayfilter.core.columns import Columns, pack, unpack
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.replay.mark_table import MarkTable
from replayfilter.core.replay.marks import Marks
from replayfilter.core.rules import Rules
from replayfilter.core.state import ShardState

JOINED_MARKS = 100_000  # marks that are collected before those of the same source are joined


@dataclass(frozen=True, slots=True)
class Keys:
    """k dedup keys of one shard.

    ``hi``, ``lo`` uint64[k]: digests, as the shard remembers them. ``expiry`` int64[k]: expiry keys.
    ``kept``: what else is remembered of each, as columns of a run (see key_run.py). The index of an input
    partition is that in the list which the rebuild has.
    """

    hi: NDArray[np.uint64]
    lo: NDArray[np.uint64]
    expiry: NDArray[np.int64]
    kept: Columns

    @classmethod
    def none(cls) -> Keys:
        """No keys."""
        return cls(np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.int64), {})

    @classmethod
    def joined(cls, parts: Sequence[Keys]) -> Keys:
        """The keys of all parts, which keep the same columns."""
        given = [part for part in parts if len(part.hi)] or [cls.none()]
        kept = {name: np.concatenate([part.kept[name] for part in given]) for name in given[0].kept}
        hi, lo, expiry = (np.concatenate([getattr(part, name) for part in given]) for name in _KEY)
        return cls(hi, lo, expiry, kept)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Keys:
        """The keys of these rows."""
        kept = {name: column[rows] for name, column in self.kept.items()}
        return Keys(self.hi[rows], self.lo[rows], self.expiry[rows], kept)


_KEY = ("hi", "lo", "expiry")
_KEPT = "kept_"


@dataclass(frozen=True, slots=True)
class Delivered:
    """What one shard must know of some records: its own ``keys``, and what every shard must know.

    ``latest``: the largest expiry key that moves the latest point. ``marks``: by source the highest offset,
    and where it was; ``seen`` and ``gaps`` mean nothing. ``counts``: what is counted, once for all shards.
    """

    keys: Keys = field(default_factory=Keys.none)
    latest: int = UNKNOWN
    marks: Marks = field(default_factory=Marks.empty)
    counts: dict[str, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """All of it as a column block."""
        columns = {name: getattr(self.keys, name) for name in _KEY} | self.marks.columns()
        kept = {_KEPT + name: column for name, column in self.keys.kept.items()}
        return pack(columns | kept, {"latest": self.latest, "counts": self.counts})

    @classmethod
    def from_bytes(cls, data: bytes) -> Delivered:
        """Read what :meth:`to_bytes` gave."""
        columns, meta = unpack(data)
        kept = {name.removeprefix(_KEPT): columns[name] for name in columns if name.startswith(_KEPT)}
        keys = Keys(columns["hi"], columns["lo"], columns["expiry"], kept)
        return cls(keys, meta["latest"], Marks.from_columns(columns), meta["counts"])


class RebuiltShard:
    """The state of one shard while it is rebuilt: :meth:`add` what was delivered, then take the ``state``.

    ``store`` must be empty. ``time_us``: the time of the rebuild, in microseconds since the epoch.
    ``inputs``: the input partitions that keys refer to by index; empty unless first records are remembered.
    """

    def __init__(
        self, rules: Rules, store: RunStore, time_us: int, inputs: Sequence[InputPartition] = ()
    ) -> None:
        self._rules, self._store, self._time_us, self._inputs = rules, store, time_us, tuple(inputs)
        self._buckets = Buckets(rules, store)
        self._latest = UNKNOWN
        if rules.dedup and rules.clock is Clock.SYSTEM:
            self._latest = time_in_unit(time_us, rules.unit)
        self._keys: list[Keys] = []
        self._waiting = 0
        self._marks = [Marks.empty()]

    def add(self, delivered: Delivered) -> None:
        """Remember what was delivered. Parts may come in any order."""
        if self._rules.clock.moved_by_records:
            self._latest = max(self._latest, delivered.latest)
        self._marks.append(delivered.marks)
        if sum(len(marks.mark) for marks in self._marks[1:]) > JOINED_MARKS:
            self._marks = [highest_marks(self._marks)]
        if len(delivered.keys.hi):
            self._keys.append(delivered.keys)
            self._waiting += len(delivered.keys.hi)
        if self._waiting >= MAX_RUN_KEYS:
            self._remember_keys()

    def state(self) -> ShardState:
        """The state after all that was added."""
        self._remember_keys()
        marks = highest_marks(self._marks)
        marks = replace(marks, seen=np.full(len(marks.mark), self._time_us), gaps=np.zeros_like(marks.gaps))
        empty = MarkTable()
        before = empty.find(marks.pid, marks.partition, self._store)
        return ShardState(
            latest=self._latest,
            marks=empty.with_changed(marks, before, self._store),
            runs=self._buckets.entries,
            partitions=self._inputs,
            time_us=self._time_us,
            mark_time_us=self._time_us,
        )

    def _remember_keys(self) -> None:
        keys = Keys.joined(self._keys)
        bucket = self._buckets.bucket_of(keys.hi, keys.expiry)
        if self._rules.clock.has_latest_point:
            self._buckets.evict(self._latest)
            kept = [at for at in np.unique(bucket).tolist() if not self._buckets.is_expired(at, self._latest)]
            alive = np.isin(bucket, kept)
            keys, bucket = keys.take(alive), bucket[alive]
        order = np.lexsort((keys.lo, keys.hi))
        keys, bucket = keys.take(order), bucket[order]
        self._buckets.add(keys.hi, keys.lo, keys.expiry, bucket, keys.kept)
        self._keys, self._waiting = [], 0


def highest_marks(parts: Sequence[Marks]) -> Marks:
    """The highest mark of each source, by source; a source is spread if its input partitions differ."""
    columns = (np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Marks))
    marks = Marks(*columns)
    marks = marks.take(np.lexsort((marks.mark, marks.partition, marks.pid)))
    if not len(marks.mark):
        return marks
    changes = np.ones(len(marks.mark), np.bool_)
    changes[1:] = (marks.pid[1:] != marks.pid[:-1]) | (marks.partition[1:] != marks.partition[:-1])
    moved = ~changes
    moved[1:] &= marks.input_hash[1:] != marks.input_hash[:-1]
    starts = np.flatnonzero(changes)
    spread = np.logical_or.reduceat(marks.spread | moved, starts)
    return replace(marks.take(np.append(starts[1:], len(marks.mark)) - 1), spread=spread)
