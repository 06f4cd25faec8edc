"""``top``: what it draws, from the status of a real server."""

from __future__ import annotations

import io
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from replayfilter.errors import ReplayfilterError
from replayfilter.service.cli.main import app
from replayfilter.service.monitor.http import StatusServer
from replayfilter.service.monitor.lag import Lag
from replayfilter.service.monitor.status import Phase, Status
from replayfilter.service.monitor.top import fetch_status, render
from tests.support.batches import busy_status


def drawn(status: Status, now: float = 2000.0) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(render(status.snapshot(now)))
    return out.getvalue()


def test_top_draws_routes_lag_and_state() -> None:
    text = drawn(busy_status())
    assert "orders  ready  running, up 17 min, 2 batches" in text
    lines = {line.split("  ")[0]: line.split() for line in text.splitlines() if line}
    assert lines["since the start"][-5:] == ["14"] * 5
    assert lines["last batch"]
    assert "7 in memory, 140 on disk, 210 on disk, with old versions" in text
    assert "14 duplicates with other content" in text
    assert "4 of 30 origins, 3 may lag: h-29, h-1 and 2 more; for 10 s" in text
    assert lines["orders-0"] == ["orders-0", "10", "40", "30", "4", "s"]
    assert lines["orders-1"] == ["orders-1", "5", "5", "0", "-", "11", "for", "65", "s"]


def test_before_the_first_batch_and_after_an_error() -> None:
    status = Status("orders", 120.0, {}, 1990.0)
    status.enter(Phase.RETRYING, 1995.0, "lane orders-3 is lost")
    text = drawn(status)
    assert "not ready  retrying" in text
    assert "none yet" in text
    assert "lane orders-3 is lost" in text


def test_only_the_partitions_with_the_most_waiting_records_are_shown() -> None:
    status = busy_status()
    status.set_lags([Lag("orders", part, 0, part * 10, 1.0) for part in range(64)], 2000.0)
    text = drawn(status)
    assert "orders-63" in text
    assert "orders-3 " not in text
    assert "and 52 more" in text


def test_the_once_option_prints_the_view_a_single_time(tmp_path: Path) -> None:
    status = busy_status()
    status.enter(Phase.RUNNING, time.time())
    with StatusServer(status, "127.0.0.1", 0) as server:
        path = tmp_path / "orders.toml"
        path.write_text(config(server.port))
        result = CliRunner().invoke(app, ["top", str(path), "--once"])
        assert result.exit_code == 0, result.output
        assert "since the start" in result.output


def test_an_unreachable_service_is_an_error_that_names_the_url(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ReplayfilterError, match=f"no service answers at http://127.0.0.1:{port}/status"):
        fetch_status(f"http://127.0.0.1:{port}/status")
    path = tmp_path / "orders.toml"
    path.write_text(config(0))
    result: Any = CliRunner().invoke(app, ["top", str(path), "--once"])
    assert (result.exit_code, "http.port = 0" in result.output) == (1, True)


def config(port: int) -> str:
    return f"""
[service]
name = "orders"
checkpoint = "checkpoint"
[kafka]
bootstrap = "localhost:9092"
[input]
topics = ["orders"]
[dedup]
key = ["id"]
expiry_key = "ts"
period = "1h"
[output]
unique = "o.u"
duplicate = "o.d"
expired = "o.x"
error = "o.e"
[http]
port = {port}
"""
