"""``replayfilter watermark serve``, ``show`` and ``wait``. docs/reference/cli.md describes them."""

from __future__ import annotations

import logging
import signal
import socket
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer
from rich.console import Console

from replayfilter.errors import WatermarkError

if TYPE_CHECKING:
    from replayfilter.watermark.api import HeldBack, OriginState, StageState, Window

TIMEOUT_EXIT_CODE = 3
MAX_SHOWN_NAMES = 20
LINE_INTERVAL_SECONDS = 10  # between lines of progress, where no bar can be drawn
DEFAULT_SERVER = "http://127.0.0.1:8321"

Stage = Annotated[str, typer.Argument(help="A stage in the server's config.")]
Servers = Annotated[
    list[str] | None,
    typer.Option(
        envvar="REPLAYFILTER_WATERMARK_SERVER", help="The URL of the server; repeat it for each standby."
    ),
]
Token = Annotated[
    str,
    typer.Option(
        envvar="REPLAYFILTER_WATERMARK_TOKEN", help="The server's token; better set by the variable."
    ),
]

App = Annotated[str, typer.Option("--app", help="The application of the stage.")]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The low-watermark server, and commands that show a watermark and wait for it.",
)


@app.callback()
def watermark() -> None:
    """The low-watermark server, and commands that show a watermark and wait for it."""


@app.command()
def serve(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG", help="The server's TOML file: see docs/reference/watermark-server.md."
        ),
    ],
) -> None:
    """Run the watermark server in the foreground. A second one on the same store is a standby."""
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
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal again after the shutdown
        signal.signal(number, lambda *_: None)
    host, port = listening.getsockname()[:2]
    typer.echo(f"watermark: http://{f'[{host}]' if ':' in host else host}:{port}")
    server.run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=1024)
        # asyncio sets this only on sockets that it created. Without it each response waits 40 ms for an ACK.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise WatermarkError(
            f"server.host = {host}, server.port = {port}: can't listen there ({error.strerror}); "
            "use another port, or stop the process that uses this one"
        ) from None


@app.command()
def show(
    stage: Stage,
    origin: Annotated[
        list[str] | None, typer.Option(help="The name of an origin; repeat it for several.")
    ] = None,
    application: App = "default",
    server: Servers = None,
    token: Token = "",
) -> None:
    """Show how far STAGE is and what holds it back, and how far the given origins are."""
    from replayfilter.watermark import api
    from replayfilter.watermark.client import get, in_app

    servers, path = server or [DEFAULT_SERVER], f"/v1/stages/{quote(stage, safe='')}"
    lines = [line_of_stage(get(servers, token, in_app(path, application), api.StageState))]
    for name in origin or ():
        query = in_app(f"{path}/origins?name={quote(name, safe='')}", application)
        found = get(servers, token, query, api.Origins)
        lines += map(line_of_origin, found.slowest)
    for line in lines:
        typer.echo(line)


def line_of_stage(state: StageState) -> str:
    """A stage in one line."""
    from replayfilter.watermark.times import format_time

    held = state.held_back
    line = f"{state.stage}: complete to {format_time(state.output_low)}, {reason_of(held)}"
    shown = held.names[:MAX_SHOWN_NAMES]
    more = f" and {held.count - len(shown)} more" if held.count > len(shown) else ""
    return f"{line}: {', '.join(shown)}{more}" if shown else line


def reason_of(held: HeldBack) -> str:
    """What holds a stage back, without the names."""
    return "waiting" if held.by == "nothing" else f"held back by {held.by}"


def line_of_origin(state: OriginState) -> str:
    """An origin in one line."""
    from replayfilter.watermark.times import format_time

    if state.progress is None:
        return f"{state.origin}: has not reported" + (
            "" if state.counted else "; idle, so nothing waits for it"
        )
    line = f"{state.origin}: at {format_time(state.progress)}"
    if state.behind_us is not None:
        line += f", {state.behind_us / 1e6:,.1f} s behind the largest time"
    if state.since_us is not None:
        line += f", there since {format_time(state.since_us)}"
    return line + ("" if state.counted else "; idle, so nothing waits for it")


@app.command()
def wait(
    stage: Stage,
    time: Annotated[
        str, typer.Argument(help="ISO 8601, or microseconds since 1970: for example, the end of an hour.")
    ],
    timeout: Annotated[str, typer.Option(help='How long to wait, such as "90m". Default: no limit.')] = "",
    application: App = "default",
    server: Servers = None,
    token: Token = "",
) -> None:
    """Wait until all of STAGE before TIME has arrived, at the declared completeness. Exit code 3: timeout."""
    from replayfilter.settings.durations import parse_duration
    from replayfilter.watermark.client import poll_window
    from replayfilter.watermark.times import format_time, parse_time

    try:
        end = parse_time(time)
        seconds = parse_duration(timeout) / 1e6 if timeout else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    console, window = Console(stderr=True), None
    with _Progress(console, f"{stage} to {format_time(end)}") as progress:
        for window in poll_window(server or [DEFAULT_SERVER], token, stage, end, seconds, application):
            progress.show(window)
    assert window is not None
    if window.closed:
        typer.echo(f"{stage}: complete to {format_time(end)}")
        return
    for line in still_missing(window):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(TIMEOUT_EXIT_CODE)


def still_missing(window: Window) -> list[str]:
    """What a window still waits for, as lines of text."""
    from replayfilter.watermark.times import format_time

    lines = [f"{window.stage}: complete only to {format_time(window.low)}, {reason_of(window.held_back)}"]
    if window.behind:
        more = window.behind - min(MAX_SHOWN_NAMES, len(window.names))
        names = ", ".join(window.names[:MAX_SHOWN_NAMES]) + (f" and {more} more" if more else "")
        lines.append(f"{window.missing} of these {window.behind} origins must still arrive: {names}")
    elif window.held_back.names:
        lines.append(f"these are: {', '.join(window.held_back.names[:MAX_SHOWN_NAMES])}")
    return lines


class _Progress:
    """A progress bar on a terminal; elsewhere a line after a change, at most every ten seconds."""

    def __init__(self, console: Console, label: str) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console, self._label = console, label
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
        self._bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
        self._task = self._bar.add_task(label, total=None, state="asking the server")
        self._last: tuple[str, float] = ("", -LINE_INTERVAL_SECONDS)

    def __enter__(self) -> _Progress:
        self._shown = self._bar if self._console.is_terminal else nullcontext()
        self._shown.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._shown.__exit__(None, None, None)

    def show(self, window: Window) -> None:
        """Show the progress."""
        from time import monotonic

        done, total = window.origins - window.missing, window.origins
        state = f"{window.missing} of {total} missing" if total else reason_of(window.held_back)
        last_state, last_time = self._last
        if self._console.is_terminal:
            self._bar.update(self._task, completed=done, total=total or None, state=state)
        elif not window.closed and state != last_state and monotonic() - last_time >= LINE_INTERVAL_SECONDS:
            self._last = state, monotonic()
            self._console.print(f"{self._label}: {state}", highlight=False, markup=False, soft_wrap=True)
