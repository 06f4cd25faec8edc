"""What clients and server say to each other: the bodies of requests and answers, as JSON objects.

Times are microseconds since the epoch; null stands for a time not known yet.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

NAMES = 100  # the most names in a list that is there for people to read

Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
Time = Annotated[int, Meta(ge=-(2**63) + 1, le=2**63 - 1)]


class Laggards(Struct, forbid_unknown_fields=True):
    """Which origins hold back a ``low`` that the client counts itself; no roster here need know them.

    ``lagging``: how many are at or behind it, ``may_lag`` of which may be. ``slowest``: the progress of the
    worst, the slowest first, null for those never heard of. ``front``: the largest time counted.
    """

    lagging: Annotated[int, Meta(ge=0)]
    may_lag: Annotated[int, Meta(ge=0)]
    slowest: Annotated[dict[Name, Time | None], Meta(max_length=NAMES)]
    front: Time | None = None


class Report(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a client knows of one input partition of a stage. It replaces what was said of it before.

    ``low``: no record before this time is still to be read from the partition, if the client knows one;
    ``oldest``: the event time of the oldest record read and not finished, null if all are;
    ``backlog``: records left to read; ``origins``: the largest event time read from each;
    ``idle``: origins that say of themselves that nothing will come until further notice; ``laggards``: what
    holds ``low`` back.
    """

    stage: Name
    partition: Annotated[str, Meta(max_length=256)] = ""
    low: Time | None = None
    oldest: Time | None = None
    backlog: Annotated[int, Meta(ge=0)] | None = None
    origins: dict[Name, Time] = field(default_factory=dict)
    idle: list[Name] = field(default_factory=list)
    laggards: Laggards | None = None


class Reports(Struct, forbid_unknown_fields=True):
    """Reports of one client. Of two about a partition the one with the larger (session, sequence) counts.

    ``session``: when the client started, in microseconds; ``sequence``: counts its requests.
    """

    session: Time
    sequence: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    reports: list[Report]


class StageLows(Struct):
    """The watermarks of a stage, and the smallest output low of the stages it reads."""

    input_low: int | None
    output_low: int | None
    upstream_low: int | None


class Reported(Struct):
    """The answer to reports, once they are on disk.

    ``unknown``: names that no roster has, at most 100 of them, ``unknown_count`` in all; ``stale``: how many
    reports came too late, so that only their times counted.
    """

    stages: dict[str, StageLows]
    unknown: list[str]
    unknown_count: int
    stale: int


class PartitionState(Struct):
    """What was last reported of an input partition of a stage."""

    partition: str
    low: int | None
    oldest: int | None
    backlog: int | None
    reported_us: int


class Held(Struct):
    """What keeps a stage's output low from going on.

    ``by``: origins, of the roster or as a client told, partitions' watermarks, upstream stages, or unfinished
    work in partitions; "nothing" if the stage knows nothing that could move it. ``names``: which, the slowest
    first, at most 100; ``count``: how many in all. ``since_us``: when the output low last moved;
    ``behind_us``: how far it is behind the largest time seen.
    """

    by: Literal["origins", "partitions", "upstream", "work", "nothing"]
    names: list[str]
    count: int
    since_us: int | None
    behind_us: int | None


class StageState(Struct):
    """A stage in the table. ``front``: the largest event time seen; ``faults``: of its roster file."""

    stage: str
    upstream: list[str]
    input_low: int | None
    output_low: int | None
    moved_us: int | None
    front: int | None
    completeness: str | None
    origins: int
    idle: int
    may_lag: int
    unknown_count: int
    partitions: list[PartitionState]
    held: Held
    faults: list[str]


class Table(Struct):
    """All stages, and the global low watermark: nothing older comes out of any of them."""

    at_us: int
    global_low: int | None
    stages: list[StageState]


class Low(Struct):
    """The low watermark of a stage's output and input, or the global one, where the two are the same."""

    stage: str | None
    low: int | None
    input_low: int | None


class Window(Struct):
    """Whether everything before ``end`` is in, at the declared completeness.

    ``missing``: how many more origins must pass ``end``; ``behind``: how many are behind it, also those that
    may be, the slowest 100 of them in ``names``. Where a client counts the origins it is at least so many.
    """

    stage: str
    end: int
    closed: bool
    low: int | None
    missing: int
    behind: int
    names: list[str]
    origins: int
    held: Held


class OriginState(Struct):
    """An origin. ``since_us``: when it last went ahead; where a client counts the origins, since when it is
    told to be where it is. ``behind_us``: behind the largest time seen.
    """

    origin: str
    progress: int | None
    since_us: int | None
    behind_us: int | None
    idle: bool
    counted: bool


class Origins(Struct):
    """Origins of a stage, the slowest first, and how many of those that count may lag."""

    stage: str
    origins: int
    may_lag: int
    slowest: list[OriginState]


class History(Struct):
    """A stage's past, one point every few seconds; the lists have the same length."""

    stage: str
    at_us: list[int]
    input_low: list[int | None]
    output_low: list[int | None]
    front: list[int | None]


class RosterChange(Struct, forbid_unknown_fields=True):
    """Origins to expect from now on, to expect no longer, to count out, and to count in again."""

    add: list[Name] = field(default_factory=list)
    remove: list[Name] = field(default_factory=list)
    idle: list[Name] = field(default_factory=list)
    active: list[Name] = field(default_factory=list)


class RosterChanged(Struct):
    """What a change did; ``absent``: names to remove, or to count out or in, that were not in the roster."""

    stage: str
    added: int
    removed: int
    origins: int
    absent: list[str]


class StageHealth(Struct):
    """A stage's health: what holds it back, since when and by how much."""

    stage: str
    output_low: int | None
    held: Held
    slowest: list[OriginState]
    faults: list[str]


class Health(Struct):
    """The server's: "active" answers everything, "standby" waits to take over and answers only this."""

    role: Literal["active", "standby"]
    epoch: int
    faults: list[str]
    stages: list[StageHealth]


class Alive(Struct):
    """The server runs; ``role`` as in Health."""

    role: Literal["active", "standby"]
    epoch: int


class Fault(Struct):
    """Why a request was refused: what, where in it, which value, and what to do."""

    error: str
    where: str
    value: str
    remedy: str
