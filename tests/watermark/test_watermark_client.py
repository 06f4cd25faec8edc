"""The reporting client: it never blocks, drops only superseded reports, and finds the active server."""

from __future__ import annotations

import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from replayfilter.errors import WatermarkError
from replayfilter.watermark.api import Report
from replayfilter.watermark.client import (
    MAX_ORIGINS_PER_REQUEST,
    WatermarkClient,
    merge_reports,
    poll_window,
    split_reports,
    watch,
)
from tests.support.server_process import ServerProcess, write_config

NOBODY = "http://127.0.0.1:1"
STAGES = '[stages.web]\nroster = ["a", "b"]\n[stages.next]\nupstream = ["web"]'


def wait_until(condition: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def low_is(server: ServerProcess, low: int) -> bool:
    return server.low("web") == low


def test_it_reports_every_second(tmp_path: Path) -> None:
    with ServerProcess(write_config(tmp_path, STAGES)) as server:
        client = WatermarkClient([server.url])
        for time_us in range(1, 4):
            client.report("web", "0", origins={"a": time_us, "b": time_us})
            started = time.monotonic()
            wait_until(partial(low_is, server, time_us), 5)
            assert time.monotonic() - started < 4
        wait_until(lambda: client.lows["web"].output_low == 3)
        assert client.close()


def test_without_a_server_the_caller_does_not_wait_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting: set[int] = set()
    connect = socket.socket.connect

    def connect_and_note(self: socket.socket, address: Any) -> None:
        connecting.add(threading.get_ident())
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_and_note)
    config = write_config(tmp_path, STAGES)
    with ServerProcess(config) as server:
        port = int(server.url.rsplit(":", 1)[1])
    client = WatermarkClient([NOBODY, f"http://127.0.0.1:{port}"], every=0.05)
    connecting.clear()  # starting the server has connected too
    rng, largest = random.Random(1), {"a": 0, "b": 0}
    for _ in range(2_000):
        origins = {name: rng.randint(0, 10**9) for name in rng.sample(["a", "b"], rng.randint(0, 2))}
        for name, progress in origins.items():
            largest[name] = max(largest[name], progress)
        client.report("web", str(rng.randint(0, 3)), oldest=rng.randint(0, 10), origins=origins)
    assert threading.get_ident() not in connecting, "the caller never uses the network"
    assert not client.flush(0.3)
    assert connecting, "the client has tried"
    assert client.last_error is not None
    assert "no watermark server responds" in client.last_error
    for partition in range(4):
        client.report("web", str(partition))
    with ServerProcess(write_config(tmp_path, STAGES, port=port)) as server:
        assert client.flush(20)
        states = server.get("/v1/stages/web/origins")["slowest"]
        assert {each["origin"]: each["progress"] for each in states} == largest
        assert server.low("web") == min(largest.values()), "no unfinished work is left in any partition"
        assert client.last_error is None
        assert client.close()


def test_it_switches_to_the_server_that_takes_over(tmp_path: Path) -> None:
    one, two = (write_config(tmp_path, STAGES, name) for name in ("one.toml", "two.toml"))
    with ServerProcess(one) as first, ServerProcess(two, standby=True) as second:
        client = WatermarkClient([second.url, first.url], every=0.05)
        client.report("web", origins={"a": 1, "b": 1})
        assert client.flush(10)
        assert first.low("web") == 1
        first.kill()
        client.report("web", origins={"a": 2, "b": 2})
        assert client.flush(20)
        assert second.low("web") == 2
        assert client.close()


def test_with_two_clients_a_watermark_never_goes_back(tmp_path: Path) -> None:
    with ServerProcess(write_config(tmp_path, STAGES)) as server:
        stop, seen = threading.Event(), [-1]

        def read_low() -> None:
            while not stop.is_set():
                seen.append(server.low("web") or -1)

        reader = threading.Thread(target=read_low)
        reader.start()
        clients = [WatermarkClient([server.url], every=0.01) for _ in range(2)]
        rng = random.Random(3)
        for step in range(150):
            for client in clients:
                at = 100 + step + rng.randint(-30, 0)
                client.report("web", "0", oldest=at, origins={"a": at, "b": at + rng.randint(0, 5)})
            time.sleep(0.005)
        closed = [client.close() for client in clients]
        assert all(closed)
        stop.set()
        reader.join()
        assert seen == sorted(seen)
        assert seen[-1] > 150


def test_a_refused_report_is_logged_and_kept(tmp_path: Path) -> None:
    with ServerProcess(write_config(tmp_path, STAGES)) as server:
        client = WatermarkClient([server.url], every=0.05)
        client.report("wep", origins={"a": 1})
        assert not client.flush(0.5)
        assert client.last_error is not None
        assert "no such stage ($.reports[0].stage: wep)" in client.last_error
        assert client.fault == client.last_error, "its name in earlier versions"
        assert not client.close(0.2)


def test_watch_is_the_earlier_name_of_poll_window() -> None:
    assert watch is poll_window


def test_many_origins_are_split_into_requests() -> None:
    reports = [Report("s", str(part), origins={f"{part}-{n}": n for n in range(size)}, idle=["x"])
               for part, size in enumerate([12_000, 3, 0, 4_999, 1])]  # fmt: skip
    parts = list(split_reports(reports))
    assert all(sum(len(report.origins) for report in part) <= MAX_ORIGINS_PER_REQUEST for part in parts)
    joined: dict[str, Report] = {}
    for report in (report for part in parts for report in part):
        before = joined.get(report.partition)
        joined[report.partition] = report if before is None else merge_reports(before, report)
    assert joined == {report.partition: report for report in reports}
    assert sum(len(part) for part in parts) <= 8
    assert list(split_reports([])) == []


def test_merging_keeps_the_latest_state_and_the_largest_times() -> None:
    older = Report("s", "p", low=9, oldest=5, backlog=3, origins={"a": 7, "b": 1}, idle=["a", "c"])
    newer = Report("s", "p", low=4, oldest=None, backlog=0, origins={"a": 8}, idle=["d"])
    assert merge_reports(older, newer) == Report("s", "p", 9, None, 0, {"a": 8, "b": 1}, ["c", "d"])


def test_polling_ends_at_the_timeout_and_survives_a_restart(tmp_path: Path) -> None:
    config = write_config(tmp_path, STAGES)
    with ServerProcess(config) as server:
        server.report("next", low=5)
        windows = list(poll_window([server.url], "", "next", 5, 0.5))
        assert [window.closed for window in windows] == [False] * len(windows)
        assert windows[-1].names == ["web: a", "web: b"]
        with pytest.raises(WatermarkError, match="no such stage"):
            next(poll_window([server.url], "", "wep", 5, 1))
        port = int(server.url.rsplit(":", 1)[1])
        found: list[bool] = []
        waiting = threading.Thread(
            target=lambda: found.extend(
                window.closed for window in poll_window([server.url], "", "next", 5, 40)
            )
        )
        waiting.start()
        time.sleep(0.3)
        server.signal(signal.SIGKILL)
        server.process.wait(10)
    with ServerProcess(write_config(tmp_path, STAGES, port=port)) as server:
        server.report("web", {"a": 5, "b": 5})
        waiting.join(20)
        assert found[-1]
    with pytest.raises(WatermarkError, match="no watermark server responds"):
        list(poll_window([NOBODY], "", "web", 5, 0.2))
