"""Timestamps that no calendar holds: such records are decided like all others, and keep their timestamps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replayfilter.demo.kafka_io import publish, read_topic
from replayfilter.demo.stream import Record
from replayfilter.kafka.admin import Cluster
from tests.support.service_process import ServiceProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

NANOSECONDS = 1_700_000_000_000_000_000  # given as milliseconds by mistake
FIRST_OVERFLOW = 9_223_372_036_854_776  # more microseconds than int64 holds
LAST = 2**63 - 1
BEFORE_1582 = -12_345_678_901_234  # where the Gregorian calendar begins
ORDINARY = 1_700_000_000_000
TIMESTAMPS = (BEFORE_1582, ORDINARY, FIRST_OVERFLOW, NANOSECONDS, LAST)
ANY_TIME = {f"message.timestamp.{side}.max.ms": str(LAST) for side in ("after", "before")}

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
expiry_key = "{expiry_key}"
unit = "{unit}"
period = "1h"
[output]
unique = "{name}.unique"
duplicate = "{name}.duplicate"
expired = "{name}.expired"
error = "{name}.error"
"""


def run_once(
    bootstrap: str, folder: Path, expiry_key: str, unit: str
) -> tuple[dict[int, int], dict[int, bytes | None]]:
    """Publish a record of each timestamp; by id, the timestamps in unique and the reasons in error."""
    name = f"timestamps-{folder.name}"
    routes = ("unique", "duplicate", "expired", "error")
    Cluster(bootstrap).create(
        dict.fromkeys([name, *(f"{name}.{route}" for route in routes)], 1), settings=ANY_TIME
    )
    path = folder / "timestamps.toml"
    path.write_text(
        CONFIG.format(name=name, folder=folder, bootstrap=bootstrap, expiry_key=expiry_key, unit=unit),
        "utf-8",
    )
    values = [json.dumps({"id": number, "ts": ORDINARY}).encode() for number in range(len(TIMESTAMPS))]
    publish(
        bootstrap,
        name,
        [Record(0, -1, None, value, ms, [], "") for value, ms in zip(values, TIMESTAMPS, strict=True)],
    )
    with ServiceProcess(path, "--once") as service:
        assert service.end(200) == 0, service.tail()
    found = {route: read_topic(bootstrap, f"{name}.{route}") for route in routes}
    assert not found["duplicate"]
    assert not found["expired"]
    unique = {json.loads(row.value or b"")["id"]: row.timestamp_ms for row in found["unique"]}
    errors = {json.loads(row.value or b"")["id"]: row for row in found["error"]}
    for number, row in errors.items():
        assert row.timestamp_ms == TIMESTAMPS[number]
    return unique, {number: dict(row.headers)["rf-reason"] for number, row in errors.items()}


def test_a_record_with_any_timestamp_passes_and_keeps_it(bootstrap: str, tmp_path: Path) -> None:
    unique, reasons = run_once(bootstrap, tmp_path, "ts", "ms")
    assert reasons == {}
    assert unique == dict(enumerate(TIMESTAMPS))


def test_a_timestamp_as_expiry_key_is_an_error_if_it_does_not_fit(bootstrap: str, tmp_path: Path) -> None:
    unique, reasons = run_once(bootstrap, tmp_path, "@timestamp", "us")
    assert unique == {0: BEFORE_1582, 1: ORDINARY}
    assert reasons == {2: b"expiry_range", 3: b"expiry_range", 4: b"expiry_range"}


def test_a_timestamp_as_expiry_key_may_be_in_the_future(bootstrap: str, tmp_path: Path) -> None:
    unique, reasons = run_once(bootstrap, tmp_path, "@timestamp", "ms")
    assert unique == {0: BEFORE_1582, 1: ORDINARY}
    assert reasons == {2: b"future", 3: b"future", 4: b"future"}
