"""Builds the API's responses from snapshots of the table."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.watermark.api import (
    MAX_NAMES,
    HeldBack,
    Laggards,
    Low,
    Origins,
    OriginState,
    PartitionState,
    RequestError,
    StageHealth,
    StageState,
    Table,
    Upstream,
    Window,
)
from replayfilter.watermark.snapshots import PartitionReport, Snapshot, StageSnapshot, time_or_none

_SLOWEST_IN_HEALTH = 20


def find_stage(snapshot: Snapshot, name: str) -> StageSnapshot:
    """A stage; RequestError (404) if there is no such stage."""
    if name not in snapshot.stages:
        declared = ", ".join(sorted(snapshot.stages)[:20])
        raise RequestError(404, "no such stage", "path", name, f"the config declares {declared}")
    return snapshot.stages[name]


def table_of(snapshot: Snapshot) -> Table:
    """The whole table."""
    stages = [state_of(snapshot, name) for name in snapshot.stages]
    return Table(snapshot.at_us, time_or_none(snapshot.global_low), stages)


def low_of(snapshot: Snapshot, name: str | None) -> Low:
    """The low watermarks of a stage, or the global one for None."""
    if name is None:
        low = time_or_none(snapshot.global_low)
        return Low(None, low, low)
    lows = find_stage(snapshot, name).lows
    return Low(name, time_or_none(lows.output), time_or_none(lows.input))


def upstream_of(snapshot: Snapshot, name: str) -> Upstream:
    """The output lows of a stage's upstream stages, each at most what the stage says itself.

    None for one that has said nothing. Its stored output low may be one that an earlier version took from the
    stages before it, and may have passed what it said later, since it never goes back.
    """

    def low(each: StageSnapshot) -> int | None:
        own = [part.low for part in each.partitions.values() if part.low is not None]
        own += [each.roster_low] if each.roster_low is not None else []
        return time_or_none(min([*own, each.lows.output])) if own else None

    upstream = find_stage(snapshot, name).config.upstream
    return Upstream(name, {each: low(snapshot.stages[each]) for each in upstream})


def state_of(snapshot: Snapshot, name: str) -> StageState:
    """One stage of the table."""
    stage = find_stage(snapshot, name)
    return StageState(
        stage=name,
        upstream=list(stage.config.upstream),
        input_low=time_or_none(stage.lows.input),
        output_low=time_or_none(stage.lows.output),
        moved_us=stage.moved_us,
        front=time_or_none(stage.largest_time),
        completeness=stage.config.completeness if stage.config.has_roster else None,
        origins=len(stage.names),
        idle=len(stage.names) - int(stage.active.sum()),
        may_lag=stage.may_lag,
        unknown_count=len(stage.unknown_origins),
        partitions=[
            PartitionState(each, part.low, part.oldest, part.backlog, part.reported_us)
            for each, part in sorted(stage.partitions.items())
        ],
        held_back=held_back(snapshot, name),
        errors=errors_of(stage),
    )


def health_of(snapshot: Snapshot, name: str) -> StageHealth:
    """What holds a stage back, with the slowest of its origins."""
    stage = find_stage(snapshot, name)
    if stage.config.has_roster:
        slowest = origins_of(snapshot, name, _SLOWEST_IN_HEALTH).slowest
    else:
        slowest = _reported_laggards(stage)
    low = time_or_none(stage.lows.output)
    return StageHealth(name, low, held_back(snapshot, name), slowest, errors_of(stage))


def origins_of(snapshot: Snapshot, name: str, limit: int, origin: str | None = None) -> Origins:
    """The ``limit`` slowest origins of a stage, or only ``origin``; RequestError (404) if it is unknown.

    Of the origins that a client counts, the server knows only the slowest.
    """
    stage = find_stage(snapshot, name)
    if origin is None:
        rows = _slowest(stage, np.ones(len(stage.names), np.bool_), limit)
    elif origin in stage.names:
        rows = [stage.names.index(origin)]
    else:
        known = [each for each in _reported_laggards(stage) if each.origin == origin]
        if known:
            return Origins(name, len(stage.names), stage.may_lag, known)
        remedy = "correct the name, or add it to the roster"
        if not stage.config.has_roster:
            remedy = "the stage has no roster, so only origins that hold it back are known here"
        raise RequestError(404, "no such origin", "query name", origin, remedy)
    return Origins(name, len(stage.names), stage.may_lag, [_origin(stage, row) for row in rows])


def window_of(snapshot: Snapshot, name: str, end: int) -> Window:
    """Whether everything before ``end`` has arrived.

    If an upstream stage holds the stage back, the missing origins are those of that stage.
    """
    stage = find_stage(snapshot, name)
    reason = held_back(snapshot, name)
    slow_stage, prefix, cause = stage, "", reason
    while cause.by == "upstream":
        upstream = cause.names[0]
        slow_stage, prefix = snapshot.stages[upstream], f"{upstream}: "
        cause = held_back(snapshot, upstream)
    closed = stage.lows.output >= end
    behind = slow_stage.active & (slow_stage.progress < end)
    total, names = int(behind.sum()), _names(slow_stage, _slowest(slow_stage, behind, MAX_NAMES))
    may_lag = slow_stage.may_lag
    if cause.by == "origins" and (found := find_laggards(slow_stage)) is not None:
        _, laggards = found
        names = [each for each, time in laggards.slowest.items() if time is None or time < end]
        total, may_lag = max(laggards.lagging if names else 0, len(names)), laggards.may_lag
    missing = 0 if closed else max(total - may_lag, 0)
    return Window(
        name, end, closed, time_or_none(stage.lows.output), missing, total,
        [prefix + each for each in names], len(slow_stage.names), reason,
    )  # fmt: skip


def held_back(snapshot: Snapshot, name: str) -> HeldBack:
    """What holds the output low of a stage back."""
    stage = snapshot.stages[name]
    low = stage.lows.output
    behind = stage.largest_time - low if UNKNOWN not in (stage.largest_time, low) else None

    def held_by(
        what: Literal["origins", "partitions", "upstream", "work", "nothing"], names: list[str], count: int
    ) -> HeldBack:
        return HeldBack(what, names[:MAX_NAMES], count, stage.moved_us, behind)

    oldest = {each: part.oldest for each, part in stage.partitions.items() if part.oldest is not None}
    if low < stage.lows.input and oldest:
        names = sorted(each for each, time in oldest.items() if time == min(oldest.values()))
        return held_by("work", names, len(names))
    lows = {each: part.low for each, part in stage.partitions.items() if part.low is not None}
    unreported = stage.config.partitions - len(lows)
    bounds = {
        "origins": stage.roster_low,
        "partitions": UNKNOWN if unreported > 0 else min(lows.values(), default=None),
        "upstream": stage.upstream_low,
    }
    smallest = min((bound for bound in bounds.values() if bound is not None), default=UNKNOWN)
    if bounds["partitions"] in (smallest, None) and (found := find_laggards(stage)) is not None:
        _, laggards = found
        return held_by("origins", list(laggards.slowest), laggards.lagging)
    if bounds["origins"] is None and bounds["partitions"] is None:  # silent: upstream stages don't count
        return held_by("nothing", ["no low reported yet" if stage.partitions else "no report yet"], 1)
    if bounds["origins"] == smallest:
        lagging = stage.active & (stage.progress <= smallest)
        return held_by("origins", _names(stage, _slowest(stage, lagging, MAX_NAMES)), int(lagging.sum()))
    if bounds["partitions"] == smallest:
        if unreported > 0:
            return held_by("partitions", [f"{unreported} without a report yet"], unreported)
        names = sorted(each for each, time in lows.items() if time == smallest)
        names = [each for each in names if each] or names  # a service's own report has an empty partition
        return held_by("partitions", names, len(names))
    names = [each for each in stage.config.upstream if snapshot.stages[each].lows.output == smallest]
    return held_by("upstream", names, len(names))


def find_laggards(stage: StageSnapshot) -> tuple[PartitionReport, Laggards] | None:
    """The laggards that a client reported, with the report; None if they don't hold the stage back.

    Only for a stage without a roster: otherwise the server knows the origins itself.
    """
    if stage.config.has_roster:
        return None
    lows = [report.low for report in stage.partitions.values() if report.low is not None]
    smallest = min(lows, default=None)
    for report in stage.partitions.values():
        if report.low == smallest and report.laggards is not None and report.laggards.lagging:
            return report, report.laggards
    return None


def _reported_laggards(stage: StageSnapshot) -> list[OriginState]:
    found = find_laggards(stage)
    if found is None:
        return []
    report, laggards = found
    return [
        OriginState(
            origin=name,
            progress=time,
            since_us=report.since_us[name],
            behind_us=None if time is None else stage.largest_time - time,
            idle=False,
            counted=True,
        )
        for name, time in laggards.slowest.items()
    ]


def _slowest(stage: StageSnapshot, chosen: NDArray[np.bool_], limit: int) -> list[int]:
    rows = np.flatnonzero(chosen)
    if len(rows) > limit:
        rows = rows[np.argpartition(stage.progress[rows], limit)[:limit]]
    order: list[int] = rows[np.argsort(stage.progress[rows], kind="stable")].tolist()
    return order


def _names(stage: StageSnapshot, rows: list[int]) -> list[str]:
    return [stage.names[row] for row in rows]


def _origin(stage: StageSnapshot, row: int) -> OriginState:
    progress, since = int(stage.progress[row]), int(stage.since_us[row])
    return OriginState(
        origin=stage.names[row],
        progress=time_or_none(progress),
        since_us=since or None,
        behind_us=stage.largest_time - progress if progress != UNKNOWN else None,
        idle=bool(stage.idle[row]),
        counted=bool(stage.active[row]),
    )


def errors_of(stage: StageSnapshot) -> list[str]:
    """Present problems with a stage's roster, and with the origins in reports."""
    errors = list(stage.errors)
    if stage.unknown_origins:
        count, names = len(stage.unknown_origins), ", ".join(list(stage.unknown_origins)[:5])
        errors.append(
            f"reports contain {count} origins that are not in the roster, such as {names}: "
            "they are ignored; add them to the roster, or correct their names"
        )
    return errors
