"""``dedup.conflict`` and ``dedup.refresh``, turned on for a service that has run before."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from replayfilter.demo.kafka_io import publish, read_topic
from replayfilter.demo.stream import Record
from replayfilter.kafka.admin import Cluster
from replayfilter.service.cli.main import app
from replayfilter.service.config.loader import load
from replayfilter.service.tools.verify import verify
from tests.support.service_process import ServiceProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

NAME = "conflict-service"
MINUTE = 60_000
START = 1_700_000_000_000
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
[output]
unique = "{name}.unique"
duplicate = "{name}.duplicate"
conflict = "{name}.conflict"
expired = "{name}.expired"
error = "{name}.error"
[dedup]
key = ["id"]
expiry_key = "ts"
period = "1h"
remember_first = true
"""
LATER = """\
refresh = true
conflict = "topic"
conflict_fields = ["amount"]
"""


def orders(*rows: tuple[int, int, int]) -> list[bytes]:
    """Values from id, minute and amount."""
    return [json.dumps({"id": id_, "ts": START + at * MINUTE, "amount": n}).encode() for id_, at, n in rows]


def run(bootstrap: str, config: Path, values: Iterable[bytes]) -> None:
    publish(bootstrap, NAME, [Record(0, -1, None, value, START, [], "") for value in values])
    with ServiceProcess(config, "--once") as service:
        assert service.end(200) == 0, service.tail()


def test_both_are_turned_on_for_a_checkpoint(bootstrap: str, tmp_path: Path) -> None:
    Cluster(bootstrap).create({NAME: 1})
    config = tmp_path / "orders.toml"
    config.write_text(CONFIG.format(name=NAME, folder=tmp_path, bootstrap=bootstrap), "utf-8")
    assert CliRunner().invoke(app, ["topics", str(config)]).exit_code == 0
    assert f"{NAME}.conflict" not in Cluster(bootstrap).topics([f"{NAME}.conflict"]), "it is not used yet"
    first = orders((1, 0, 5), (2, 0, 5), (2, 1, 6))
    run(bootstrap, config, first)

    config.write_text(config.read_text("utf-8") + LATER, "utf-8")
    assert CliRunner().invoke(app, ["topics", str(config)]).exit_code == 0
    second = orders((1, 50, 7), (3, 60, 5), (1, 100, 7), (3, 110, 6), (3, 165, 5), (2, 165, 5))
    run(bootstrap, config, second)

    found = {
        route: [(row.value, dict(row.headers)) for row in read_topic(bootstrap, f"{NAME}.{route}")]
        for route in ("unique", "duplicate", "conflict", "expired", "error")
    }
    assert not found["expired"]
    assert not found["error"]
    assert [value for value, _ in found["unique"]] == [*first[:2], second[1], second[5]]
    repeats = {value: headers["rf-first"] for value, headers in found["duplicate"]}
    places = {n: f"{NAME}/0/{n}".encode() for n in range(9)}
    assert repeats == {
        first[2]: places[1], second[0]: places[0], second[2]: places[0], second[4]: places[4]
    }, "refreshed beyond the period; what records said before the change is not known"  # fmt: skip
    ((value, headers),) = found["conflict"]
    assert (value, headers["rf-first"], headers["rf-conflict"]) == (second[3], places[4], b"amount")
    assert verify(load(config), Console(quiet=True))
