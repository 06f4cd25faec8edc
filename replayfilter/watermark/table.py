"""The table of stages in memory: how reports and requests change it, and snapshots of it for readers.

It has no file, clock or thread. The table writer passes the time in, and writes the changes to the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.watermark.stages import Lows, Stages
from replayfilter.watermark.api import (
    MAX_NAMES,
    Reported,
    Reports,
    RequestError,
    RosterChange,
    RosterChanged,
    StageLows,
)
from replayfilter.watermark.server_config import StageConfig
from replayfilter.watermark.snapshots import PartitionReport, Snapshot, StageSnapshot
from replayfilter.watermark.stage_row import StageRow, StoredOrigin


@dataclass(slots=True)
class Changes:
    """What to write of one stage: always its watermarks, the rest only if it changed.

    ``partitions``: None for a partition that is to be deleted.
    """

    lows: Lows
    moved_us: int | None
    largest_time: int
    origins: list[StoredOrigin] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    partitions: dict[str, PartitionReport | None] = field(default_factory=dict)


class Table:
    """All stages of an application. ``tables``: those of all applications, which share ``max_origins``.

    After a change call ``settle``, write what ``take_changes`` returns, then publish the ``snapshot``.
    """

    def __init__(
        self,
        configs: Mapping[str, StageConfig],
        lows: Mapping[str, Lows],
        max_origins: int,
        tables: Mapping[str, Table],
    ) -> None:
        self.stages = Stages({name: config.upstream for name, config in configs.items()}, lows)
        self.rows = {name: StageRow(config) for name, config in configs.items()}
        self.max_origins = max_origins
        self._tables = tables
        self.largest_times: dict[str, int] = {}
        self._snapshots: dict[str, StageSnapshot] = {}

    # ---- changes ---------------------------------------------------------------------------------

    def report(self, reports: Reports, now_us: int) -> Reported:
        """Apply a client's reports, all or none. The watermarks in the result are not filled in yet."""
        for number, report in enumerate(reports.reports):
            self._row(report.stage, f"$.reports[{number}].stage")
        unknown: dict[str, None] = {}
        stale = 0
        for report in reports.reports:
            row = self.rows[report.stage]
            partition = PartitionReport(
                report.low, report.oldest, report.backlog, reports.session, reports.sequence, now_us,
                report.laggards,
            )  # fmt: skip
            fresh = row.accept(report.partition, partition)
            stale += not fresh
            if report.origins:
                unknown |= dict.fromkeys(row.advance(report.origins, report.partition, now_us))
            if report.idle and fresh:
                unknown |= dict.fromkeys(row.declare_idle(report.idle, True))
        stages = {report.stage: StageLows(None, None, None) for report in reports.reports}
        return Reported(stages, list(unknown)[:MAX_NAMES], len(unknown), stale)

    def change_roster(self, stage: str, change: RosterChange) -> RosterChanged:
        """Change a stage's roster, all or nothing."""
        row = self._row(stage, "stage")
        if not row.config.has_roster:
            remedy = "add one to the config: roster = [], or a file"
            raise RequestError(409, "the stage has no roster", "stage", stage, remedy)
        for name in change.remove:
            if row.declared_by.get(name) == "config":
                remedy = "remove it from the roster in the config, or from the roster file"
                raise RequestError(409, "the origin is declared by the config", "$.remove", name, remedy)
        self.check_max_origins(sum(name not in row.roster for name in set(change.add)), "$.add")
        absent = [name for name in change.remove if name not in row.roster]
        removed, added = row.remove(change.remove), row.add(change.add, "request")
        absent += row.declare_idle(change.idle, True) + row.declare_idle(change.active, False)
        return RosterChanged(stage, added, removed, len(row.roster), absent[:MAX_NAMES])

    def forget_partition(self, stage: str, partition: str) -> None:
        """Forget an input partition, so that nothing is expected from it; RequestError (404) if unknown."""
        row = self._row(stage, "stage")
        if partition not in row.partitions:
            remedy = "GET /v1/stages lists the partitions"
            raise RequestError(404, "no such partition", "partition", partition, remedy)
        row.forget_partition(partition)

    def check_max_origins(self, more: int, where: str) -> None:
        """RequestError (413) if ``more`` origins would exceed the limit."""
        rows = [row for table in self._tables.values() for row in table.rows.values()]
        total = sum(len(row.roster) for row in rows) + more
        if total > self.max_origins:
            remedy = f"the limit is {self.max_origins}: remove some, or raise server.max_origins"
            raise RequestError(413, "too many origins", where, total, remedy)

    def _row(self, stage: str, where: str) -> StageRow:
        """A stage; RequestError (404) if there is no such stage."""
        if stage not in self.rows:
            declared = ", ".join(sorted(self.rows)[:20])
            raise RequestError(404, "no such stage", where, stage, f"the config declares {declared}")
        return self.rows[stage]

    # ---- results ---------------------------------------------------------------------------------

    def settle(self, now_us: int) -> None:
        """Move all watermarks as far as the reports allow."""
        before = {name: self._summary(name) for name in self.rows}
        own = {name: low for name, row in self.rows.items() if (low := row.own_low()) is not None}
        oldest = {name: time for name, row in self.rows.items() if (time := row.oldest_work()) is not None}
        self.stages.settle(own, oldest)
        for name in self.stages.order:
            row, upstream = self.rows[name], self.rows[name].config.upstream
            self.largest_times[name] = max(
                [row.largest_time(), *(self.largest_times[each] for each in upstream)]
            )
            if (after := self._summary(name)) != before[name]:
                row.changed = True
                if after[0].output != before[name][0].output:
                    row.moved_us = now_us

    def _summary(self, stage: str) -> tuple[Lows, int | None, int]:
        return (
            self.stages.lows[stage],
            self.stages.upstream_low(stage),
            self.largest_times.get(stage, UNKNOWN),
        )

    def take_changes(self) -> dict[str, Changes]:
        """The changes since the last call, by stage."""
        changes = {}
        for name, row in self.rows.items():
            if not row.changed:
                continue
            changes[name] = Changes(
                self.stages.lows[name],
                row.moved_us,
                self.largest_times[name],
                row.stored_origins(row.changed_origins),
                sorted(row.removed_origins),
                {each: row.partitions.get(each) for each in row.changed_partitions},
            )
            row.changed_origins, row.removed_origins, row.changed_partitions = set(), set(), set()
        return changes

    def history_points(self) -> dict[str, tuple[Lows, int]]:
        """The watermarks and the largest event time of each stage."""
        return {name: (self.stages.lows[name], self.largest_times[name]) for name in self.rows}

    def snapshot(self, now_us: int) -> Snapshot:
        """A snapshot of all stages. Stages that didn't change since the last one are not copied again."""
        for name, row in self.rows.items():
            if row.changed or name not in self._snapshots:
                self._snapshots[name] = self._stage_snapshot(name, row)
                row.changed = False
        return Snapshot(now_us, self.stages.overall(), dict(self._snapshots))

    def _stage_snapshot(self, name: str, row: StageRow) -> StageSnapshot:
        roster = row.roster
        return StageSnapshot(
            row.config, self.stages.lows[name], self.stages.upstream_low(name), row.moved_us,
            self.largest_times[name], row.names, roster.progress.copy(), row.since_us.copy(),
            roster.idle.copy(), roster.active(), roster.may_lag(),
            roster.low if row.config.has_roster else None,
            dict(row.partitions), dict(row.unknown_origins), row.errors,
        )  # fmt: skip
