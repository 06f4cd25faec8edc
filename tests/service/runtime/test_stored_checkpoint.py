"""A checkpoint and topics written by an earlier version are read by this one, and mean the same."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer

from replayfilter import Stamp
from replayfilter.devbroker import DevBroker
from tests.support.paths import ROOT
from tests.support.topics import read_all

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROUTES = ("unique", "duplicate", "expired", "error")
MINUTE_MS = 60_000
START_MS = 1_700_000_000_000  # of the stored records' expiry keys
LATEST_MS = START_MS + 89 * MINUTE_MS
CONFIG = """\
[service]
name = "stored"
checkpoint = "{folder}/checkpoint"
master = "local[2]"
shards = 2

[kafka]
bootstrap = "{bootstrap}"

[input]
topics = ["stored"]

[replay]
mark_ttl = "1000000h"

[dedup]
key = ["event_id"]
expiry_key = "ts"
period = "1h"
remember_origin = true

[watermark]
enabled = true
origin = "host"
time = "ts"
unit = "ms"
roster = "{folder}/roster.txt"
completeness = "1"

[output]
unique = "stored.unique"
duplicate = "stored.duplicate"
expired = "stored.expired"
error = "stored.error"
"""


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[tuple[DevBroker, Path]]:
    """The broker and the configuration of the service, as version 0.1.0 left them."""
    with tarfile.open(ROOT / "tests" / "stored" / "0.1.0.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "roster.txt").write_text("a\nb\n", "utf-8")
    with DevBroker(data=tmp_path / "broker") as broker:
        config = tmp_path / "stored.toml"
        config.write_text(CONFIG.format(folder=tmp_path, bootstrap=broker.bootstrap), "utf-8")
        yield broker, config


def replayfilter(*arguments: str) -> str:
    """What a command prints; AssertionError if it fails."""
    ended = subprocess.run(
        [sys.executable, "-m", "replayfilter", *arguments], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def write(bootstrap: str, partition: int, offset: int, key: str, minute: int) -> None:
    """Write one more stamped record of the upstream job with pid 7."""
    producer = Producer({"bootstrap.servers": bootstrap})
    value = {"event_id": key, "ts": START_MS + minute * MINUTE_MS, "host": "ab"[partition]}
    stamp = Stamp(7, partition, offset).to_bytes()
    producer.produce("stored", json.dumps(value).encode(), stamp, partition)
    assert producer.flush(30) == 0


def key_of(message: Message) -> str:
    """The dedup key of an output record."""
    return str(json.loads(message.value() or b"{}")["event_id"])


def new(before: list[Message], after: list[Message]) -> list[Message]:
    """The messages of a topic that were not there before."""
    known = {(message.partition(), message.offset()) for message in before}
    return [message for message in after if (message.partition(), message.offset()) not in known]


def test_a_service_goes_on_from_a_stored_checkpoint(stored: tuple[DevBroker, Path]) -> None:
    broker, config = stored
    before = {route: read_all(broker.bootstrap, f"stored.{route}") for route in ROUTES}
    assert {route: len(messages) for route, messages in before.items()} == {
        "unique": 140, "duplicate": 1, "expired": 1, "error": 1,
    }  # fmt: skip

    write(broker.bootstrap, 0, 81, "n0-29", 90)  # remembered: a duplicate
    write(broker.bootstrap, 1, 69, "n1-29", 90)  # at the stored mark: a replay
    write(broker.bootstrap, 1, 70, "new", 90)
    write(broker.bootstrap, 0, 82, "k0-5", 5)  # an hour and more behind the stored latest point: expired
    replayfilter("run", str(config), "--once")

    found = {route: new(before[route], read_all(broker.bootstrap, f"stored.{route}")) for route in ROUTES}
    assert {route: [key_of(message) for message in messages] for route, messages in found.items()} == {
        "unique": ["new"], "duplicate": ["n0-29"], "expired": ["k0-5"], "error": [],
    }  # fmt: skip

    first = next(message for message in before["unique"] if key_of(message) == "n0-29")
    kept = Stamp.from_bytes(first.key())
    assert kept is not None
    duplicate = found["duplicate"][0]
    headers = dict(duplicate.headers() or [])
    assert headers["rf-first"] == f"stored/0/{kept.offset}".encode()
    assert headers["rf-watermark"] == str(LATEST_MS * 1000).encode()
    stamp = Stamp.from_bytes(duplicate.key())
    assert stamp is not None
    assert stamp.pid != kept.pid, "each output has a pid of its own now: a new source for its readers"
    assert "Every input record is in exactly one output." in replayfilter("verify", str(config))


def test_the_marks_of_a_stored_checkpoint_are_shown(stored: tuple[DevBroker, Path]) -> None:
    _, config = stored
    lines = [line.split() for line in replayfilter("state", str(config)).splitlines()]
    marks = {tuple(line[:3]) for line in lines if line and line[0] == "7"}
    assert marks == {("7", "0", "80"), ("7", "1", "69")}
