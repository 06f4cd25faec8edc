"""The state of a shard: what it must remember from one batch to the next.

All shards together remember each dedup key once: a key belongs to one shard. What every shard needs for
its decisions is in all of them, and the same in all of them: marks, the latest point, categories and the
low watermark.

The state is one block of bytes (see ``columns.py``). The runs themselves, of keys and of marks, are not in
it: the state has only their directory, and a run is read by its name when it is needed. The names of columns
and fields are part of every checkpoint and older than those of the attributes, so some differ: ``places``,
``edits``, ``tide``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from replayfilter.core.batch_facts import CLOCK_STEP_US
from replayfilter.core.buckets import Entry, RunStore, directory_columns, directory_entries
from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.columns import Columns, pack, unpack
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.key_run import cached_size
from replayfilter.core.replay.mark_changes import MarkChange, due_changes
from replayfilter.core.replay.mark_table import MarkTable
from replayfilter.core.watermark.watermark_state import WatermarkState

STATE_VERSION = 2
READABLE = (1, STATE_VERSION)  # version 1 has all marks in the block, and no times


@dataclass(frozen=True, slots=True)
class ShardState:
    """Everything that a shard remembers.

    - ``latest``: the latest point. ``marks``: the mark of every source (see mark_table.py).
    - ``runs``: the directory of the shard's own runs, by bucket.
    - ``categories``: with clock ``categorical`` only.
    - ``partitions``: the input partitions of first records, which keys refer to by index.
    - ``watermark``: where a low watermark is kept.
    - ``applied_changes``: how many mark changes have been applied so far.
    - ``time_us``: the time of the last batch. ``mark_time_us``: the mark time after it (see marks.py).
    """

    latest: int
    marks: MarkTable = field(default_factory=MarkTable)
    runs: dict[int, list[Entry]] = field(default_factory=dict)
    categories: Columns | None = None
    partitions: tuple[InputPartition, ...] = ()
    watermark: WatermarkState | None = None
    applied_changes: int = 0
    time_us: int = UNKNOWN
    mark_time_us: int = UNKNOWN

    @classmethod
    def empty(cls) -> ShardState:
        """The state before the first record."""
        return cls(UNKNOWN)

    def at(self, time_us: int) -> ShardState:
        """The state when a batch begins at this time: mark time has advanced."""
        if self.time_us == UNKNOWN:
            return replace(self, time_us=time_us, mark_time_us=time_us)
        step = min(max(0, time_us - self.time_us), CLOCK_STEP_US)
        return replace(self, time_us=time_us, mark_time_us=self.mark_time_us + step)

    def with_changes(
        self, changes: Sequence[MarkChange], batch: int, batch_time_us: int, store: RunStore
    ) -> ShardState:
        """The state after the mark changes that are due at the batch with number ``batch``."""
        due, state = due_changes(changes, self.applied_changes, batch), self.at(batch_time_us)
        marks = self.marks.with_changes(due, state.mark_time_us, store)
        return replace(state, marks=marks, applied_changes=self.applied_changes + len(due))

    def columns(self) -> Columns:
        """The columns of the block; a few single values are beside them."""
        return {
            **self.marks.columns(),
            **directory_columns(self.runs.values()),
            **(self.categories or {}),
            **(self.watermark.columns() if self.watermark is not None else {}),
        }

    @property
    def keys(self) -> int:
        """Number of dedup keys remembered."""
        return sum(entry.keys for entries in self.runs.values() for entry in entries)

    @property
    def memory(self) -> int:
        """Bytes in a worker's memory: the runs as a cache maps them, and the columns."""
        entries = chain(self.marks.runs, *self.runs.values())
        runs = (cached_size(entry.keys, entry.size) for entry in entries)
        return sum(runs) + sum(column.nbytes for column in self.columns().values())

    def to_bytes(self) -> bytes:
        """The state as a column block."""
        meta = {
            "version": STATE_VERSION,
            "latest": self.latest,
            "places": self.partitions,
            "edits": self.applied_changes,
            "marks": self.marks.meta(),
            "time_us": self.time_us,
            "mark_time_us": self.mark_time_us,
        }
        return pack(
            self.columns(), meta | ({"tide": self.watermark.meta()} if self.watermark is not None else {})
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> ShardState:
        """Read a state. Raises ``ValueError`` for other bytes, or for a state of another version."""
        columns, meta = unpack(data)
        if meta["version"] not in READABLE:
            raise ValueError(f"shard state has version {meta['version']}, this program reads {READABLE}")
        marks = MarkTable.restore(columns, meta.get("marks"))
        last_seen = int(marks.recent.seen.max(initial=UNKNOWN))  # batch times, where there are no others
        return cls(
            latest=meta["latest"],
            marks=marks,
            runs=directory_entries(columns),
            categories={name: column for name, column in columns.items() if name.startswith("category_")}
            or None,
            partitions=tuple((topic, partition) for topic, partition in meta["places"]),
            watermark=WatermarkState.restore(columns, meta["tide"]) if "tide" in meta else None,
            applied_changes=meta.get("edits", 0),
            time_us=meta.get("time_us", last_seen),
            mark_time_us=meta.get("mark_time_us", last_seen),
        )
