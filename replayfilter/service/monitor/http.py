"""The HTTP server of the service: metrics, health and the status page. Read-only, and without secrets.

| path | response |
|---|---|
| ``/metrics`` | metrics in the text format of Prometheus or OpenMetrics |
| ``/livez`` | 200; or 503 with reasons, then the process should be restarted |
| ``/readyz`` | 200; or 503 with reasons, then the service is not working now |
| ``/status`` | the whole status as JSON |
| ``/`` | the status page |
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from importlib.resources import files
from types import TracebackType
from typing import Self

import uvicorn
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from replayfilter.errors import ConfigError
from replayfilter.service.monitor.metrics import registry_of
from replayfilter.service.monitor.status import Status

START_SECONDS, END_SECONDS = 5.0, 2.0
_PAGE = {"/": ("page.html", "text/html"), "/page.js": ("page.js", "text/javascript")}
_SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def status_app(status: Status, clock: Callable[[], float] = time.time) -> Starlette:
    """The application that serves ``status``."""
    registry = registry_of(status, clock)

    async def metrics(request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), media_type=kind, headers=_SAFE)

    async def livez(request: Request) -> Response:
        return _health(status, status.liveness_problems(clock()))

    async def readyz(request: Request) -> Response:
        return _health(status, status.readiness_problems(clock()))

    async def snapshot(request: Request) -> Response:
        return JSONResponse(status.snapshot(clock()), headers=_SAFE)

    handlers = {"/metrics": metrics, "/livez": livez, "/readyz": readyz, "/status": snapshot}
    return Starlette(
        routes=[
            *(Route(path, handler) for path, handler in handlers.items()),
            *(Route(path, _static(*page)) for path, page in _PAGE.items()),
        ]
    )


def _health(status: Status, reasons: list[str]) -> Response:
    body = {"ok": not reasons, "phase": str(status.phase), "reasons": reasons}
    return JSONResponse(body, 503 if reasons else 200, headers=_SAFE)


def _static(name: str, kind: str) -> Callable[[Request], Response]:
    content = files("replayfilter.service.monitor").joinpath(name).read_bytes()

    def page(request: Request) -> Response:
        return Response(content, media_type=kind, headers=_SAFE)

    return page


class StatusServer:
    """Serves the application on a port, in a thread of its own, while it is used as a context manager.

    ``port`` is the actual port, also if port 0 was asked for. The constructor raises ConfigError if the
    server can't listen on the address.
    """

    def __init__(self, status: Status, bind: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((bind, port))
        except OSError as error:
            self._socket.close()
            raise ConfigError(
                [
                    f'http.port = {port}: can\'t listen on this port at http.bind = "{bind}" '
                    f"({error.strerror or error}); choose another port or address, or port 0 for no server"
                ]
            ) from error
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            status_app(status), log_config=None, access_log=False, lifespan="off", server_header=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(END_SECONDS)
        self._socket.close()
