"""A watermark server in a process of its own, which tests can query, kill and pause."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.support.paths import ROOT


def write_config(folder: Path, text: str, name: str = "watermark.toml", **server: str | int) -> Path:
    """Write a config into ``folder``: any free port, a short lease; ``server`` sets keys of [server]."""
    keys = {"port": 0, "lease": "600ms", "store": "watermark.db"} | server
    lines = [
        f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}" for key, value in keys.items()
    ]
    path = folder / name
    path.write_text("\n".join(["[server]", *lines, "", text]))
    return path


class ServerProcess:
    """Starts the server, and waits until it is active unless ``standby``. A context manager."""

    def __init__(
        self, config: Path, *, standby: bool = False, token: str = "", core: int | None = None
    ) -> None:
        self.log = config.with_suffix(f".{time.monotonic_ns()}.log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "replayfilter", "watermark", "serve", config],
                stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT,
            )  # fmt: skip
        if core is not None:
            os.sched_setaffinity(self.process.pid, {core})
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self.url = self._find_url()
            self.http = httpx.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False)
            if not standby:
                self.wait_for_role("active")
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _find_url(self) -> str:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:  # select() does not support descriptors above 1,024
            selector.register(self.process.stdout, selectors.EVENT_READ)
            ready = selector.select(90)
        line = self.process.stdout.readline() if ready else ""
        found = re.fullmatch(r"watermark: (http://\S+)\n", line)
        assert found, f"it printed {line!r} and {self.log.read_text()}"
        return found[1]

    def wait_for_role(self, role: str, seconds: float = 15) -> None:
        """Wait until the server has this role."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(httpx.TransportError):
                if self.http.get("/health").json()["role"] == role:
                    return
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"never {role}\n{self.log.read_text()}"
            time.sleep(0.02)

    def get(self, path: str, **query: Any) -> Any:
        """The response to a GET, which must succeed."""
        response = self._retry(lambda: self.http.get(path, params=query))
        assert response.status_code == 200, response.text
        return response.json()

    def report(
        self,
        stage: str,
        origins: Mapping[str, int] | None = None,
        *,
        session: int = 1,
        sequence: int = 1,
        app: str | None = None,
        **fields: Any,
    ) -> Any:
        """Report one partition; returns the response."""
        report = {"stage": stage, "origins": dict(origins or {}), **fields}
        body = {"session": session, "sequence": sequence, "reports": [report]}
        body |= {"app": app} if app else {}
        response = self._retry(lambda: self.http.post("/v1/report", json=body))
        assert response.status_code == 200, response.text
        return response.json()

    def _retry(self, request: Callable[[], httpx.Response]) -> httpx.Response:
        """Retry while the server is a standby: on a busy machine it may pause for longer than its lease."""
        deadline = time.monotonic() + 15
        while (response := request()).status_code == 503 and time.monotonic() < deadline:
            time.sleep(0.1)
        return response

    def low(self, stage: str, app: str | None = None) -> int | None:
        """A stage's output low."""
        query = {"app": app} if app else {}
        low: int | None = self.get(f"/v1/stages/{stage}/low", **query)["low"]
        return low

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self.process.kill()
        self.process.wait(10)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
