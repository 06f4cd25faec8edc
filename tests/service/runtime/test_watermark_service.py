"""A service and a watermark server: laggards are reported, and a changed file takes effect."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from replayfilter.demo.kafka_io import publish
from replayfilter.kafka.admin import Cluster
from tests.support.pipelines import record
from tests.support.server_process import ServerProcess, write_config
from tests.support.service_process import ServiceProcess

pytestmark = pytest.mark.spark

NAME, START_MS = "tideserved", 1_700_000_000_000
CONFIG = """\
[service]
name = "{name}"
checkpoint = "{folder}/checkpoint"
master = "local[2]"
[kafka]
bootstrap = "{bootstrap}"
[input]
topics = ["{name}"]
stamp = "none"
[replay]
enabled = false
[dedup]
key = ["id"]
expiry_key = "ts"
period = "1h"
[watermark]
enabled = true
origin = "host"
time = "ts"
roster = ["a", "b", "c"]
idle = "{folder}/idle.txt"
servers = ["{server}"]
app = "eu"
[output]
unique = "{name}.unique"
duplicate = "{name}.duplicate"
expired = "{name}.expired"
error = "{name}.error"
[http]
port = {port}
"""


def publish_events(bootstrap: str, seconds: int) -> None:
    """Publish a record of host a and one of host b, each in its own partition; b's is a second older."""
    written = (("a", 0, seconds), ("b", 1, seconds - 1))
    publish(
        bootstrap,
        NAME,
        [
            record(
                json.dumps({"id": f"{host}{at}", "host": host, "ts": START_MS + at * 1_000}).encode(),
                partition=p,
            )
            for host, p, at in written
        ],
    )


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_service_reports_laggards_and_applies_a_changed_file(bootstrap: str, tmp_path: Path) -> None:
    Cluster(bootstrap).create(
        {NAME: 2, **{f"{NAME}.{r}": 2 for r in ("unique", "duplicate", "expired", "error")}}
    )
    idle, port = tmp_path / "idle.txt", free_port()
    idle.write_text("")
    with ServerProcess(write_config(tmp_path, f"[stages.{NAME}]\n[apps.eu.stages.{NAME}]")) as server:
        config = tmp_path / "service.toml"
        config.write_text(
            CONFIG.format(name=NAME, folder=tmp_path, bootstrap=bootstrap, server=server.url, port=port)
        )

        def stage() -> Any:
            return server.get(f"/v1/stages/{NAME}", app="eu")

        def status() -> Any:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"http://127.0.0.1:{port}/status", trust_env=False).json()
            return {"laggards": None}

        with ServiceProcess(config) as service:
            publish_events(bootstrap, 10)
            service.await_change(lambda: stage()["held"]["names"] == ["c"], every=0.2)
            assert stage()["held"]["by"] == "origins"
            assert stage()["output_low"] is None
            service.await_change(lambda: len(stage()["partitions"]) == 3, every=0.2)
            backlogs = {each["partition"]: each["backlog"] for each in stage()["partitions"]}
            assert backlogs.keys() == {"", f"{NAME}-0", f"{NAME}-1"}
            service.await_change(
                lambda: (status()["laggards"] or {"origins": {}})["origins"].get("heard") == 2
            )
            found = status()["laggards"]
            assert found["origins"] == {"expected": 3, "heard": 2, "idle": 0, "lagging": 1}
            assert found["slowest"] == [{"origin": "c", "progress": None}]

            new_file = tmp_path / "idle.new"
            new_file.write_text("c\n")
            new_file.rename(idle)
            service.await_change(lambda: "the roster changed" in service.log.read_text())
            pid = service.process.pid
            publish_events(bootstrap, 20)
            service.await_change(lambda: stage()["output_low"] == (START_MS + 19_000) * 1_000, every=0.2)
            assert stage()["held"]["names"] == ["b"]
            assert stage()["held"]["behind_us"] == 1_000_000
            assert server.get(f"/v1/stages/{NAME}")["partitions"] == [], "it is another application's"
            assert service.process.pid == pid
            assert status()["laggards"]["origins"]["idle"] == 1
            assert status()["retries"] == 0
            os.kill(service.process.pid, signal.SIGTERM)
            assert service.end(60) == 0, service.tail()
