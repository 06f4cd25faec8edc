"""Two servers on one store: one writes, the other takes over, and no watermark goes back."""

from __future__ import annotations

import signal
import sqlite3
import time
from pathlib import Path

import httpx
import pytest

from replayfilter.errors import WatermarkError
from replayfilter.watermark.sqlite_store import SqliteStore
from replayfilter.watermark.store import FencedError
from tests.support.server_process import ServerProcess, write_config

STAGES = '[stages.web]\nroster = ["a", "b"]'


def two_configs(folder: Path) -> tuple[Path, Path]:
    return write_config(folder, STAGES, "one.toml"), write_config(folder, STAGES, "two.toml")


def test_the_standby_takes_over_after_kill_9(tmp_path: Path) -> None:
    one, two = two_configs(tmp_path)
    with ServerProcess(one) as first, ServerProcess(two, standby=True) as second:
        first.report("web", {"a": 10, "b": 20})
        time.sleep(1.5)  # more than two leases: an owner that is alive keeps its lease
        assert second.http.get("/health").json()["role"] == "standby"
        refused = second.http.get("/v1/stages/web/low")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert (
            second.http.post("/v1/report", json={"session": 1, "sequence": 1, "reports": []}).status_code
            == 503
        )
        first.kill()
        second.wait_for_role("active")
        assert second.low("web") == 10
        assert second.get("/v1/health")["epoch"] == 2
        second.report("web", {"a": 30, "b": 30}, sequence=2)
        assert second.low("web") == 30


def test_a_paused_server_is_fenced_and_becomes_a_standby(tmp_path: Path) -> None:
    one, two = two_configs(tmp_path)
    with ServerProcess(one) as first, ServerProcess(two, standby=True) as second:
        first.report("web", {"a": 10, "b": 20})
        first.signal(signal.SIGSTOP)
        second.wait_for_role("active")
        second.report("web", {"a": 40, "b": 50}, sequence=2)
        first.signal(signal.SIGCONT)
        statuses = set()
        for _ in range(40):
            response = first.http.get("/v1/stages/web/low")
            statuses.add(response.status_code)
            body = {"session": 9, "sequence": 1, "reports": [{"stage": "web", "origins": {"a": 99}}]}
            statuses.add(first.http.post("/v1/report", json=body).status_code)
            time.sleep(0.02)
        assert statuses == {503}, "no old watermark and no acknowledgement"
        assert second.low("web") == 40
        assert first.http.get("/health").json()["role"] == "standby"
        second.kill()
        first.wait_for_role("active")
        assert first.low("web") == 40


def test_after_a_clean_stop_the_standby_takes_over_at_once(tmp_path: Path) -> None:
    one = write_config(tmp_path, STAGES, "one.toml", lease="12s")
    two = write_config(tmp_path, STAGES, "two.toml", lease="12s")
    with ServerProcess(one) as first, ServerProcess(two, standby=True) as second:
        first.report("web", {"a": 10, "b": 20})
        first.signal(signal.SIGTERM)
        assert first.process.wait(10) == 0
        second.wait_for_role("active", seconds=8)  # it checks six times per lease
        assert second.low("web") == 10
        second.signal(signal.SIGINT)
        assert second.process.wait(10) == 0


def test_waiting_requests_fail_when_the_server_loses_the_lease(tmp_path: Path) -> None:
    one = write_config(tmp_path, STAGES, "one.toml")
    with ServerProcess(one) as server:
        with sqlite3.connect(tmp_path / "watermark.db", timeout=10) as thief:
            thief.execute("UPDATE lease SET epoch = epoch + 1, owner = 'a test'")
        thief.close()
        with httpx.Client(base_url=server.url, timeout=20) as http:
            assert http.get("/v1/stages/web/wait", params={"end": 5, "seconds": 20}).status_code == 503


def test_the_store_fences_within_a_transaction(tmp_path: Path) -> None:
    one, other = SqliteStore(tmp_path / "w.db"), SqliteStore(tmp_path / "w.db")
    seen = one.lease()
    assert one.take_lease(seen, "one")
    assert not other.take_lease(seen, "other"), "the lease has changed since it was read"
    with one.transaction():
        pass
    assert other.lease().beat == 1
    assert other.take_lease(other.lease(), "other")
    with pytest.raises(FencedError), one.transaction():
        raise AssertionError("nothing may be written")
    one.release_lease()
    assert other.lease().owner == "other"
    one.close()
    other.close()


def test_a_file_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database, but long enough to be taken for the head of one" * 9)
    for path in (tmp_path / "text", tmp_path / "missing" / "w.db", tmp_path):
        with pytest.raises(WatermarkError, match="can't be opened"):
            SqliteStore(path)
    with sqlite3.connect(tmp_path / "later.db") as later:
        later.execute("PRAGMA user_version = 99")
    later.close()
    with pytest.raises(WatermarkError, match="version 99"):
        SqliteStore(tmp_path / "later.db")
