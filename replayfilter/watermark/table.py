"""The table of stages in memory: what reports do to it, and snapshots of it for readers.

It knows no file, clock or thread: the keeper gives it the time, and writes down what it returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.expiry import UNKNOWN
from replayfilter.core.watermark.low_watermark import NOWHERE, LowWatermark
from replayfilter.core.watermark.stages import Lows, Stages
from replayfilter.watermark.api import (
    NAMES,
    Laggards,
    Reported,
    Reports,
    RosterChange,
    RosterChanged,
    StageLows,
)
from replayfilter.watermark.server_config import StageConfig

BY_CONFIG, BY_REQUEST = "config", "request"  # who put an origin into the roster


class Refused(Exception):
    """A request that can't be done; the parts are those of api.Fault, ``status`` is HTTP's."""

    def __init__(self, status: int, error: str, where: str, value: object, remedy: str) -> None:
        super().__init__(f"{error} at {where}: {value}; {remedy}")
        self.status, self.error, self.where = status, error, where
        self.value, self.remedy = str(value), remedy


@dataclass(frozen=True, slots=True)
class Partition:
    """What was last said of an input partition; ``session`` and ``sequence`` of who said it.

    ``laggards``: which origins hold ``low`` back, and ``since_us`` by origin when each was first said to be
    where it is. Neither is stored: after a restart it comes with the next report.
    """

    low: int | None
    oldest: int | None
    backlog: int | None
    session: int
    sequence: int
    reported_us: int
    laggards: Laggards | None = None
    since_us: Mapping[str, int] = field(default_factory=dict)

    def following(self, before: Partition | None) -> Partition:
        """The same, knowing since when each laggard is where it is."""
        if self.laggards is None:
            return self
        since = dict.fromkeys(self.laggards.slowest, self.reported_us)
        if before is not None and before.laggards is not None:
            still = before.laggards.slowest.items() & self.laggards.slowest.items()
            since |= {name: before.since_us[name] for name, _ in still}
        return replace(self, since_us=since)


@dataclass(frozen=True, slots=True)
class OriginRow:
    """An origin as it is stored."""

    name: str
    progress: int
    since_us: int
    idle: bool
    place: str | None
    declared_by: str


@dataclass(frozen=True, slots=True)
class StageView:
    """A stage as readers see it; the arrays are copies in the order of ``names``."""

    config: StageConfig
    lows: Lows
    upstream_low: int | None
    moved_us: int | None
    front: int
    names: Sequence[str]
    progress: NDArray[np.int64]
    since_us: NDArray[np.int64]
    idle: NDArray[np.bool_]
    active: NDArray[np.bool_]
    may_lag: int
    roster_low: int | None
    partitions: Mapping[str, Partition]
    unknown: Mapping[str, int]
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """The table at one moment, all of it on disk already."""

    at_us: int
    overall: int
    stages: Mapping[str, StageView]


class StageRow:
    """One stage while it changes: its roster, partitions and lows, and what is yet to be written."""

    def __init__(self, config: StageConfig) -> None:
        self.config = config
        self.roster = LowWatermark(config.completeness, idle_when_caught_up=config.idle == "backlog")
        self.since_us = np.zeros(0, np.int64)
        self.declared_by: dict[str, str] = {}
        self.partitions: dict[str, Partition] = {}
        self.places: dict[str, int] = {}
        self.moved_us: int | None = None
        self.unknown: dict[str, int] = {}
        self.faults: tuple[str, ...] = ()
        self.changed_origins: set[str] = set()
        self.removed_origins: set[str] = set()
        self.changed_partitions: set[str] = set()
        self.stale_view = True
        self._names: tuple[str, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The roster, the same object until it changes."""
        if self._names is None:
            self._names = tuple(self.roster.names)
        return self._names

    def load(self, origins: Sequence[OriginRow], partitions: Mapping[str, Partition]) -> None:
        """Take up what was stored."""
        names = [row.name for row in origins]
        self.roster.add(names)
        self.roster.advance(names, [row.progress for row in origins])
        self.roster.declare_idle([row.name for row in origins if row.idle])
        places = [NOWHERE if row.place is None else self.place(row.place) for row in origins]
        self.roster.place[:] = places
        self.since_us = np.array([row.since_us for row in origins], np.int64)
        self.declared_by = {row.name: row.declared_by for row in origins}
        for name, partition in partitions.items():
            self.partitions[name] = partition
            self.roster.set_caught_up(self.place(name), partition.backlog == 0)

    def place(self, partition: str) -> int:
        """The number by which the roster knows a partition."""
        return self.places.setdefault(partition, len(self.places))

    def add(self, names: Iterable[str], declared_by: str) -> int:
        """Expect these origins; how many were new."""
        new = self.roster.add(names)
        self.since_us = np.append(self.since_us, np.zeros(len(new), np.int64))
        self.declared_by |= dict.fromkeys(new, declared_by)
        self._names = None
        self._note(new)
        self.removed_origins.difference_update(new)
        return len(new)

    def remove(self, names: Sequence[str]) -> int:
        """Expect these no longer; how many there were."""
        at = self.roster.find(names)
        keep = np.ones(len(self.roster), np.bool_)
        keep[at[at >= 0]] = False
        gone = self.roster.remove(names)
        self.since_us = self.since_us[keep]
        for name in gone:
            del self.declared_by[name]
        self.changed_origins.difference_update(gone)
        self.removed_origins.update(gone)
        self._names, self.stale_view = None, True
        return len(gone)

    def declare(self, names: Sequence[str]) -> tuple[int, int]:
        """Make the config's origins exactly these; (added, removed). Others' origins stay."""
        wanted = set(names)
        gone = [name for name, by in self.declared_by.items() if by == BY_CONFIG and name not in wanted]
        removed, added = self.remove(gone), self.add(names, BY_CONFIG)
        adopted = [name for name in wanted if self.declared_by[name] != BY_CONFIG]
        self.declared_by |= dict.fromkeys(adopted, BY_CONFIG)
        self._note(adopted)
        return added, removed

    def advance(self, origins: Mapping[str, int], partition: str, now_us: int) -> list[str]:
        """Note the progress of origins; the names that the roster doesn't have."""
        names, times = list(origins), np.fromiter(origins.values(), np.int64, len(origins))
        heard = self.roster.advance(names, times, self.place(partition))
        self.since_us[heard.moved] = now_us
        self._note([self.roster.names[row] for row in heard.moved.tolist()])
        for name in heard.unknown:
            if name in self.unknown or len(self.unknown) < NAMES:
                self.unknown[name] = origins[name]
        return heard.unknown

    def declare_idle(self, names: Sequence[str], idle: bool) -> list[str]:
        """Count origins out or in; the names that the roster doesn't have."""
        absent = self.roster.declare_idle(names, idle)
        self._note([name for name in names if name in self.roster])
        return absent

    def said(self, name: str, partition: Partition) -> bool:
        """Note what is said of a partition; False if later things were said before. Times only rise."""
        before = self.partitions.get(name)
        fresh = before is None or (partition.session, partition.sequence) >= (before.session, before.sequence)
        kept = partition if fresh else before
        assert kept is not None
        lows = [each.low for each in (before, partition) if each is not None and each.low is not None]
        self.partitions[name] = replace(kept.following(before), low=max(lows, default=None))
        self.roster.set_caught_up(self.place(name), kept.backlog == 0)
        self.changed_partitions.add(name)
        self.stale_view = True
        return fresh

    def own(self) -> int | None:
        """What the stage knows itself of its input; None if nothing is declared that could tell."""
        bounds = [self.roster.settle()] if self.config.has_roster else []
        lows = [partition.low for partition in self.partitions.values() if partition.low is not None]
        if len(lows) < self.config.partitions:
            bounds.append(UNKNOWN)
        return min([*bounds, *lows], default=None)

    def oldest(self) -> int | None:
        """The oldest unfinished work."""
        works = (partition.oldest for partition in self.partitions.values())
        return min((work for work in works if work is not None), default=None)

    def front(self) -> int:
        """The largest event time that the stage has seen itself."""
        times = [partition.low for partition in self.partitions.values()]
        times += [each.laggards.front for each in self.partitions.values() if each.laggards is not None]
        return max([int(self.roster.progress.max(initial=UNKNOWN)), *(t for t in times if t is not None)])

    def stored(self, names: Iterable[str]) -> list[OriginRow]:
        """Origins as they are to be stored."""
        chosen = list(names)
        at = self.roster.find(chosen)
        labels = {number: name for name, number in self.places.items()}
        columns = (self.roster.progress[at], self.since_us[at], self.roster.idle[at], self.roster.place[at])
        return [
            OriginRow(name, progress, since, idle, labels.get(place), self.declared_by[name])
            for name, progress, since, idle, place in zip(chosen, *(c.tolist() for c in columns), strict=True)
        ]

    def _note(self, names: Iterable[str]) -> None:
        self.changed_origins.update(names)
        self.stale_view = True


@dataclass(slots=True)
class Changes:
    """What is to be written of one stage; ``lows`` and ``moved_us`` always, the rest where it changed."""

    lows: Lows
    moved_us: int | None
    front: int
    origins: list[OriginRow] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    partitions: dict[str, Partition | None] = field(default_factory=dict)


class Table:
    """All stages. Change it by the methods, then ``settle``, write the changes, and publish ``view``."""

    def __init__(
        self, configs: Mapping[str, StageConfig], lows: Mapping[str, Lows], max_origins: int
    ) -> None:
        self.stages = Stages({name: config.upstream for name, config in configs.items()}, lows)
        self.rows = {name: StageRow(config) for name, config in configs.items()}
        self.max_origins = max_origins
        self.fronts: dict[str, int] = {}
        self._views: dict[str, StageView] = {}

    def row(self, stage: str, where: str) -> StageRow:
        """A stage; Refused (404) if there is none of that name."""
        if stage not in self.rows:
            known = ", ".join(sorted(self.rows)[:20])
            raise Refused(404, "no such stage", where, stage, f"the config declares {known}")
        return self.rows[stage]

    def report(self, reports: Reports, now_us: int) -> Reported:
        """Take in a client's reports, all or none; the answer's lows are set by ``settle``."""
        for number, report in enumerate(reports.reports):
            self.row(report.stage, f"$.reports[{number}].stage")
        unknown: dict[str, None] = {}
        stale = 0
        for report in reports.reports:
            row = self.rows[report.stage]
            partition = Partition(
                report.low, report.oldest, report.backlog, reports.session, reports.sequence, now_us,
                report.laggards,
            )  # fmt: skip
            fresh = row.said(report.partition, partition)
            stale += not fresh
            if report.origins:
                unknown |= dict.fromkeys(row.advance(report.origins, report.partition, now_us))
            if report.idle and fresh:
                unknown |= dict.fromkeys(row.declare_idle(report.idle, True))
        stages = {report.stage: StageLows(None, None, None) for report in reports.reports}
        return Reported(stages, list(unknown)[:NAMES], len(unknown), stale)

    def change_roster(self, stage: str, change: RosterChange) -> RosterChanged:
        """Change a stage's roster, all or nothing."""
        row = self.row(stage, "stage")
        if not row.config.has_roster:
            remedy = "give it one in the config: roster = [], or a file"
            raise Refused(409, "the stage has no roster", "stage", stage, remedy)
        for name in change.remove:
            if row.declared_by.get(name) == BY_CONFIG:
                remedy = "take it out of the roster in the config, or of the roster's file"
                raise Refused(409, "the origin is declared by the config", "$.remove", name, remedy)
        self.check_room(sum(name not in row.roster for name in set(change.add)), "$.add")
        absent = [name for name in change.remove if name not in row.roster]
        removed, added = row.remove(change.remove), row.add(change.add, BY_REQUEST)
        absent += row.declare_idle(change.idle, True) + row.declare_idle(change.active, False)
        return RosterChanged(stage, added, removed, len(row.roster), absent[:NAMES])

    def forget_partition(self, stage: str, partition: str) -> None:
        """Expect nothing of an input partition any more; Refused (404) if there is none of that name."""
        row = self.row(stage, "stage")
        if partition not in row.partitions:
            raise Refused(404, "no such partition", "partition", partition, "GET /v1/stages names them")
        del row.partitions[partition]
        row.roster.set_caught_up(row.place(partition), False)
        row.changed_partitions.add(partition)
        row.stale_view = True

    def check_room(self, more: int, where: str) -> None:
        """Refused (413) if ``more`` origins would be too many."""
        total = sum(len(row.roster) for row in self.rows.values()) + more
        if total > self.max_origins:
            remedy = f"the server takes {self.max_origins}: remove some, or raise server.max_origins"
            raise Refused(413, "too many origins", where, total, remedy)

    def settle(self, now_us: int) -> None:
        """Move all watermarks as far as they may."""
        before = {name: self._summary(name) for name in self.rows}
        own = {name: known for name, row in self.rows.items() if (known := row.own()) is not None}
        oldest = {name: work for name, row in self.rows.items() if (work := row.oldest()) is not None}
        self.stages.settle(own, oldest)
        for name in self.stages.order:
            row, upstream = self.rows[name], self.rows[name].config.upstream
            self.fronts[name] = max([row.front(), *(self.fronts[each] for each in upstream)])
            if (after := self._summary(name)) != before[name]:
                row.stale_view = True
                if after[0].output != before[name][0].output:
                    row.moved_us = now_us

    def _summary(self, stage: str) -> tuple[Lows, int | None, int]:
        return self.stages.lows[stage], self.stages.upstream_low(stage), self.fronts.get(stage, UNKNOWN)

    def lows(self, stage: str) -> StageLows:
        """A stage's watermarks in the words of the API."""
        found = self.stages.lows[stage]
        return StageLows(known(found.input), known(found.output), known(self.stages.upstream_low(stage)))

    def changes(self) -> dict[str, Changes]:
        """What was changed since the last call, by stage."""
        found = {}
        for name, row in self.rows.items():
            if not row.stale_view:
                continue
            found[name] = Changes(
                self.stages.lows[name],
                row.moved_us,
                self.fronts[name],
                row.stored(row.changed_origins),
                sorted(row.removed_origins),
                {each: row.partitions.get(each) for each in row.changed_partitions},
            )
            row.changed_origins, row.removed_origins, row.changed_partitions = set(), set(), set()
        return found

    def view(self, now_us: int) -> View:
        """A snapshot; only what changed since the last one is copied."""
        for name, row in self.rows.items():
            if row.stale_view or name not in self._views:
                self._views[name] = self._stage_view(name, row)
                row.stale_view = False
        return View(now_us, self.stages.overall(), dict(self._views))

    def _stage_view(self, name: str, row: StageRow) -> StageView:
        roster = row.roster
        return StageView(
            row.config, self.stages.lows[name], self.stages.upstream_low(name), row.moved_us,
            self.fronts[name], row.names, roster.progress.copy(), row.since_us.copy(), roster.idle.copy(),
            roster.active(), roster.may_lag(), roster.low if row.config.has_roster else None,
            dict(row.partitions), dict(row.unknown), row.faults,
        )  # fmt: skip


def known(time: int | None) -> int | None:
    """A time in the words of the API: None where it is unknown."""
    return None if time is None or time == UNKNOWN else time
