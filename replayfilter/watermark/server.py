"""The watermark server: the routes over HTTP, with the token, JSON bodies and errors; metrics; the page."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

import msgspec
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from replayfilter.watermark.api import RequestError
from replayfilter.watermark.openapi import openapi_document
from replayfilter.watermark.routes import ROUTES, CheckedRequest, Handlers, Route
from replayfilter.watermark.server_config import ServerConfig
from replayfilter.watermark.server_metrics import ServerCollector

STATIC_FILES = {"/": ("page.html", "text/html"), "/page.js": ("page.js", "text/javascript")}
_STATIC_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
_ERROR_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}
_SHOWN_CHARACTERS = 80  # of a wrong value


def create_app(config: ServerConfig) -> Starlette:
    """The ASGI application. Raises WatermarkError if the store can't be opened."""
    handlers = Handlers(config)
    token = config.token()
    document = msgspec.json.encode(openapi_document())
    requests: Counter[tuple[str, int]] = Counter()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServerCollector(handlers.writer, requests))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        handlers.writer.start()
        yield
        await handlers.writer.stop()

    def endpoint(route: Route) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            try:
                if not route.open:
                    _check_token(request, token)
                checked = await _check(request, route, config.server.max_body)
                response = _json_response(await route.handler(handlers, checked))
            except RequestError as error:
                response = _error_response(error)
            requests[route.path, response.status_code] += 1
            return response

        return serve

    async def serve_document(request: Request) -> Response:
        return Response(document, media_type="application/json")

    async def serve_metrics(request: Request) -> Response:
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), media_type=media_type, headers=_STATIC_HEADERS)

    async def serve_http_error(request: Request, error: Exception) -> Response:
        """The response for an unknown path, or a method that the path doesn't allow."""
        assert isinstance(error, HTTPException)
        allowed = (error.headers or {}).get("Allow", "")
        remedy = f"use {allowed}" if allowed else "GET /openapi.json describes all paths"
        return _error_response(
            RequestError(error.status_code, error.detail.lower(), "path", request.url.path, remedy)
        )

    paths = [StarletteRoute(route.path, endpoint(route), methods=[route.method]) for route in ROUTES]
    paths += [StarletteRoute(path, _static(*file), methods=["GET"]) for path, file in STATIC_FILES.items()]
    paths.append(StarletteRoute("/openapi.json", serve_document, methods=["GET"]))
    paths.append(StarletteRoute("/metrics", serve_metrics, methods=["GET"]))
    return Starlette(routes=paths, lifespan=lifespan, exception_handlers={HTTPException: serve_http_error})


def _check_token(request: Request, token: str) -> None:
    given = request.headers.get("authorization", "")
    if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        remedy = "send the header Authorization: Bearer TOKEN with the server's token"
        raise RequestError(401, "the token is missing or wrong", "header Authorization", "***", remedy)


async def _check(request: Request, route: Route, max_body: int) -> CheckedRequest:
    query: dict[str, Any] = {name: parameter.default for name, parameter in route.query.items()}
    for name, text in request.query_params.items():
        if name not in route.query:
            remedy = f"remove it; this path has: {', '.join(route.query) or 'no parameters'}"
            raise RequestError(400, "no such parameter", "query", name, remedy)
        try:
            query[name] = route.query[name].parse(text)
        except ValueError as error:
            raise RequestError(
                400, "not a value of this parameter", f"query {name}", text[:_SHOWN_CHARACTERS], str(error)
            ) from None
    for name, parameter in route.query.items():
        if parameter.required and query[name] is None:
            raise RequestError(400, "a parameter is missing", "query", name, f"add {parameter.description}")
    path = {name: unquote(value) for name, value in request.path_params.items()}
    body = await _read_body(request, route.body, max_body) if route.body else None
    return CheckedRequest(path, query, body)


async def _read_body(request: Request, type_: type, limit: int) -> Any:
    """The body as a struct. RequestError if it is too long (413), not JSON, or not of the type (400)."""
    remedy = f"the limit is {limit} bytes: send less at once, or raise server.max_body"
    if int(request.headers.get("content-length", 0)) > limit:
        raise RequestError(413, "the body is too long", "body", request.headers["content-length"], remedy)
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > limit:
            raise RequestError(413, "the body is too long", "body", f"{len(data)} bytes or more", remedy)
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        where = where.strip("`") or "$"
        remedy = "correct it; GET /openapi.json describes the body"
        raise RequestError(400, what[0].lower() + what[1:], where, _value_at(data, where), remedy) from None
    except msgspec.DecodeError as error:
        raise RequestError(400, "not JSON", "body", str(error), "send a JSON object in UTF-8") from None


def _value_at(data: bytes | bytearray, path: str) -> str:
    """The value at one of msgspec's paths, such as ``$.reports[0].low``, or at the part of it that exists."""
    value: Any = msgspec.json.decode(data)
    for step in path.removeprefix("$").replace("[", ".[").split("."):
        if step.startswith("[") and step[1:-1].isdecimal() and isinstance(value, list):
            value = value[int(step[1:-1])]
        elif step and isinstance(value, dict) and step in value:
            value = value[step]
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def _json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def _error_response(error: RequestError) -> Response:
    return _json_response(error.body, error.status, _ERROR_HEADERS.get(error.status))


def _static(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    content = files("replayfilter.watermark").joinpath(name).read_bytes()

    async def serve(request: Request) -> Response:
        return Response(content, media_type=media_type, headers=_STATIC_HEADERS)

    return serve
