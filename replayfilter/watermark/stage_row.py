"""One row of the table: a stage with its roster, its input partitions, and what is not written yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.watermark.low_watermark import NO_PARTITION, LowWatermark
from replayfilter.watermark.api import MAX_NAMES
from replayfilter.watermark.server_config import StageConfig
from replayfilter.watermark.snapshots import PartitionReport

DeclaredBy = Literal["config", "request"]  # who put an origin into the roster


@dataclass(frozen=True, slots=True)
class StoredOrigin:
    """An origin as the store has it; ``partition``: the one that brought its progress."""

    name: str
    progress: int
    since_us: int
    idle: bool
    partition: str | None
    declared_by: DeclaredBy


class StageRow:
    """A stage, as reports and requests change it.

    ``changed`` is set by each change, and cleared by the table once a snapshot has it. The names in
    ``changed_origins``, ``removed_origins`` and ``changed_partitions`` are not written to the store yet.
    """

    def __init__(self, config: StageConfig) -> None:
        self.config = config
        self.roster = LowWatermark(config.completeness, idle_when_caught_up=config.idle == "backlog")
        self.since_us = np.zeros(0, np.int64)
        self.declared_by: dict[str, DeclaredBy] = {}
        self.partitions: dict[str, PartitionReport] = {}
        self.moved_us: int | None = None
        self.unknown_origins: dict[str, int] = {}
        self.errors: tuple[str, ...] = ()
        self.changed = True
        self.changed_origins: set[str] = set()
        self.removed_origins: set[str] = set()
        self.changed_partitions: set[str] = set()
        self._partition_numbers: dict[str, int] = {}
        self._names: tuple[str, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the roster; the same object until the roster changes."""
        if self._names is None:
            self._names = tuple(self.roster.names)
        return self._names

    def restore(self, origins: Sequence[StoredOrigin], partitions: Mapping[str, PartitionReport]) -> None:
        """Set what the store has."""
        names = [origin.name for origin in origins]
        self.roster.add(names)
        self.roster.advance(names, [origin.progress for origin in origins])
        self.roster.declare_idle([origin.name for origin in origins if origin.idle])
        self.roster.partition[:] = [
            NO_PARTITION if origin.partition is None else self._number_of(origin.partition)
            for origin in origins
        ]
        self.since_us = np.array([origin.since_us for origin in origins], np.int64)
        self.declared_by = {origin.name: origin.declared_by for origin in origins}
        for name, partition in partitions.items():
            self.partitions[name] = partition
            self.roster.set_caught_up(self._number_of(name), partition.backlog == 0)

    # ---- the roster ------------------------------------------------------------------------------

    def add(self, names: Iterable[str], declared_by: DeclaredBy) -> int:
        """Add origins to the roster; returns how many were new."""
        new = self.roster.add(names)
        self.since_us = np.append(self.since_us, np.zeros(len(new), np.int64))
        self.declared_by |= dict.fromkeys(new, declared_by)
        self._names = None
        self._mark_changed(new)
        self.removed_origins.difference_update(new)
        return len(new)

    def remove(self, names: Sequence[str]) -> int:
        """Remove origins from the roster; returns how many were in it."""
        rows = self.roster.find(names)
        keep = np.ones(len(self.roster), np.bool_)
        keep[rows[rows >= 0]] = False
        removed = self.roster.remove(names)
        self.since_us = self.since_us[keep]
        for name in removed:
            del self.declared_by[name]
        self.changed_origins.difference_update(removed)
        self.removed_origins.update(removed)
        self._names, self.changed = None, True
        return len(removed)

    def declare(self, names: Sequence[str]) -> tuple[int, int]:
        """Make these the origins that the config declares; returns (added, removed).

        Origins that were added by request stay.
        """
        declared = set(names)
        obsolete = [name for name, by in self.declared_by.items() if by == "config" and name not in declared]
        removed, added = self.remove(obsolete), self.add(names, "config")
        adopted = [name for name in declared if self.declared_by[name] != "config"]
        self.declared_by |= dict.fromkeys(adopted, "config")
        self._mark_changed(adopted)
        return added, removed

    def declare_idle(self, names: Sequence[str], idle: bool) -> list[str]:
        """Declare origins idle, or active again; returns the names that are not in the roster."""
        absent = self.roster.declare_idle(names, idle)
        self._mark_changed(name for name in names if name in self.roster)
        return absent

    # ---- reports ---------------------------------------------------------------------------------

    def advance(self, origins: Mapping[str, int], partition: str, now_us: int) -> list[str]:
        """Advance the progress of origins; returns the names that are not in the roster."""
        names, times = list(origins), np.fromiter(origins.values(), np.int64, len(origins))
        result = self.roster.advance(names, times, self._number_of(partition))
        self.since_us[result.advanced] = now_us
        self._mark_changed(self.roster.names[row] for row in result.advanced.tolist())
        for name in result.unknown:
            if name in self.unknown_origins or len(self.unknown_origins) < MAX_NAMES:
                self.unknown_origins[name] = origins[name]
        return result.unknown

    def accept(self, name: str, report: PartitionReport) -> bool:
        """Keep the report of a partition; False if a later one came before it.

        A late report only counts for ``low``, which never decreases.
        """
        previous = self.partitions.get(name)
        fresh = previous is None or (report.session, report.sequence) >= (previous.session, previous.sequence)
        kept = report if fresh else previous
        assert kept is not None
        lows = [each.low for each in (previous, report) if each is not None and each.low is not None]
        self.partitions[name] = replace(kept.after(previous), low=max(lows, default=None))
        self.roster.set_caught_up(self._number_of(name), kept.backlog == 0)
        self.changed_partitions.add(name)
        self.changed = True
        return fresh

    def forget_partition(self, name: str) -> None:
        """Forget the reports of a partition."""
        del self.partitions[name]
        self.roster.set_caught_up(self._number_of(name), False)
        self.changed_partitions.add(name)
        self.changed = True

    # ---- what the watermark is computed from -----------------------------------------------------

    def own_low(self) -> int | None:
        """The input low from the roster and the partitions, without upstream stages.

        None if the stage is silent: it has no roster, and no partition has reported a low.
        """
        bounds = [self.roster.settle()] if self.config.has_roster else []
        lows = [partition.low for partition in self.partitions.values() if partition.low is not None]
        if len(lows) < self.config.partitions:
            bounds.append(UNKNOWN)
        return min([*bounds, *lows], default=None)

    def oldest_work(self) -> int | None:
        """The event time of the oldest unfinished record; None if there is none."""
        times = (partition.oldest for partition in self.partitions.values())
        return min((time for time in times if time is not None), default=None)

    def largest_time(self) -> int:
        """The largest event time in this stage's reports."""
        times = [partition.low for partition in self.partitions.values()]
        times += [each.laggards.front for each in self.partitions.values() if each.laggards is not None]
        return max([int(self.roster.progress.max(initial=UNKNOWN)), *(t for t in times if t is not None)])

    def stored_origins(self, names: Iterable[str]) -> list[StoredOrigin]:
        """Origins, as the store keeps them."""
        chosen = list(names)
        rows = self.roster.find(chosen)
        partitions = {number: name for name, number in self._partition_numbers.items()}
        roster = self.roster
        columns = (roster.progress[rows], self.since_us[rows], roster.idle[rows], roster.partition[rows])
        return [
            StoredOrigin(name, progress, since, idle, partitions.get(number), self.declared_by[name])
            for name, progress, since, idle, number in zip(
                chosen, *(column.tolist() for column in columns), strict=True
            )
        ]

    def _number_of(self, partition: str) -> int:
        """The number by which the roster knows a partition."""
        return self._partition_numbers.setdefault(partition, len(self._partition_numbers))

    def _mark_changed(self, names: Iterable[str]) -> None:
        self.changed_origins.update(names)
        self.changed = True
