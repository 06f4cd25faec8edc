"""Output topics with a small ``max.message.bytes``: batches of records follow it, also while it changes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in its stubs
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.support.service_process import ServiceProcess, wait_for
from tests.support.topics import new_topic, read_all

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

LIMIT, LOWERED = 262_144, 20_000  # bytes
RECORDS, SIZE = 12_000, 3_000

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
format = "raw"
[replay]
enabled = false
[dedup]
key = ["@value"]
clock = "none"
[output]
unique = "{name}.unique"
duplicate = "{name}.duplicate"
error = "{name}.error"
"""


def publish(bootstrap: str, topic: str, seed: int) -> list[bytes]:
    """Write records that can't be compressed; their values."""
    chance = random.Random(seed)
    values = [chance.randbytes(SIZE) for _ in range(RECORDS)]
    producer = Producer({"bootstrap.servers": bootstrap, "batch.size": LIMIT})
    for value in values:
        producer.produce(topic, value, partition=value[0] % 2)
        producer.poll(0)
    producer.flush(60)
    return values


def lower_limit(bootstrap: str, topic: str) -> None:
    entry = ConfigEntry("max.message.bytes", str(LOWERED), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})  # its requests end with it
    admin.incremental_alter_configs([resource])[resource].result(20)


def test_batches_follow_the_limit_of_the_outputs(bootstrap: str, tmp_path: Path) -> None:
    name = new_topic(bootstrap, "sizes", 2, max_message_bytes=str(LIMIT))
    config = tmp_path / "sizes.toml"
    config.write_text(CONFIG.format(name=name, folder=tmp_path, bootstrap=bootstrap))
    subprocess.run([sys.executable, "-m", "replayfilter", "topics", str(config)], check=True)

    def delivered() -> list[bytes]:
        return sorted(message.value() or b"" for message in read_all(bootstrap, f"{name}.unique"))

    published = publish(bootstrap, name, 1)
    with ServiceProcess(config) as service:
        service.await_change(lambda: len(delivered()) >= RECORDS, every=1)
        lower_limit(bootstrap, f"{name}.unique")
        published += publish(bootstrap, name, 2)
        service.await_change(lambda: len(delivered()) >= 2 * RECORDS, every=1)
        service.process.send_signal(signal.SIGTERM)
        wait_for(lambda: service.process.poll() is not None, 60, "the service did not end")
        log = service.tail()
    assert delivered() == sorted(published)
    assert service.process.returncode == 0, log
    print(log)
    assert "Kafka refused a batch of up to 266240 bytes" in " ".join(log.split())
