"""Snapshots of the table in the words of the API."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.expiry import UNKNOWN
from replayfilter.watermark.api import (
    NAMES,
    Held,
    Low,
    Origins,
    OriginState,
    PartitionState,
    StageHealth,
    StageState,
    Table,
    Window,
)
from replayfilter.watermark.table import Partition, Refused, StageView, View, known


def stage_of(view: View, name: str) -> StageView:
    """A stage; Refused (404) if there is none of that name."""
    if name not in view.stages:
        names = ", ".join(sorted(view.stages)[:20])
        raise Refused(404, "no such stage", "path", name, f"the config declares {names}")
    return view.stages[name]


def table_of(view: View) -> Table:
    """The whole table."""
    return Table(view.at_us, known(view.overall), [state_of(view, name) for name in view.stages])


def low_of(view: View, name: str | None) -> Low:
    """A stage's low watermarks, or the global one for None."""
    if name is None:
        return Low(None, known(view.overall), known(view.overall))
    lows = stage_of(view, name).lows
    return Low(name, known(lows.output), known(lows.input))


def state_of(view: View, name: str) -> StageState:
    """One stage of the table."""
    stage = stage_of(view, name)
    return StageState(
        stage=name,
        upstream=list(stage.config.upstream),
        input_low=known(stage.lows.input),
        output_low=known(stage.lows.output),
        moved_us=stage.moved_us,
        front=known(stage.front),
        completeness=stage.config.completeness if stage.config.has_roster else None,
        origins=len(stage.names),
        idle=len(stage.names) - int(stage.active.sum()),
        may_lag=stage.may_lag,
        unknown_count=len(stage.unknown),
        partitions=[
            PartitionState(each, part.low, part.oldest, part.backlog, part.reported_us)
            for each, part in sorted(stage.partitions.items())
        ],
        held=held(view, name),
        faults=_faults(stage),
    )


def health_of(view: View, name: str) -> StageHealth:
    """What holds a stage back, with the slowest of its origins."""
    stage = stage_of(view, name)
    slowest = origins_of(view, name, 20).slowest if stage.config.has_roster else _told_origins(stage)
    return StageHealth(name, known(stage.lows.output), held(view, name), slowest, _faults(stage))


def origins_of(view: View, name: str, limit: int) -> Origins:
    """The ``limit`` slowest origins of a stage."""
    stage = stage_of(view, name)
    rows = _slowest(stage, np.ones(len(stage.names), np.bool_), limit)
    return Origins(name, len(stage.names), stage.may_lag, [_origin(stage, row) for row in rows])


def window_of(view: View, name: str, end: int) -> Window:
    """Whether everything before ``end`` is in; where a stage waits for another, who is missing there."""
    stage = stage_of(view, name)
    holder, prefix = stage, ""
    hold = keeps = held(view, name)
    while keeps.by == "upstream":
        upstream = keeps.names[0]
        holder, prefix, keeps = view.stages[upstream], f"{upstream}: ", held(view, upstream)
    closed = stage.lows.output >= end
    behind = holder.active & (holder.progress < end)
    total, names = int(behind.sum()), _names(holder, _slowest(holder, behind, NAMES))
    may_lag = holder.may_lag
    if keeps.by == "origins" and (told := _told(holder)) is not None and told.laggards is not None:
        names = [each for each, time in told.laggards.slowest.items() if time is None or time < end]
        total, may_lag = max(told.laggards.lagging if names else 0, len(names)), told.laggards.may_lag
    missing = 0 if closed else max(total - may_lag, 0)
    return Window(
        name, end, closed, known(stage.lows.output), missing, total,
        [prefix + each for each in names], len(holder.names), hold,
    )  # fmt: skip


def held(view: View, name: str) -> Held:
    """What keeps a stage's output low from going on."""
    stage = view.stages[name]
    out = stage.lows.output
    behind = stage.front - out if UNKNOWN not in (stage.front, out) else None

    def by(
        what: Literal["origins", "partitions", "upstream", "work", "nothing"], names: list[str], count: int
    ) -> Held:
        return Held(what, names[:NAMES], count, stage.moved_us, behind)

    works = {each: part.oldest for each, part in stage.partitions.items() if part.oldest is not None}
    if out < stage.lows.input and works:
        names = sorted(each for each, oldest in works.items() if oldest == min(works.values()))
        return by("work", names, len(names))
    lows = {each: part.low for each, part in stage.partitions.items() if part.low is not None}
    silent = stage.config.partitions - len(lows)
    bounds = {
        "origins": stage.roster_low,
        "partitions": UNKNOWN if silent > 0 else min(lows.values(), default=None),
        "upstream": stage.upstream_low,
    }
    slowest = min((low for low in bounds.values() if low is not None), default=None)
    if bounds["partitions"] == slowest and (told := _told(stage)) is not None and told.laggards is not None:
        return by("origins", list(told.laggards.slowest), told.laggards.lagging)
    if slowest is None:
        return by("nothing", [], 0)
    if bounds["origins"] == slowest:
        behind_or_at = stage.active & (stage.progress <= slowest)
        return by("origins", _names(stage, _slowest(stage, behind_or_at, NAMES)), int(behind_or_at.sum()))
    if bounds["partitions"] == slowest:
        if silent > 0:
            return by("partitions", [f"{silent} not heard of yet"], silent)
        names = sorted(each for each, low in lows.items() if low == slowest)
        names = [each for each in names if each] or names  # a service also reports as a whole, without a name
        return by("partitions", names, len(names))
    names = [each for each in stage.config.upstream if view.stages[each].lows.output == slowest]
    return by("upstream", names, len(names))


def _told(stage: StageView) -> Partition | None:
    """The partition that holds a stage without a roster back, if its client told which origins do that."""
    if stage.config.has_roster:
        return None
    lows = [part.low for part in stage.partitions.values() if part.low is not None]
    at = min(lows, default=None)
    told = (part for part in stage.partitions.values() if part.laggards is not None and part.laggards.lagging)
    return next((part for part in told if part.low == at), None)


def _told_origins(stage: StageView) -> list[OriginState]:
    told = _told(stage)
    if told is None or told.laggards is None:
        return []
    return [
        OriginState(
            each, time, told.since_us[each], None if time is None else stage.front - time, False, True
        )
        for each, time in told.laggards.slowest.items()
    ]


def _slowest(stage: StageView, chosen: NDArray[np.bool_], limit: int) -> list[int]:
    rows = np.flatnonzero(chosen)
    if len(rows) > limit:
        rows = rows[np.argpartition(stage.progress[rows], limit)[:limit]]
    order: list[int] = rows[np.argsort(stage.progress[rows], kind="stable")].tolist()
    return order


def _names(stage: StageView, rows: list[int]) -> list[str]:
    return [stage.names[row] for row in rows]


def _origin(stage: StageView, row: int) -> OriginState:
    progress, since = int(stage.progress[row]), int(stage.since_us[row])
    behind = stage.front - progress if progress != UNKNOWN else None
    return OriginState(
        stage.names[row],
        known(progress),
        since or None,
        behind,
        bool(stage.idle[row]),
        bool(stage.active[row]),
    )


def _faults(stage: StageView) -> list[str]:
    faults = list(stage.faults)
    if stage.unknown:
        names = ", ".join(list(stage.unknown)[:5])
        faults.append(
            f"reports name {len(stage.unknown)} origins that the roster does not, like {names}: they count "
            "for nothing; add them to the roster, or mend the name"
        )
    return faults
