"""The routes of the API: one table, which the server serves and the OpenAPI document describes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import anyio.to_thread

from replayfilter.watermark import api, responses
from replayfilter.watermark.server_config import ServerConfig
from replayfilter.watermark.table import Table
from replayfilter.watermark.times import parse_time
from replayfilter.watermark.writer import TableWriter

MAX_WAIT_SECONDS = 30
MAX_HISTORY_POINTS = 2_000


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A request whose path, query and body were checked; ``body`` is None if the route has none."""

    path: dict[str, str]
    query: dict[str, Any]
    body: Any


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter. ``parse`` raises ValueError for a text that is no value of it."""

    parse: Callable[[str], Any]
    schema: dict[str, Any]
    description: str
    default: Any = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """A row of the table. ``errors``: the HTTP statuses of its errors, besides 401 and 503.

    ``open``: needs no token, and a standby answers it too. ``operation_id`` is part of the API: generated
    clients name their functions after it.
    """

    method: str
    path: str
    operation_id: str
    handler: Callable[[Handlers, CheckedRequest], Awaitable[Any]]
    summary: str
    response: type
    body: type | None = None
    query: dict[str, Parameter] = field(default_factory=dict)
    errors: tuple[int, ...] = ()
    open: bool = False


class Handlers:
    """One method per route. Each takes a checked request and returns a struct of the API."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.writer = TableWriter(config)

    async def report(self, request: CheckedRequest) -> api.Reported:
        """Apply reports, and return the watermarks of their stages."""
        reports: api.Reports = request.body

        def apply(table: Table, now_us: int) -> api.Reported:
            return table.report(reports, now_us)

        reported: api.Reported = await self.writer.submit(reports.app, apply, "$.app")
        snapshot = self.writer.snapshot(reports.app)
        for name in reported.stages:
            reported.stages[name] = snapshot.stages[name].stage_lows
        return reported

    async def apps(self, request: CheckedRequest) -> api.Apps:
        """The applications."""
        return api.Apps(list(self.writer.snapshots()))

    async def table(self, request: CheckedRequest) -> api.Table:
        """The whole table of an application."""
        return responses.table_of(self.writer.snapshot(request.query["app"]))

    async def stage(self, request: CheckedRequest) -> api.StageState:
        """One stage."""
        return responses.state_of(self.writer.snapshot(request.query["app"]), request.path["stage"])

    async def low(self, request: CheckedRequest) -> api.Low:
        """The low watermarks of a stage, or the global one."""
        return responses.low_of(self.writer.snapshot(request.query["app"]), request.path.get("stage"))

    async def upstream(self, request: CheckedRequest) -> api.Upstream:
        """How far the upstream stages of a stage are."""
        return responses.upstream_of(self.writer.snapshot(request.query["app"]), request.path["stage"])

    async def window(self, request: CheckedRequest) -> api.Window:
        """Whether everything before a time has arrived."""
        return responses.window_of(
            self.writer.snapshot(request.query["app"]), request.path["stage"], request.query["end"]
        )

    async def wait(self, request: CheckedRequest) -> api.Window:
        """The same, but wait until it has, or until the time is over."""
        app, name, end = request.query["app"], request.path["stage"], request.query["end"]
        responses.find_stage(self.writer.snapshot(app), name)
        snapshot = await self.writer.wait_until(
            app, lambda snapshot: snapshot.stages[name].lows.output >= end, request.query["seconds"]
        )
        return responses.window_of(snapshot, name, end)

    async def origins(self, request: CheckedRequest) -> api.Origins:
        """The slowest origins of a stage, or one by its name."""
        snapshot, query = self.writer.snapshot(request.query["app"]), request.query
        return responses.origins_of(snapshot, request.path["stage"], query["limit"], query["name"])

    async def change_roster(self, request: CheckedRequest) -> api.RosterChanged:
        """Change the roster of a stage."""
        name, change = request.path["stage"], request.body
        changed: api.RosterChanged = await self.writer.submit(
            request.query["app"], lambda table, _: table.change_roster(name, change)
        )
        return changed

    async def forget_partition(self, request: CheckedRequest) -> api.StageState:
        """Forget an input partition of a stage."""
        name, partition = request.path["stage"], request.path["partition"]
        await self.writer.submit(
            request.query["app"], lambda table, _: table.forget_partition(name, partition)
        )
        return responses.state_of(self.writer.snapshot(request.query["app"]), name)

    async def history(self, request: CheckedRequest) -> api.History:
        """The past watermarks of a stage."""
        app, name = request.query["app"], request.path["stage"]
        snapshot = self.writer.snapshot(app)
        responses.find_stage(snapshot, name)
        since = snapshot.at_us - request.query["seconds"] * 10**6

        points = await anyio.to_thread.run_sync(self.writer.history, app, name, since, MAX_HISTORY_POINTS)
        columns = [list(column) for column in zip(*points, strict=True)] or [[], [], [], []]
        return api.History(name, *columns)

    async def health(self, request: CheckedRequest) -> api.Health:
        """What holds each stage back."""
        snapshot = self.writer.snapshot(request.query["app"])
        stages = [responses.health_of(snapshot, name) for name in snapshot.stages]
        return api.Health("active", self.writer.epoch, list(self.writer.errors), stages)

    async def ready(self, request: CheckedRequest) -> api.Alive:
        """The same, but only of the active server: a standby refuses."""
        self.writer.snapshots()
        return await self.alive(request)

    async def alive(self, request: CheckedRequest) -> api.Alive:
        """Whether the server runs, and whether it is the active one."""
        if not self.writer.is_running:
            errors = "; ".join(self.writer.errors)
            raise api.RequestError(
                503, "the server's table writer has stopped", "server", errors, "restart the server"
            )
        return api.Alive(self.writer.role, self.writer.epoch)


def _parse_whole_number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(text)

    return parse


def _number(low: int, high: int, default: int, description: str) -> Parameter:
    schema = {"type": "integer", "minimum": low, "maximum": high, "default": default}
    return Parameter(_parse_whole_number(low, high), schema, description, default)


_END = Parameter(
    parse_time, {"type": "string"},
    "the end of the window (exclusive), in ISO 8601 or microseconds since the epoch", required=True,
)  # fmt: skip

_NAME = Parameter(str, {"type": "string"}, "only the origin of this name")

_APP = Parameter(
    str, {"type": "string", "default": api.DEFAULT_APP}, "the application of the stages", api.DEFAULT_APP
)


def _of_an_app(route: Route) -> Route:
    """A route with the parameter app, if it is about stages and has no body that names the application."""
    if route.open or route.path in ("/v1/report", "/v1/apps"):
        return route
    return replace(route, query={**route.query, "app": _APP}, errors=tuple(sorted({*route.errors, 400, 404})))


ROUTES = [_of_an_app(route) for route in (
    Route("POST", "/v1/report", "post_report", Handlers.report,
          "Report progress; the response is sent once the report is stored",
          api.Reported, api.Reports, errors=(400, 404, 413)),
    Route("GET", "/v1/apps", "get_apps", Handlers.apps, "The applications", api.Apps),
    Route("GET", "/v1/stages", "get_table", Handlers.table, "All stages of an application", api.Table),
    Route("GET", "/v1/low", "get_low", Handlers.low, "The global low watermark", api.Low),
    Route("GET", "/v1/health", "get_health", Handlers.health,
          "What holds each stage back, since when, and by how much", api.Health),
    Route("GET", "/v1/stages/{stage}", "get_stage", Handlers.stage, "One stage", api.StageState,
          errors=(404,)),
    Route("GET", "/v1/stages/{stage}/low", "get_low_of_stage", Handlers.low,
          "The low watermarks of a stage", api.Low, errors=(404,)),
    Route("GET", "/v1/stages/{stage}/upstream", "get_upstream_of_stage", Handlers.upstream,
          "The low watermarks of the upstream stages of a stage", api.Upstream, errors=(404,)),
    Route("GET", "/v1/stages/{stage}/window", "get_window_of_stage", Handlers.window,
          "Whether everything before a time has arrived", api.Window,
          query={"end": _END}, errors=(400, 404)),
    Route("GET", "/v1/stages/{stage}/wait", "get_wait_of_stage", Handlers.wait,
          "The same, but wait until everything has arrived, or until a time limit", api.Window,
          query={"end": _END, "seconds": _number(0, MAX_WAIT_SECONDS, MAX_WAIT_SECONDS, "the time limit")},
          errors=(400, 404)),
    Route("GET", "/v1/stages/{stage}/origins", "get_origins_of_stage", Handlers.origins,
          "The origins of a stage, the slowest first", api.Origins,
          query={"limit": _number(1, 100_000, 100, "how many"), "name": _NAME}, errors=(400, 404)),
    Route("GET", "/v1/stages/{stage}/history", "get_history_of_stage", Handlers.history,
          "The past watermarks of a stage, for plots", api.History,
          query={"seconds": _number(1, 10**9, 4 * 3600, "how far back")}, errors=(400, 404)),
    Route("POST", "/v1/stages/{stage}/roster", "post_roster_of_stage", Handlers.change_roster,
          "Change the roster of a stage", api.RosterChanged, api.RosterChange, errors=(400, 404, 409, 413)),
    Route("DELETE", "/v1/stages/{stage}/partitions/{partition}", "delete_forget_of_stage",
          Handlers.forget_partition, "Forget an input partition: nothing more is expected from it",
          api.StageState, errors=(404,)),
    Route("GET", "/health", "get_alive", Handlers.alive, "Whether this server runs, and whether it is active",
          api.Alive, open=True),
    Route("GET", "/readyz", "get_ready", Handlers.ready, "Whether this server is the active one: 503 if not",
          api.Alive, open=True),
)]  # fmt: skip
