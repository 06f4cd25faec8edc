"""Output topics: made so that they take what the input takes, and looked at when they are there already."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from typer.testing import CliRunner

from replayfilter.demo.walkthrough import write_config
from replayfilter.devbroker import DevBroker
from replayfilter.kafka.admin import Cluster
from replayfilter.service.cli.main import app
from replayfilter.service.config.model import load
from replayfilter.service.runtime.preflight import inspect
from replayfilter.service.tools.topics import ADDED_BYTES, output_settings, too_tight

NAMES = itertools.count()
FREE = {
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "max.message.bytes": "2000000",
    "retention.ms": "9000",
}


def produce(broker: DevBroker, topic: str, value: bytes, timestamp: int) -> None:
    """Write one record; KafkaException if the broker refuses it."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 5_000_000})
    producer.produce(topic, value, timestamp=timestamp, on_delivery=lambda error, _: failed.append(error))
    producer.flush(20)
    if failed[0] is not None:
        raise KafkaException(failed[0])


def test_made_topics_take_whatever_the_input_takes(broker: DevBroker, tmp_path: Path) -> None:
    name = f"made{next(NAMES)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 3, 1, config=FREE)])[name].result(20)
    config = write_config(tmp_path, broker.bootstrap, name)
    result = CliRunner().invoke(app, ["topics", str(config)])
    assert result.exit_code == 0, result.output
    ahead = int(time.time() * 1000) + 7 * 86_400_000
    for topic in (name, f"{name}.error"):
        produce(broker, topic, bytes(1_900_000), ahead)
    produce(broker, f"{name}.error", bytes(2_003_000), ahead)
    settings = Cluster(broker.bootstrap).settings([f"{name}.unique"])[f"{name}.unique"]
    assert (settings["retention.ms"], settings["message.timestamp.type"]) == ("9000", "CreateTime")
    assert inspect(load(config), from_committed=False).warnings == []


def test_existing_topics_that_take_less_are_told(broker: DevBroker, tmp_path: Path) -> None:
    name = f"tight{next(NAMES)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    outputs = [f"{name}.{route}" for route in ("unique", "duplicate", "expired", "error")]
    made = admin.create_topics([NewTopic(name, 1, 1, config=FREE), *(NewTopic(out, 1, 1) for out in outputs)])
    for future in made.values():
        future.result(20)
    ahead = int(time.time() * 1000) + 7 * 86_400_000
    with pytest.raises(KafkaException, match="TIMESTAMP"):
        produce(broker, outputs[0], b"{}", ahead)
    findings = inspect(load(write_config(tmp_path, broker.bootstrap, name)), from_committed=False)
    assert findings.faults == []
    assert len(findings.warnings) == len(outputs) * 2
    assert "message.timestamp.after.max.ms = 3600000" in "".join(findings.warnings)
    assert "max.message.bytes = 1048588, and the input takes 2000000" in "".join(findings.warnings)


def test_the_longest_retention_of_the_inputs_counts() -> None:
    def topic(ms: int, size: int) -> dict[str, str]:
        return {"max.message.bytes": str(size), "retention.ms": str(ms), "retention.bytes": "-1"}

    made = output_settings([topic(100, 10), topic(300, 30)])
    assert (made["retention.ms"], made["retention.bytes"]) == ("300", "-1")
    assert made["max.message.bytes"] == str(30 + ADDED_BYTES)
    assert output_settings([topic(100, 10), topic(-1, 30)])["retention.ms"] == "-1"


def test_timestamps_of_the_broker_s_own_clock_need_no_room() -> None:
    clocked = {"max.message.bytes": "10", "message.timestamp.type": "LogAppendTime"}
    roomy = {"max.message.bytes": "9999", "message.timestamp.after.max.ms": "5"}
    assert too_tight([clocked], roomy) == []
    assert (
        "own timestamps are lost" in too_tight([clocked], roomy | clocked | {"max.message.bytes": "9999"})[0]
    )
