"""The watermark server: HTTP and JSON over the keeper. One table of routes serves and documents them."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from replayfilter.watermark import api
from replayfilter.watermark import responses as answers
from replayfilter.watermark.server_config import ServerConfig
from replayfilter.watermark.store import Store
from replayfilter.watermark.table import Refused, Table, known
from replayfilter.watermark.times import parse_time
from replayfilter.watermark.writer import Keeper

WAIT_SECONDS = 30  # the longest that one request waits
POINTS = 2_000  # of a history in one answer
STATIC = {"/": ("page.html", "text/html"), "/page.js": ("page.js", "text/javascript")}
_SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, checked: parts of the path, parameters of the query, and the body if the route has one."""

    path: dict[str, str]
    query: dict[str, Any]
    body: Any


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query; ``read`` raises ValueError for what it is not."""

    read: Callable[[str], Any]
    schema: dict[str, Any]
    meaning: str
    default: Any = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """A row of the table: what is asked, what is answered, and how it may be refused."""

    method: str
    path: str
    handler: Callable[[Server, Ask], Awaitable[Any]]
    summary: str
    answer: type
    body: type | None = None
    query: dict[str, Parameter] = field(default_factory=dict)
    refusals: tuple[int, ...] = ()
    open: bool = False  # without token, and on a standby too


class Server:
    """The handlers; each takes a checked request and gives a struct of the API."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.keeper = Keeper(config)

    async def report(self, ask: Ask) -> api.Reported:
        reports: api.Reports = ask.body

        def job(table: Table, now_us: int) -> api.Reported:
            return table.report(reports, now_us)

        reported: api.Reported = await self.keeper.do(job)
        view = self.keeper.view()
        for name in reported.stages:
            stage = view.stages[name]
            reported.stages[name] = api.StageLows(
                known(stage.lows.input), known(stage.lows.output), known(stage.upstream_low)
            )
        return reported

    async def table(self, ask: Ask) -> api.Table:
        return answers.table_of(self.keeper.view())

    async def stage(self, ask: Ask) -> api.StageState:
        return answers.state_of(self.keeper.view(), ask.path["stage"])

    async def low(self, ask: Ask) -> api.Low:
        return answers.low_of(self.keeper.view(), ask.path.get("stage"))

    async def window(self, ask: Ask) -> api.Window:
        return answers.window_of(self.keeper.view(), ask.path["stage"], ask.query["end"])

    async def wait(self, ask: Ask) -> api.Window:
        name, end = ask.path["stage"], ask.query["end"]
        answers.stage_of(self.keeper.view(), name)
        view = await self.keeper.until(
            lambda view: view.stages[name].lows.output >= end, ask.query["seconds"]
        )
        return answers.window_of(view, name, end)

    async def origins(self, ask: Ask) -> api.Origins:
        return answers.origins_of(self.keeper.view(), ask.path["stage"], ask.query["limit"])

    async def roster(self, ask: Ask) -> api.RosterChanged:
        name, change = ask.path["stage"], ask.body
        changed: api.RosterChanged = await self.keeper.do(lambda table, _: table.change_roster(name, change))
        return changed

    async def forget(self, ask: Ask) -> api.StageState:
        name, partition = ask.path["stage"], ask.path["partition"]
        await self.keeper.do(lambda table, _: table.forget_partition(name, partition))
        return answers.state_of(self.keeper.view(), name)

    async def history(self, ask: Ask) -> api.History:
        view, name = self.keeper.view(), ask.path["stage"]
        answers.stage_of(view, name)
        since = view.at_us - ask.query["seconds"] * 10**6

        def read() -> list[tuple[int, int | None, int | None, int | None]]:
            store = Store(self.config.server.store)  # a connection of its own, beside the keeper's
            try:
                return store.history(name, since, POINTS)
            finally:
                store.close()

        rows = await anyio.to_thread.run_sync(read)
        columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
        return api.History(name, *columns)

    async def health(self, ask: Ask) -> api.Health:
        view, keeper = self.keeper.view(), self.keeper
        stages = [answers.health_of(view, name) for name in view.stages]
        return api.Health("active", keeper.epoch, list(keeper.faults), stages)

    async def alive(self, ask: Ask) -> api.Alive:
        if not self.keeper.alive:
            remedy = "start the server again"
            raise Refused(
                503, "the server's keeper has ended", "server", "; ".join(self.keeper.faults), remedy
            )
        return api.Alive("active" if self.keeper.role == "active" else "standby", self.keeper.epoch)


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(text)

    return read


_END = Parameter(
    parse_time, {"type": "string"}, "ISO 8601, or microseconds since the epoch; the first time not in it",
    required=True,
)  # fmt: skip


def _number(low: int, high: int, default: int, meaning: str) -> Parameter:
    schema = {"type": "integer", "minimum": low, "maximum": high, "default": default}
    return Parameter(_whole(low, high), schema, meaning, default)


ROUTES = [
    Route("POST", "/v1/report", Server.report, "Report what was read; answered once it is on disk",
          api.Reported, api.Reports, refusals=(400, 404, 413)),
    Route("GET", "/v1/stages", Server.table, "The whole table", api.Table),
    Route("GET", "/v1/low", Server.low, "The global low watermark", api.Low),
    Route("GET", "/v1/health", Server.health, "What holds each stage back, since when, by how much",
          api.Health),
    Route("GET", "/v1/stages/{stage}", Server.stage, "One stage", api.StageState, refusals=(404,)),
    Route("GET", "/v1/stages/{stage}/low", Server.low, "A stage's low watermarks", api.Low, refusals=(404,)),
    Route("GET", "/v1/stages/{stage}/window", Server.window, "Is everything before a time in?",
          api.Window, query={"end": _END}, refusals=(400, 404)),
    Route("GET", "/v1/stages/{stage}/wait", Server.wait, "The same, answered when it is, or after some time",
          api.Window, query={"end": _END, "seconds": _number(0, WAIT_SECONDS, WAIT_SECONDS, "at most")},
          refusals=(400, 404)),
    Route("GET", "/v1/stages/{stage}/origins", Server.origins, "A stage's origins, the slowest first",
          api.Origins, query={"limit": _number(1, 100_000, 100, "how many")}, refusals=(400, 404)),
    Route("GET", "/v1/stages/{stage}/history", Server.history, "A stage's watermarks of the past, to plot",
          api.History, query={"seconds": _number(1, 10**9, 4 * 3600, "how far back")}, refusals=(400, 404)),
    Route("POST", "/v1/stages/{stage}/roster", Server.roster, "Change a stage's roster",
          api.RosterChanged, api.RosterChange, refusals=(400, 404, 409, 413)),
    Route("DELETE", "/v1/stages/{stage}/partitions/{partition}", Server.forget,
          "Expect nothing of an input partition any more", api.StageState, refusals=(404,)),
    Route("GET", "/health", Server.alive, "Does this server run, and is it the active one?",
          api.Alive, open=True),
]  # fmt: skip


def create_app(config: ServerConfig) -> Starlette:
    """The ASGI application. Raises WatermarkError if the store can't be opened."""
    from replayfilter.watermark.openapi import document

    server = Server(config)
    token = config.token()
    openapi = msgspec.json.encode(document())

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        server.keeper.start()
        yield
        await server.keeper.stop()

    def endpoint(route: Route) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            try:
                if not route.open:
                    _check_token(request, token)
                ask = await _read(request, route, config.server.max_body)
                return _json(await route.handler(server, ask))
            except Refused as refused:
                return _refusal(refused)

        return serve

    async def document_itself(request: Request) -> Response:
        return Response(openapi, media_type="application/json")

    async def unfit(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        allowed = (error.headers or {}).get("Allow", "")
        remedy = f"use {allowed}" if allowed else "GET /openapi.json describes every path"
        return _refusal(Refused(error.status_code, error.detail.lower(), "path", request.url.path, remedy))

    paths = [Path(route.path, endpoint(route), methods=[route.method]) for route in ROUTES]
    paths += [Path(path, _static(*file), methods=["GET"]) for path, file in STATIC.items()]
    paths.append(Path("/openapi.json", document_itself, methods=["GET"]))
    return Starlette(routes=paths, lifespan=lifespan, exception_handlers={HTTPException: unfit})


def _check_token(request: Request, token: str) -> None:
    given = request.headers.get("authorization", "")
    if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        remedy = "send the header Authorization: Bearer TOKEN with the server's token"
        raise Refused(401, "no token, or a wrong one", "header Authorization", "***", remedy)


async def _read(request: Request, route: Route, max_body: int) -> Ask:
    query: dict[str, Any] = {name: each.default for name, each in route.query.items()}
    for name, text in request.query_params.items():
        if name not in route.query:
            known_ones = ", ".join(route.query) or "this path takes none"
            raise Refused(400, "no such parameter", "query", name, f"leave it out; there is: {known_ones}")
        try:
            query[name] = route.query[name].read(text)
        except ValueError as error:
            raise Refused(
                400, "not a value of this parameter", f"query {name}", text[:80], str(error)
            ) from None
    for name, each in route.query.items():
        if each.required and query[name] is None:
            raise Refused(400, "a parameter is missing", "query", name, f"give it: {each.meaning}")
    path = {name: unquote(value) for name, value in request.path_params.items()}
    return Ask(path, query, await _body(request, route.body, max_body) if route.body else None)


async def _body(request: Request, type_: type, limit: int) -> Any:
    """The body as a struct; Refused if it is too long (413), not JSON, or not of the type (400)."""
    remedy = f"the server takes {limit} bytes: send less at once, or raise server.max_body"
    if int(request.headers.get("content-length", 0)) > limit:
        raise Refused(413, "the body is too long", "body", request.headers["content-length"], remedy)
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > limit:
            raise Refused(413, "the body is too long", "body", f"{len(data)} bytes or more", remedy)
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        where = where.strip("`") or "$"
        remedy = "change it; GET /openapi.json describes the body"
        raise Refused(400, what[0].lower() + what[1:], where, _value_at(data, where), remedy) from None
    except msgspec.DecodeError as error:
        raise Refused(400, "not JSON", "body", str(error), "send a JSON object in UTF-8") from None


def _value_at(data: bytes | bytearray, where: str) -> str:
    """The value at one of msgspec's paths, ``$.reports[0].low``, as far as it goes."""
    value: Any = msgspec.json.decode(data)
    for step in where.removeprefix("$").replace("[", ".[").split("."):
        if step.startswith("[") and step[1:-1].isdecimal() and isinstance(value, list):
            value = value[int(step[1:-1])]
        elif step and isinstance(value, dict) and step in value:
            value = value[step]
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else text[:77] + "..."


def _json(answer: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    content = msgspec.json.encode(answer)
    return Response(content, status, headers, "application/json")


def _refusal(refused: Refused) -> Response:
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(refused.status)
    fault = api.Fault(refused.error, refused.where, refused.value, refused.remedy)
    return _json(fault, refused.status, headers)


def _static(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    content = files("replayfilter.watermark").joinpath(name).read_bytes()

    async def serve(request: Request) -> Response:
        return Response(content, media_type=kind, headers=_SAFE)

    return serve
