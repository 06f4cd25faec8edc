"""A topic whose keys are no stamps: the service stops before harm, and goes on with another config."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from confluent_kafka import Producer

from replayfilter.kafka.admin import Cluster
from tests.support.replay_service import prepare_replay_service
from tests.support.service_process import ServiceProcess
from tests.support.topics import read_all

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

RECORDS, LIMIT = 2_000, 1_500


@pytest.mark.parametrize(
    ("old", "new"),
    [(f"max_sources = {LIMIT}", f"max_sources = {RECORDS}"), ('stamp = "key"', 'stamp = "header"')],
    ids=["raised", "in the header"],
)
def test_too_many_sources_stop_the_service_until_the_config_is_changed(
    bootstrap: str, tmp_path: Path, old: str, new: str
) -> None:
    topic = f"sha1-{tmp_path.name}"
    name = f"{topic}-filter"
    Cluster(bootstrap).create({topic: 1})
    path = prepare_replay_service(tmp_path, bootstrap, name, topic, 1)
    text = path.read_text("utf-8").replace("[replay]", f"[replay]\nmax_sources = {LIMIT}")
    path.write_text(text, "utf-8")
    values = [str(number).encode() for number in range(RECORDS)]
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value, hashlib.sha1(value).digest(), 0)
    assert producer.flush(30) == 0

    with ServiceProcess(path, "--once") as service:
        assert service.end(300) == 1, service.tail()
        assert f"replay.max_sources = {LIMIT}" in service.tail()
    assert read_all(bootstrap, f"{name}.unique") == []

    path.write_text(text.replace(old, new), "utf-8")
    with ServiceProcess(path, "--once") as service:
        assert service.end(300) == 0, service.tail()
    assert [message.value() for message in read_all(bootstrap, f"{name}.unique")] == values
