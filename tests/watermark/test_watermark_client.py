"""The reporting client: never in the way, drops nothing but what is superseded, finds the active server."""

from __future__ import annotations

import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replayfilter.errors import WatermarkError
from replayfilter.watermark.api import Report
from replayfilter.watermark.client import ORIGINS, WatermarkClient, merged, requests_of, watch
from tests.support.server_process import ServerProcess, write_config

NOBODY = "http://127.0.0.1:1"
STAGES = '[stages.web]\nroster = ["a", "b"]\n[stages.next]\nupstream = ["web"]'


def eventually(true: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_reports_by_itself_each_second(tmp_path: Path) -> None:
    with ServerProcess(write_config(tmp_path, STAGES)) as server:
        client = WatermarkClient([server.url])
        for time_us in range(1, 4):
            client.report("web", "0", origins={"a": time_us, "b": time_us})
            started = time.monotonic()
            eventually(lambda time_us=time_us: server.low("web") == time_us, 5)
            assert time.monotonic() - started < 4
        eventually(lambda: client.lows["web"].output_low == 3)
        assert client.close()


def test_no_server_costs_the_caller_nothing_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting: set[int] = set()
    connect = socket.socket.connect

    def noted(self: socket.socket, address: Any) -> None:
        connecting.add(threading.get_ident())
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", noted)
    config = write_config(tmp_path, STAGES)
    with ServerProcess(config) as server:
        port = int(server.url.rsplit(":", 1)[1])
    client = WatermarkClient([NOBODY, f"http://127.0.0.1:{port}"], every=0.05)
    connecting.clear()  # the server was waited for
    rng, largest = random.Random(1), {"a": 0, "b": 0}
    for _ in range(2_000):
        origins = {name: rng.randint(0, 10**9) for name in rng.sample(["a", "b"], rng.randint(0, 2))}
        for name, progress in origins.items():
            largest[name] = max(largest[name], progress)
        client.report("web", str(rng.randint(0, 3)), oldest=rng.randint(0, 10), origins=origins)
    assert threading.get_ident() not in connecting, "the caller never talks to the network"
    assert not client.flush(0.3)
    assert connecting, "it was tried"
    assert client.fault is not None
    assert "no watermark server answers" in client.fault
    for partition in range(4):
        client.report("web", str(partition))
    with ServerProcess(write_config(tmp_path, STAGES, port=port)) as server:
        assert client.flush(20)
        states = server.get("/v1/stages/web/origins")["slowest"]
        assert {each["origin"]: each["progress"] for each in states} == largest
        assert server.low("web") == min(largest.values()), "no unfinished work is left in any partition"
        assert client.fault is None
        assert client.close()


def test_it_goes_over_to_the_server_that_takes_over(tmp_path: Path) -> None:
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


def test_two_clients_of_a_stage_never_make_it_go_back(tmp_path: Path) -> None:
    with ServerProcess(write_config(tmp_path, STAGES)) as server:
        stop, seen = threading.Event(), [-1]

        def watch_it() -> None:
            while not stop.is_set():
                seen.append(server.low("web") or -1)

        watcher = threading.Thread(target=watch_it)
        watcher.start()
        clients = [WatermarkClient([server.url], every=0.01) for _ in range(2)]
        rng = random.Random(3)
        for step in range(150):
            for client in clients:
                at = 100 + step + rng.randint(-30, 0)
                client.report("web", "0", oldest=at, origins={"a": at, "b": at + rng.randint(0, 5)})
            time.sleep(0.005)
        assert all([client.close() for client in clients])
        stop.set()
        watcher.join()
        assert seen == sorted(seen)
        assert seen[-1] > 150


def test_a_refusal_is_told_and_kept_until_it_is_taken(tmp_path: Path) -> None:
    with ServerProcess(write_config(tmp_path, STAGES)) as server:
        client = WatermarkClient([server.url], every=0.05)
        client.report("wep", origins={"a": 1})
        assert not client.flush(0.5)
        assert client.fault is not None
        assert "no such stage ($.reports[0].stage: wep)" in client.fault
        assert not client.close(0.2)


def test_many_origins_go_in_parts() -> None:
    reports = [Report("s", str(part), origins={f"{part}-{n}": n for n in range(size)}, idle=["x"])
               for part, size in enumerate([12_000, 3, 0, 4_999, 1])]  # fmt: skip
    parts = list(requests_of(reports))
    assert all(sum(len(report.origins) for report in part) <= ORIGINS for part in parts)
    joined: dict[str, Report] = {}
    for report in (report for part in parts for report in part):
        before = joined.get(report.partition)
        joined[report.partition] = report if before is None else merged(before, report)
    assert joined == {report.partition: report for report in reports}
    assert sum(len(part) for part in parts) <= 8
    assert list(requests_of([])) == []


def test_merging_keeps_the_latest_state_and_the_largest_times() -> None:
    older = Report("s", "p", low=9, oldest=5, backlog=3, origins={"a": 7, "b": 1}, idle=["a", "c"])
    newer = Report("s", "p", low=4, oldest=None, backlog=0, origins={"a": 8}, idle=["d"])
    assert merged(older, newer) == Report("s", "p", 9, None, 0, {"a": 8, "b": 1}, ["c", "d"])


def test_watching_ends_at_the_timeout_and_outlives_a_restart(tmp_path: Path) -> None:
    config = write_config(tmp_path, STAGES)
    with ServerProcess(config) as server:
        windows = list(watch([server.url], "", "next", 5, 0.5))
        assert [window.closed for window in windows] == [False] * len(windows)
        assert windows[-1].names == ["web: a", "web: b"]
        with pytest.raises(WatermarkError, match="no such stage"):
            next(watch([server.url], "", "wep", 5, 1))
        port = int(server.url.rsplit(":", 1)[1])
        found: list[bool] = []
        waiting = threading.Thread(
            target=lambda: found.extend(window.closed for window in watch([server.url], "", "next", 5, 40))
        )
        waiting.start()
        time.sleep(0.3)
        server.signal(signal.SIGKILL)
        server.process.wait(10)
    with ServerProcess(write_config(tmp_path, STAGES, port=port)) as server:
        server.report("web", {"a": 5, "b": 5})
        waiting.join(20)
        assert found[-1]
    with pytest.raises(WatermarkError, match="no watermark server answers"):
        list(watch([NOBODY], "", "web", 5, 0.2))
