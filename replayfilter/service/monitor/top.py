"""``replayfilter top``: a live view of a running service on the terminal."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any
from urllib.error import URLError

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from replayfilter.errors import ReplayfilterError
from replayfilter.service.config.model import Config
from replayfilter.service.monitor.storage import LOCATIONS
from replayfilter.spark.counts import ROUTES

EVERY_SECONDS = 1.0
ANSWER_SECONDS = 5.0
PARTITIONS_SHOWN = 12  # the ones with the most waiting records
NAMES_SHOWN = 3  # origins that hold the watermark back


def watch(config: Config, console: Console, once: bool = False) -> None:
    """Show the status until interrupted; ``once``: show it a single time.

    Raises ReplayfilterError if the service doesn't answer at first. Later it shows the error and tries again.
    """
    if not config.http.port:
        raise ReplayfilterError(
            "http.port = 0: the service serves no status; set a port under [http] and restart the service"
        )
    url = f"http://{config.http.host}:{config.http.port}/status"
    view = render(fetch_status(url))
    if once:
        console.print(view)
        return
    with Live(view, console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            time.sleep(EVERY_SECONDS)
            try:
                view = render(fetch_status(url))
                live.update(view, refresh=True)
            except ReplayfilterError as error:
                live.update(Group(Text(str(error), style="red"), view), refresh=True)


def fetch_status(url: str) -> dict[str, Any]:
    """The status at ``url``. Raises ReplayfilterError if there is no service or it doesn't answer."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as response:
            status: dict[str, Any] = json.load(response)
            if "phase" not in status:
                raise ValueError("the response has no phase")
            return status
    except (URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise ReplayfilterError(
            f"no service answers at {url} ({reason}); start it, or correct http.port and http.bind"
        ) from error
    except ValueError as error:
        raise ReplayfilterError(f"the server at {url} is not replayfilter; correct http.port") from error


def render(status: dict[str, Any]) -> RenderableType:
    """The view of a status."""
    ready = status["ready"]
    head = Text.assemble(
        (status["service"], "bold"),
        "  ",
        ("ready" if ready else "not ready", "bold green" if ready else "bold red"),
        f"  {status['phase']}, up {_span(status['uptime_seconds'])}, {status['batches']:,} batches",
    )
    reasons = [Text(reason, style="red") for reason in status["reasons"]]
    return Group(head, *reasons, Text(), _routes(status), Text(), _facts(status), Text(), _lag(status))


def _routes(status: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("records")
    for route in ROUTES:
        table.add_column(route, justify="right")
    last = status["last_batch"]
    table.add_row("since the start", *(f"{status['totals'][route]:,}" for route in ROUTES))
    table.add_row("last batch", *(f"{last['routes'][route]:,}" if last else "-" for route in ROUTES))
    return table


def _facts(status: dict[str, Any]) -> Table:
    last, state, counts = status["last_batch"], status["state"], status["counts"]
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column()
    table.add_row("last commit", f"{_span(status['last_commit_age_seconds'])} ago" if last else "none yet")
    if last:
        speed = f"{last['records']:,} records in {last['seconds']['total']:.2f} s"
        table.add_row("last batch", f"{speed} ({last['records_per_second']:,}/s)")
        steps = (f"{step} {took:.2f} s" for step, took in last["seconds"].items() if step != "total")
        table.add_row("", ", ".join(steps))
        table.add_row("keys", f"{state['keys']:,} in {state['buckets']:,} buckets, {state['bytes']:,} bytes")
        sizes = [f"{size:,} {LOCATIONS[location]}" for location, size in status["sizes"].items()]
        table.add_row("state bytes", ", ".join(sizes))
        if conflicts := counts.get("conflict", 0):
            table.add_row("conflicts", f"{conflicts:,} duplicates with other content")
        table.add_row("marks", f"{state['sources']:,}; gaps {counts.get('state_gaps', 0):,}")
        if low := status["watermark"]:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(low))
            table.add_row("watermark", f"{when}, {_span(status['now'] - low)} behind")
        if laggards := _held_back_by(status.get("laggards")):
            table.add_row("held back by", laggards)
        names = ("transactions", "takeovers", "fences", "retries")
        table.add_row("delivery", ", ".join(f"{name} {counts.get(name, 0):,}" for name in names))
    if errors := ", ".join(f"{reason} {count:,}" for reason, count in status["errors"].items()):
        table.add_row("errors", errors)
    if status["retries"]:
        table.add_row("restarts", f"{status['retries']}; last error: {status['last_fault']}")
    return table


def _held_back_by(laggards: dict[str, Any] | None) -> str:
    """The origins that hold the watermark back; empty if there are none."""
    if not laggards or not laggards["origins"]["lagging"]:
        return ""
    counts, slowest = laggards["origins"], [each["origin"] for each in laggards["slowest"][:NAMES_SHOWN]]
    more = f" and {counts['lagging'] - len(slowest):,} more" if counts["lagging"] > len(slowest) else ""
    numbers = f"{counts['lagging']:,} of {counts['expected']:,} origins, {laggards['may_lag']:,} may lag"
    return f"{numbers}: {', '.join(slowest)}{more}; for {_span(laggards['still_seconds'])}"


def _lag(status: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("partition", overflow="fold")
    for name in ("next", "end", "waiting", "since", "held back"):
        table.add_column(name, justify="right")
    lags = sorted(status["lag"], key=lambda lag: -lag["records"] - lag["held_back"])
    for lag in lags[:PARTITIONS_SHOWN]:
        numbers = (f"{lag[name]:,}" for name in ("next", "end", "records"))
        table.add_row(f"{lag['topic']}-{lag['partition']}", *numbers, _span(lag["seconds"]), _held_back(lag))
    rest = lags[PARTITIONS_SHOWN:]
    waiting = f"{status['waiting']:,}"
    table.add_row(f"and {len(rest)} more" if rest else "all", "", "", waiting, "", "", style="bold")
    return table


def _held_back(lag: dict[str, Any]) -> str:
    """The records of a partition that an open transaction holds back, and for how long; empty if none."""
    return f"{lag['held_back']:,} for {_span(lag['held_back_seconds'])}" if lag["held_back"] else ""


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"
