"""``explain`` after a real service has run: what it finds in Kafka and in the state."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from replayfilter import StampingProducer
from replayfilter.kafka.admin import Cluster
from replayfilter.service.runtime.checkpoint import locked
from tests.support.service_process import ServiceProcess
from tests.support.topics import new_topic

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
[dedup]
key = ["id"]
expiry_key = "ts"
period = "1h"
remember_first = true
[output]
unique = "{name}.unique"
duplicate = "{name}.duplicate"
expired = "{name}.expired"
error = "{name}.error"
"""


def test_the_way_of_each_record(bootstrap: str, tmp_path: Path) -> None:
    name = new_topic(bootstrap, "explained", 1)
    Cluster(bootstrap).create({f"{name}.{route}": 1 for route in ("unique", "duplicate", "expired", "error")})
    path = tmp_path / "service.toml"
    path.write_text(CONFIG.format(name=name, folder=tmp_path, bootstrap=bootstrap))
    now_ms = int(time.time() * 1000)
    events = [(1, now_ms), (2, now_ms - 1_000), (1, now_ms), (3, now_ms - 7_200_000)]
    with StampingProducer({"bootstrap.servers": bootstrap}, name, 7) as producer:
        for offset, (id_, ts) in enumerate(events):
            producer.produce(0, offset, json.dumps({"id": id_, "ts": ts}).encode())
        producer.begin_replay()
        producer.produce(0, 1, json.dumps({"id": 2, "ts": now_ms - 1_000}).encode())
    with ServiceProcess(path, "--once") as service:
        assert service.end(200) == 0, service.tail()

    def explain(offset: int, *options: str) -> dict[str, list[str]]:
        command = [sys.executable, "-m", "replayfilter", "explain", str(path)]
        record = ["--record", f"{name}/0/{offset}", *options]
        done = subprocess.run([*command, *record], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        lines: dict[str, list[str]] = {}
        for line in done.stdout.splitlines():
            lines.setdefault(line[:14].strip(), []).append(line[14:])
        return lines

    duplicate = explain(2)
    assert duplicate["written"] == [f"to {name}.duplicate/0/0: duplicate"]
    assert duplicate["rf-first"] == [f"{name}/0/0"]
    assert duplicate["mark"] == [
        "of source 7/0: 3; the record's offset 2 is at or below it, so it would be a replay now"
    ]
    assert duplicate["latest point"][0].startswith(f"{now_ms} (")
    assert duplicate["latest point"][0].endswith("is 0 behind, and the period is 3,600,000: not expired")
    (key,) = duplicate["key"]
    assert key.startswith(f"remembered with expiry key {now_ms} (")
    assert key.endswith(f"; the first record with it is {name}/0/0")
    assert duplicate["bucket"][1] in ("2 keys in 2 runs", "1 keys in 1 runs", "2 keys in 1 runs")
    expired = explain(3)
    assert expired["written"] == [f"to {name}.expired/0/0: expired"]
    assert expired["rf-late-by"] == ["7200000"]
    assert expired["latest point"][0].endswith("7,200,000 behind, and the period is 3,600,000: expired")
    assert expired["key"] == ["not remembered"]
    with locked(tmp_path / "checkpoint"):  # as a running service keeps it
        replay = explain(4)
        assert replay["state"][0].startswith("not read: service.checkpoint = ")
        assert "in use by process" in replay["state"][0]
    assert replay["written"] == [f"nowhere: a replay of {name}/0/1, which has the same stamp"]
    assert "state" not in explain(0, "--no-state")
