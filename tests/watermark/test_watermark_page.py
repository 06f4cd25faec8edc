"""The server's page in a real browser: headless Chromium, driven by its debugging protocol."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server_process import ServerProcess, write_config

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt install chromium")
HOUR = 3600 * 10**6
EVIL = "<img src=x onerror=document.title='evil'>"


class Browser:
    """One page of a headless Chromium, driven by its debugging protocol over pipes."""

    def __init__(self, profile: Path) -> None:
        ours, theirs = os.pipe(), os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        flags += ["--window-size=1100,1300", f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        # The browser reads commands from descriptor 3 and writes responses to 4.
        script = f'exec 3<&{ours[0]} 4>&{theirs[1]}; exec "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "browser", str(CHROMIUM), *flags, "about:blank"],
            pass_fds=(ours[0], theirs[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(ours[0])
        os.close(theirs[1])
        self._out, self._in = os.fdopen(ours[1], "wb", 0), os.fdopen(theirs[0], "rb")
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol; returns its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        self._out.write(json.dumps(command).encode() + b"\0")
        while True:
            message = json.loads(self._message())
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(str(message["params"]["exceptionDetails"]))
            if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.errors.append(message["params"]["entry"]["text"])
            if message.get("id") == self._number:
                assert "error" not in message, message["error"]
                return message["result"]

    def _message(self) -> bytes:
        data = bytearray()
        while (byte := self._in.read(1)) != b"\0":
            assert byte, "the browser has stopped"
            data += byte
        return bytes(data)

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression on the page."""
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def wait_for(self, script: str, seconds: float = 30) -> Any:
        """Wait until an expression is true; returns its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(script)):
            assert time.monotonic() < deadline, (
                script,
                self.errors,
                self.evaluate("document.body.innerText"),
            )
            time.sleep(0.1)
        return value

    def screenshot(self, path: Path) -> None:
        """Save the page as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        """Stop the browser."""
        self._out.close()
        self._in.close()
        self.process.terminate()
        self.process.wait(20)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    started = Browser(tmp_path / "profile")
    yield started
    started.close()


def fill(server: ServerProcess, store: Path) -> None:
    """Three hours of history, and a present in which two hosts lag and a third one has never reported."""
    now = time.time_ns() // 1000
    progress = {f"host-{number:02d}": now - number * 1_000_000 for number in range(40)}
    progress |= {"host-38": now - HOUR // 2, "host-39": now - HOUR}
    server.report("orders", partition="orders-0", low=now, oldest=now - HOUR - 60 * 10**6)
    server.report("web", {**progress, EVIL: 5}, sequence=2)
    with sqlite3.connect(store, timeout=10) as history:
        for at in range(now - 3 * HOUR, now, 60 * 10**6):
            stall = max(0, at - (now - HOUR))  # the watermark has not moved for an hour
            low = at - 30 * 10**6 - stall
            rows = [("web", at, low, low, at), ("orders", at, low, low - 240 * 10**6, at)]
            history.executemany("INSERT INTO history VALUES (?, ?, ?, ?, ?)", rows)
    history.close()


def test_the_page_shows_the_watermarks_and_the_slowest_origins(tmp_path: Path, browser: Browser) -> None:
    names = [f"host-{number:02d}" for number in range(41)]
    stages = f'[stages.web]\nroster = {json.dumps(names)}\ncompleteness = "0.97"\n'
    stages += '[stages.orders]\nupstream = ["web"]\n[stages.empty]\n[apps.eu.stages.only]\n'
    config = write_config(tmp_path, stages, token="hush")
    with ServerProcess(config, token="hush") as server:
        fill(server, tmp_path / "watermark.db")
        browser.call("Page.navigate", url=server.url)
        browser.wait_for("!document.getElementById('login').hidden")
        browser.evaluate(
            "document.getElementById('token').value = 'wrong'; document.querySelector('button').click()"
        )
        browser.wait_for("document.getElementById('trouble').textContent.includes('missing or wrong')")
        browser.evaluate(
            "document.getElementById('token').value = 'hush'; document.querySelector('button').click()"
        )
        browser.wait_for("document.querySelectorAll('section').length == 3")
        assert browser.evaluate("document.getElementById('login').hidden")
        web = browser.evaluate("document.getElementById('stage-web').innerText")
        assert "41 origins, 0 idle, 1 may lag (0.97)" in web
        assert "held back by origins: host-40, host-39" in web
        assert re.search(r"host-40\s+unknown\s+no report yet\s+never", web)
        assert re.search(r"host-39\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s+1(\.0)? h", web)
        assert EVIL in web, "it is shown as text"
        assert "held back by work: orders-0" in browser.evaluate(
            "document.getElementById('stage-orders').innerText"
        )
        assert "waiting: no report yet; never moved" in browser.evaluate(
            "document.getElementById('stage-empty').innerText"
        )
        empty = "document.getElementById('stage-empty').querySelector('svg').textContent"
        assert browser.evaluate(empty) == "no history yet"
        # Over three hours the largest time rises, and the watermark does not move in the last one.
        points = "document.querySelector('#stage-web polyline.%s').getAttribute('points')"
        front, low = (
            [tuple(map(float, point.split(","))) for point in browser.evaluate(points % name).split()]
            for name in ("front", "low")
        )
        assert len(front) > 150
        assert [y for _, y in front[:170]] == sorted((y for _, y in front[:170]), reverse=True)
        assert front[0][1] - front[170][1] > 100
        assert len({y for _, y in low[125:175]}) == 1, "does not move"
        assert low[0][1] - low[115][1] > 50
        before = browser.evaluate("document.getElementById('global').textContent")
        browser.wait_for(f"document.getElementById('global').textContent != {json.dumps(before)}")
        shown = "document.querySelector('#stage-web polyline.front').getAttribute('points').split(' ').length"
        for hours, seen in (("0.25", "< 40"), ("4", "> 150")):
            browser.evaluate(f"hours.value = '{hours}'; hours.dispatchEvent(new Event('change'))")
            browser.wait_for(f"{shown} {seen}")
        if "WATERMARK_SCREENSHOT" in os.environ:
            browser.screenshot(Path(os.environ["WATERMARK_SCREENSHOT"]))
        assert browser.evaluate("document.title") == "Low watermarks"
        errors = [error for error in browser.errors if "401" not in error]
        assert errors == [], "the content security policy blocks nothing that the page needs"
        assert not browser.evaluate("document.getElementById('apps').hidden")
        browser.evaluate("app.value = 'eu'; app.dispatchEvent(new Event('change'))")
        browser.wait_for("document.getElementById('stages').innerText.startsWith('only')")
        assert browser.evaluate("app.value") == "eu", "it stays after the page was drawn again"
        server.kill()
        browser.wait_for("!document.getElementById('trouble').hidden")


def test_the_page_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    with ServerProcess(write_config(tmp_path, "[stages.web]\nroster = []")) as server:
        for path in ("/", "/page.js"):
            response = httpx.get(server.url + path)
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]
            assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", response.text) == []
