"""``replayfilter topics``: new topics take what the input takes; the preflight checks existing ones."""

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
from replayfilter.service.config.loader import load
from replayfilter.service.runtime.preflight import inspect

NAMES = itertools.count()
UNLIMITED = {
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


def test_new_topics_take_whatever_the_input_takes(broker: DevBroker, tmp_path: Path) -> None:
    name = f"new{next(NAMES)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 3, 1, config=UNLIMITED)])[name].result(20)
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


def test_existing_topics_that_take_less_are_reported(broker: DevBroker, tmp_path: Path) -> None:
    name = f"strict{next(NAMES)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    outputs = [f"{name}.{route}" for route in ("unique", "duplicate", "expired", "error")]
    created = admin.create_topics(
        [NewTopic(name, 1, 1, config=UNLIMITED), *(NewTopic(output, 1, 1) for output in outputs)]
    )
    for future in created.values():
        future.result(20)
    ahead = int(time.time() * 1000) + 7 * 86_400_000
    with pytest.raises(KafkaException, match="TIMESTAMP"):
        produce(broker, outputs[0], b"{}", ahead)
    findings = inspect(load(write_config(tmp_path, broker.bootstrap, name)), from_committed=False)
    assert findings.errors == []
    assert len(findings.warnings) == len(outputs) * 2
    assert "message.timestamp.after.max.ms = 3600000" in "".join(findings.warnings)
    assert "max.message.bytes = 1048588, and the input takes 2000000" in "".join(findings.warnings)
