"""The status page of a real server in Chromium: what its script draws, in light and dark mode."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from replayfilter.core.watermark.laggards import Laggards
from replayfilter.service.monitor.http import StatusServer
from replayfilter.service.monitor.lag import Lag
from replayfilter.service.monitor.status import Phase, Status
from replayfilter.service.monitor.storage import Storage
from tests.support.batches import batch

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--window-size=1200,1500", "--virtual-time-budget=8000",
)  # fmt: skip
DARK = "--blink-settings=preferredColorScheme=0"

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")


def chromium(folder: Path, url: str, *flags: str) -> str:
    profile = folder / f"profile-{time.monotonic_ns()}"
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout


def working() -> Status:
    now = time.time()
    status = Status("orders", 120.0, {"kafka": {"options": {"sasl.password": "***"}}}, now - 600)
    status.enter(Phase.RUNNING, now - 590)
    held = Laggards(int((now - 60) * 1e6), int(now * 1e6), 30, 29, 0, 7, 3, (("<b>h-29", None), ("h-1", 5)))
    for number in range(100):
        at = now - 500 + number * 5
        routes = {"unique": 900, "duplicate": 70, "expired": 20, "error": 10, "error_json": 10, "conflict": 5}
        state = {"state_sources": 3, "state_keys": 900 * number, "watermark_us": held.low or 0}
        state |= {"state_late_unique_0": 980, "state_late_expired_2": 20, "state_apart_4": 70}
        status.add_batch(batch(number, at, **routes, **state, state_gaps=1, laggards=held.to_text()))
    status.heartbeat(now)
    status.set_storage(Storage(2_340_000, 5_000_000))
    status.set_lags([Lag("orders", 0, 100, 1_334, 2.5), Lag("orders", 1, 7, 7, 0.0, 42, 500.0)], now)
    return status


def text_of(dom: str, name: str) -> str:
    found = re.search(rf'<(\w+) id="{name}"[^>]*>(.*?)</\1>', dom, re.DOTALL)
    assert found, name
    return re.sub(r"<[^>]+>", " ", found[2]).strip()


@pytest.mark.slow
def test_the_page_draws_the_status(tmp_path: Path) -> None:
    with StatusServer(working(), "127.0.0.1", 0) as server:
        dom = chromium(tmp_path, f"http://127.0.0.1:{server.port}/", "--dump-dom")
    assert text_of(dom, "service") == "orders"
    assert text_of(dom, "ready") == "ready"
    assert text_of(dom, "waiting") == "1,234"
    assert text_of(dom, "keys") == "89.1 k"
    assert text_of(dom, "bytes").endswith("2.3 MB on disk")
    assert "100 batches" in text_of(dom, "batches")
    assert "orders-0" in text_of(dom, "lag")
    assert "1,234" in text_of(dom, "lag")
    assert re.search(r"orders-1 .*42 for 8 min", text_of(dom, "lag"))
    assert "error: json" in text_of(dom, "delivery")
    marks = text_of(dom, "state")
    assert re.search(r"conflicts\s+500\b", marks)
    assert "7 of 30 origins (3 may lag), for" in marks
    assert "&lt;b&gt;h-29 (not seen yet), h-1 (" in marks
    assert "and 2 more" in marks
    lengths = text_of(dom, "lengths")
    assert re.search(r"below 10 s\s+98,000\s+0\s+0\s+0\b", lengths), lengths
    assert re.search(r"below 60 min\s+0\s+0\s+0\s+7,000\b", lengths), lengths
    assert "below 3.0 h" not in lengths
    assert "***" in text_of(dom, "config")
    bars = re.findall(r'<rect[^>]*fill="var\(--(\w+)\)"', dom)
    assert {"unique", "duplicate", "expired", "error"} <= set(bars)
    assert bars.count("error") >= 40, "a bar for each time step with errors"


@pytest.mark.slow
def test_an_error_is_shown_as_text_and_never_as_markup(tmp_path: Path) -> None:
    status = working()
    status.enter(Phase.RETRYING, time.time(), "<img src=x onerror=alert(1)> gone")
    with StatusServer(status, "127.0.0.1", 0) as server:
        dom = chromium(tmp_path, f"http://127.0.0.1:{server.port}/", "--dump-dom")
    assert text_of(dom, "ready") == "not ready"
    assert "&lt;img src=x" in dom
    assert "<img" not in dom


@pytest.mark.slow
def test_light_and_dark_mode_look_different(tmp_path: Path) -> None:
    pictures = {}
    with StatusServer(working(), "127.0.0.1", 0) as server:
        for name, flags in {"light": [], "dark": [DARK]}.items():
            path = tmp_path / f"{name}.png"
            chromium(tmp_path, f"http://127.0.0.1:{server.port}/", f"--screenshot={path}", *flags)
            pictures[name] = path.read_bytes()
    assert all(len(picture) > 40_000 for picture in pictures.values()), "an empty page is smaller"
    assert pictures["light"] != pictures["dark"]
