"""A service whose config was wrong: errors, the corrected config, a redrive, and they are unique."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from replayfilter import StampingProducer
from replayfilter.kafka.admin import Cluster
from tests.support.service_process import ServiceProcess
from tests.support.topics import new_topic, read_all

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

CONFIG = """\
[service]
name = "{name}"
checkpoint = "{folder}/checkpoint"
master = "local[2]"
[kafka]
bootstrap = "{bootstrap}"
[input]
topics = ["{name}"]
on_null = "error"
[dedup]
key = ["id"]
expiry_key = "ts"
period = "1h"
max_future = "10m"
[output]
unique = "{name}.unique"
duplicate = "{name}.duplicate"
expired = "{name}.expired"
error = "{name}.error"
"""


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "replayfilter", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_errors_of_a_wrong_config_become_unique(bootstrap: str, tmp_path: Path) -> None:
    name = new_topic(bootstrap, "redriven", 2)
    Cluster(bootstrap).create({f"{name}.{route}": 2 for route in ("unique", "duplicate", "expired", "error")})
    path = tmp_path / "service.toml"
    path.write_text(CONFIG.format(name=name, folder=tmp_path, bootstrap=bootstrap))
    now_ms = int(time.time() * 1000)
    tomorrow = json.dumps({"id": 2, "ts": now_ms + 86_400_000}).encode()
    last = json.dumps({"id": 3, "ts": now_ms}).encode()
    with StampingProducer({"bootstrap.servers": bootstrap}, name, 7) as producer:
        for source in (0, 1):
            producer.produce(source, 0, None)
            producer.produce(source, 1, tomorrow)
            producer.produce(source, 2, last)  # now the marks are above the errors

    def serve() -> dict[str, list[bytes | None]]:
        with ServiceProcess(path, "--once") as service:
            assert service.end(200) == 0, service.tail()
        topics = {route: read_all(bootstrap, f"{name}.{route}") for route in ("unique", "duplicate", "error")}
        return {route: [message.value() for message in found] for route, found in topics.items()}

    first = serve()
    assert (first["unique"], len(first["duplicate"]), len(first["error"])) == ([last], 1, 4)

    path.write_text(path.read_text().replace('"error"\n[dedup]', '"unique"\n[dedup]').replace("10m", "2d"))
    shown = run("redrive", str(path))
    rows = [line.split()[:3] for line in shown.splitlines() if line.startswith(("empty", "future"))]
    assert rows == [[reason, str(number), "1"] for reason in ("empty", "future") for number in (0, 1)]
    assert "nothing was written" in shown
    assert "4 records read, 4 written" in run("redrive", str(path), "--execute")
    second = serve()
    assert sorted(second["unique"], key=str) == sorted([last, None, None, tomorrow], key=str)
    assert (len(second["duplicate"]), len(second["error"])) == (2, 4), "tomorrow's was there twice"
    assert "Every input record is in exactly one output." in run("verify", str(path))
