"""``replayfilter watermark serve`` and ``wait``. docs/reference/watermark-server.md describes them."""

from __future__ import annotations

import logging
import signal
import socket
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from replayfilter.errors import WatermarkError

if TYPE_CHECKING:
    from replayfilter.watermark.api import Window

TIMED_OUT = 3
SHOWN = 20  # names of origins that a command lists
LINE_SECONDS = 10  # between lines where no bar can be drawn

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The low-watermark server, and waiting for it."
)


@app.callback()
def watermark() -> None:
    """The low-watermark server, and waiting for it."""


@app.command()
def serve(
    path: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="Its TOML file: see docs/reference/watermark-server.md.")
    ],
) -> None:
    """Run the watermark server in the foreground. A second one on the same store stands by."""
    import uvicorn

    from replayfilter.watermark.server import create_app
    from replayfilter.watermark.server_config import load

    config = load(path)
    listening = _listen(config.server.host, config.server.port)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(config), lifespan="on", log_level="warning", access_log=False,
            timeout_graceful_shutdown=3, server_header=False,
        )
    )  # fmt: skip
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal again once all is done
        signal.signal(number, lambda *_: None)
    host, port = listening.getsockname()[:2]
    typer.echo(f"watermark: http://{f'[{host}]' if ':' in host else host}:{port}")
    server.run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=1024)
        # asyncio does this only for sockets that it made itself; else each answer waits 40 ms for an ACK.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise WatermarkError(
            f"server.host = {host}, server.port = {port}: can't listen there ({error.strerror}); "
            "choose another port, or end what listens"
        ) from None


@app.command()
def wait(
    stage: Annotated[str, typer.Argument(help="A stage of the server's config.")],
    time: Annotated[
        str, typer.Argument(help="ISO 8601, or microseconds since 1970: the end of the hour, say.")
    ],
    timeout: Annotated[str, typer.Option(help='How long, such as "90m"; without it for ever.')] = "",
    server: Annotated[
        list[str] | None,
        typer.Option(
            envvar="REPLAYFILTER_WATERMARK_SERVER", help="The server's URL; again for each standby."
        ),
    ] = None,
    token: Annotated[
        str, typer.Option(envvar="REPLAYFILTER_WATERMARK_TOKEN", help="Its token; best by the variable.")
    ] = "",
) -> None:
    """Return once all of STAGE before TIME is in, at the declared completeness. Exit code 3: timeout."""
    from replayfilter.settings.durations import parse_duration
    from replayfilter.watermark.client import watch
    from replayfilter.watermark.times import parse_time, show_time

    try:
        end = parse_time(time)
        seconds = parse_duration(timeout) / 1e6 if timeout else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    console, window = Console(stderr=True), None
    with _Progress(console, f"{stage} to {show_time(end)}") as progress:
        for window in watch(server or ["http://127.0.0.1:8321"], token, stage, end, seconds):
            progress.show(window)
    assert window is not None
    if window.closed:
        typer.echo(f"{stage}: complete to {show_time(end)}")
        return
    for line in still_missing(window):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(TIMED_OUT)


def still_missing(window: Window) -> list[str]:
    """What to tell of a window that is not closed, a line each."""
    from replayfilter.watermark.times import show_time

    lines = [f"{window.stage}: complete only to {show_time(window.low)}, held back by {window.held.by}"]
    if window.behind:
        more = window.behind - min(SHOWN, len(window.names))
        names = ", ".join(window.names[:SHOWN]) + (f" and {more} more" if more else "")
        lines.append(f"{window.missing} more must come of these {window.behind}: {names}")
    elif window.held.names:
        lines.append(f"which are {', '.join(window.held.names[:SHOWN])}")
    return lines


class _Progress:
    """A bar on a terminal; elsewhere a line when something changed, at most every ten seconds."""

    def __init__(self, console: Console, what: str) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console, self._what = console, what
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"))
        self._bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
        self._task = self._bar.add_task(what, total=None, said="asking")
        self._last: tuple[str, float] = ("", -LINE_SECONDS)

    def __enter__(self) -> _Progress:
        self._shown = self._bar if self._console.is_terminal else nullcontext()
        self._shown.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._shown.__exit__(None, None, None)

    def show(self, window: Window) -> None:
        """Show how far it is."""
        from time import monotonic

        done, total = window.origins - window.missing, window.origins
        said = f"{window.missing} of {total} missing" if total else f"held back by {window.held.by}"
        if self._console.is_terminal:
            self._bar.update(self._task, completed=done, total=total or None, said=said)
        elif not window.closed and said != self._last[0] and monotonic() - self._last[1] >= LINE_SECONDS:
            self._last = said, monotonic()
            self._console.print(f"{self._what}: {said}", highlight=False, markup=False, soft_wrap=True)
