"""Downtime is no silence: replays that waited while the service was down are found, however long it was."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from replayfilter import StampingProducer
from replayfilter.kafka.admin import Cluster
from tests.support.replay_service import prepare_replay_service
from tests.support.service_process import ServiceProcess
from tests.support.topics import read_all

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def test_replays_that_waited_for_longer_than_mark_ttl_are_dropped(bootstrap: str, tmp_path: Path) -> None:
    name = "downtime"
    Cluster(bootstrap).create({name: 1})
    path = prepare_replay_service(tmp_path, bootstrap, "downtime-filter", name, 1)
    path.write_text(path.read_text("utf-8").replace("[replay]", '[replay]\nmark_ttl = "1s"'), "utf-8")
    for _ in range(2):  # the second time all of them are replays
        with StampingProducer({"bootstrap.servers": bootstrap}, name, 7) as producer:
            for offset in range(10):
                producer.produce(0, offset, str(offset).encode())
        with ServiceProcess(path, "--once") as service:
            assert service.end(200) == 0, service.tail()
        time.sleep(2)
    unique = read_all(bootstrap, "downtime-filter.unique")
    assert [message.value() for message in unique] == [str(offset).encode() for offset in range(10)]
