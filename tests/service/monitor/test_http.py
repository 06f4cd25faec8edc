"""The HTTP responses of a real server on a real port."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from replayfilter.errors import ConfigError
from replayfilter.service.config.loader import config_from
from replayfilter.service.monitor.http import StatusServer
from replayfilter.service.monitor.lag import Lag
from replayfilter.service.monitor.status import Phase, Status
from replayfilter.service.runtime.run import shown_config
from tests.support.batches import busy_status


@pytest.fixture
def status() -> Status:
    return busy_status()


@pytest.fixture
def url(status: Status) -> Iterator[str]:
    with StatusServer(status, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.port}"


def test_health_follows_the_status(url: str, status: Status) -> None:
    now = time.time()
    status.enter(Phase.RUNNING, now)
    status.set_lags([Lag("orders", 0, 5, 5)], now)
    assert httpx.get(f"{url}/livez").status_code == 200
    ready = httpx.get(f"{url}/readyz")
    assert (ready.status_code, ready.json()) == (200, {"ok": True, "phase": "running", "reasons": []})
    status.enter(Phase.RETRYING, now, "no broker")
    late = httpx.get(f"{url}/readyz")
    assert (late.status_code, late.json()["reasons"]) == (503, ["retrying: no broker"])
    assert httpx.get(f"{url}/livez").status_code == 200
    status.enter(Phase.FAILED, now, "gone")
    assert httpx.get(f"{url}/livez").status_code == 503


def test_metrics_in_both_formats(url: str) -> None:
    plain = httpx.get(f"{url}/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    assert 'replayfilter_records_total{route="unique"} 14.0' in plain.text
    openmetrics = httpx.get(
        f"{url}/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"}
    )
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.text.endswith("# EOF\n")


def test_status_is_json_with_everything_that_the_page_draws(url: str) -> None:
    found = httpx.get(f"{url}/status").json()
    assert (found["service"], found["batches"], found["waiting"]) == ("orders", 2, 30)
    assert found["totals"]["unique"] == 14
    assert found["lag"][0] == {
        "topic": "orders", "partition": 0, "next": 10, "end": 40, "records": 30, "seconds": 3.5,
        "held_back": 0, "held_back_seconds": 0.0,
    }  # fmt: skip


def test_the_page_and_its_script_have_a_content_security_policy(url: str) -> None:
    for path, kind in (("/", "text/html"), ("/page.js", "text/javascript")):
        answer = httpx.get(f"{url}{path}")
        assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, kind)
        assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert httpx.get(f"{url}/etc/passwd").status_code == 404
    assert httpx.post(f"{url}/status").status_code == 405


def test_a_port_in_use_is_a_config_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"http.port = {port}: can't listen on this port"):
            StatusServer(busy_status(), "127.0.0.1", port)


def test_the_shown_config_contains_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = config_from({
        "service": {"name": "orders", "checkpoint": str(tmp_path)},
        "kafka": {"bootstrap": "k:1", "options": {"sasl.mechanism": "PLAIN", "sasl.password": "hunter2"}},
        "input": {"topics": ["orders"]},
        "dedup": {"key": ["id"], "expiry_key": "ts", "period": "1h"},
        "output": {name: f"o.{name}" for name in ("unique", "duplicate", "expired", "error")},
    })  # fmt: skip
    shown = shown_config(config)
    assert shown["kafka"]["options"] == {"sasl.mechanism": "***", "sasl.password": "***"}
    assert shown["input"]["topics"] == ["orders"]
    assert "hunter2" not in str(shown)
