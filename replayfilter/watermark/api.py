"""The bodies of requests and responses, which are JSON objects.

Times are microseconds since the epoch; null means that a time is not known yet. The names of the fields are
the wire format: where a name in Python differs, the field says so.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

DEFAULT_APP = "default"  # the application of a report or a request that names none
MAX_NAMES = 100  # in a list that is meant for people

Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
Time = Annotated[int, Meta(ge=-(2**63) + 1, le=2**63 - 1)]


class Laggards(Struct, forbid_unknown_fields=True):
    """Which origins hold back a ``low`` that the client computes itself. They need not be in a roster here.

    ``lagging``: how many origins are at or behind ``low``. ``may_lag``: how many of them may be.
    ``slowest``: the progress of some of them, the slowest first; null for an origin that sent nothing yet.
    ``front``: the largest event time of all origins.
    """

    lagging: Annotated[int, Meta(ge=0)]
    may_lag: Annotated[int, Meta(ge=0)]
    slowest: Annotated[dict[Name, Time | None], Meta(max_length=MAX_NAMES)]
    front: Time | None = None


class Report(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The state of one input partition of a stage. It replaces the previous report of the partition.

    ``low``: no record that is still unread is older than this; null if the client doesn't know such a time.
    ``oldest``: the event time of the oldest record that is read but not finished; null if all are finished.
    ``backlog``: how many records are left to read. ``origins``: the largest event time read from each origin.
    ``idle``: origins that declare that they send nothing until further notice. ``laggards``: which origins
    hold ``low`` back.
    """

    stage: Name
    partition: Annotated[str, Meta(max_length=256)] = ""
    low: Time | None = None
    oldest: Time | None = None
    backlog: Annotated[int, Meta(ge=0)] | None = None
    origins: dict[Name, Time] = field(default_factory=dict)
    idle: list[Name] = field(default_factory=list)
    laggards: Laggards | None = None


class Reports(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Reports of one client. Of two reports of a partition, the larger (session, sequence) counts.

    ``session``: the time when the client started; ``sequence``: the number of the request. ``app``: the
    application of all stages in it.
    """

    session: Time
    sequence: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    reports: list[Report]
    app: Name = DEFAULT_APP


class StageLows(Struct):
    """The low watermarks of a stage, and the smallest output low of its upstream stages."""

    input_low: int | None
    output_low: int | None
    upstream_low: int | None


class Reported(Struct):
    """The response to reports, sent once they are stored.

    ``unknown``: names that are in no roster, at most 100 of ``unknown_count``. ``stale``: how many reports
    were older than what the server has; only their times were used.
    """

    stages: dict[str, StageLows]
    unknown: list[str]
    unknown_count: int
    stale: int


class PartitionState(Struct):
    """The last report of an input partition of a stage."""

    partition: str
    low: int | None
    oldest: int | None
    backlog: int | None
    reported_us: int


class HeldBack(Struct):
    """What holds a stage's output low back.

    ``by``: origins (of the roster, or reported by a client), watermarks of partitions, upstream stages, or
    unfinished work in partitions; "nothing" if the stage has reported nothing that could move it. ``names``:
    which of them, the slowest first, at most 100 of ``count``; for "nothing", what is missing. ``since_us``:
    when the output low last moved. ``behind_us``: how far it is behind the largest event time seen.
    """

    by: Literal["origins", "partitions", "upstream", "work", "nothing"]
    names: list[str]
    count: int
    since_us: int | None
    behind_us: int | None


class StageState(Struct):
    """A stage in the table. ``front``: the largest event time seen. ``faults``: problems with its roster."""

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
    held_back: HeldBack = field(name="held")
    errors: list[str] = field(name="faults")


class Apps(Struct):
    """The applications that the config declares."""

    apps: list[str]


class Table(Struct):
    """All stages of an application, and the global low watermark: no stage will output anything older."""

    at_us: int
    global_low: int | None
    stages: list[StageState]


class Low(Struct):
    """The output low (``low``) and the input low of a stage; for the global watermark both are the same."""

    stage: str | None
    low: int | None
    input_low: int | None


class Upstream(Struct):
    """The upstream stages of a stage, each with its output low.

    ``lows``: null for a stage that has not reported a low yet.
    """

    stage: str
    lows: dict[str, int | None]


class Window(Struct):
    """Whether everything before ``end`` has arrived, at the declared completeness.

    ``missing``: how many more origins must pass ``end``. ``behind``: how many origins are behind ``end``,
    including those that may be; a lower bound if a client counts the origins. ``names``: the slowest 100 of
    them.
    """

    stage: str
    end: int
    closed: bool
    low: int | None
    missing: int
    behind: int
    names: list[str]
    origins: int
    held_back: HeldBack = field(name="held")


class OriginState(Struct):
    """An origin.

    ``since_us``: when its progress last moved; if a client counts the origins, since when the client reports
    this progress. ``behind_us``: how far it is behind the largest event time seen. ``counted``: false while
    it is idle.
    """

    origin: str
    progress: int | None
    since_us: int | None
    behind_us: int | None
    idle: bool
    counted: bool


class Origins(Struct):
    """The slowest origins of a stage, how many origins it has, and how many of them may lag."""

    stage: str
    origins: int
    may_lag: int
    slowest: list[OriginState]


class History(Struct):
    """The past of a stage, one point every few seconds. All lists have the same length."""

    stage: str
    at_us: list[int]
    input_low: list[int | None]
    output_low: list[int | None]
    front: list[int | None]


class RosterChange(Struct, forbid_unknown_fields=True):
    """Origins to add to the roster, to remove, to declare idle, and to declare active again."""

    add: list[Name] = field(default_factory=list)
    remove: list[Name] = field(default_factory=list)
    idle: list[Name] = field(default_factory=list)
    active: list[Name] = field(default_factory=list)


class RosterChanged(Struct):
    """What a change did. ``absent``: names in the request that are not in the roster."""

    stage: str
    added: int
    removed: int
    origins: int
    absent: list[str]


class StageHealth(Struct):
    """The health of a stage: what holds it back, since when and by how much."""

    stage: str
    output_low: int | None
    held_back: HeldBack = field(name="held")
    slowest: list[OriginState]
    errors: list[str] = field(name="faults")


class Health(Struct):
    """The health of the server, and of each stage."""

    role: Literal["active", "standby"]
    epoch: int
    errors: list[str] = field(name="faults")
    stages: list[StageHealth]


class Alive(Struct):
    """The server runs. ``role``: "active", or "standby" while another server has the store."""

    role: Literal["active", "standby"]
    epoch: int


class ErrorBody(Struct):
    """Why a request was refused: what is wrong, where in the request, with which value, and what to do."""

    error: str
    where: str
    value: str
    remedy: str


class RequestError(Exception):
    """A request that is refused with the HTTP status ``status`` and the parts of an ErrorBody."""

    def __init__(self, status: int, error: str, where: str, value: object, remedy: str) -> None:
        super().__init__(f"{error} at {where}: {value}; {remedy}")
        self.status = status
        self.body = ErrorBody(error, where, str(value), remedy)
