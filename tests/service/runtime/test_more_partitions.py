"""A topic between two running services gets more partitions: nothing is lost, and all are used.

For the first service it is an output, for the second an input.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # not in its stubs

from replayfilter.core.stamp import Stamp
from replayfilter.devbroker import DevBroker
from replayfilter.kafka.admin import Cluster
from tests.support.replay_service import prepare_replay_service
from tests.support.service_process import ServiceProcess, wait_for
from tests.support.topics import read_all

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PARTITIONS, MORE = 2, 4
NOTICED_S = 60.0


def with_http(config: Path) -> str:
    """Add a free port to the config; the URL of its status."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    config.write_text(f"{config.read_text()}\n[http]\nport = {port}\n", "utf-8")
    return f"http://127.0.0.1:{port}/status"


def status(url: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = httpx.get(url, timeout=10).json()
    except httpx.TransportError:
        return {"ready": False, "lag": []}
    return found


class Chain:
    """Records with stamps of four partitions to the service ``first``, whose unique ones ``second`` reads."""

    def __init__(self, broker: DevBroker, folder: Path) -> None:
        self.bootstrap = broker.bootstrap
        Cluster(self.bootstrap).create({"chain": MORE})
        self.first = prepare_replay_service(folder, self.bootstrap, "first", "chain", PARTITIONS)
        self.second = prepare_replay_service(folder, self.bootstrap, "second", "first.unique", PARTITIONS)
        self.url = with_http(self.second)
        self._producer = Producer({"bootstrap.servers": self.bootstrap})
        self.written = 0

    def write(self, records: int) -> None:
        for number in range(self.written, self.written + records):
            partition, offset = number % MORE, number // MORE
            stamp = Stamp(7, partition, offset).to_bytes()
            self._producer.produce("chain", b"%d" % number, stamp, partition)
        assert self._producer.flush(30) == 0
        self.written += records

    def writes_to(self, partitions: set[int | None]) -> bool:
        """Whether all have records; writes some more, since a begun batch still goes to the old ones."""
        self.write(40)
        return len(partitions) == MORE

    def arrived(self) -> list[int]:
        return [int(message.value() or b"-1") for message in read_all(self.bootstrap, "second.unique")]

    def await_all(self, *services: ServiceProcess) -> None:
        wait_for(
            lambda: len(self.arrived()) >= self.written, 240,
            "\n".join(["records are missing", *(service.tail() for service in services)]), every=1,
        )  # fmt: skip


def test_a_topic_between_two_services_gets_more_partitions(tmp_path: Path) -> None:
    with DevBroker() as broker:
        chain = Chain(broker, tmp_path)
        chain.write(400)
        with ServiceProcess(chain.first) as first, ServiceProcess(chain.second) as second:
            chain.await_all(first, second)
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            admin.create_partitions([NewPartitions("first.unique", MORE)])["first.unique"].result(20)
            raised_at = time.monotonic()
            noticed = {"first": 0.0, "lag": 0.0}
            while not all(noticed.values()):
                now = time.monotonic() - raised_at
                assert now < NOTICED_S, f"{noticed}\n{first.tail()}\n{second.tail()}"
                if "topic first.unique has 4 partitions now, 2 before" in first.log.read_text("utf-8"):
                    noticed["first"] = noticed["first"] or now
                if len(status(chain.url)["lag"]) == MORE:
                    noticed["lag"] = noticed["lag"] or now
                chain.write(40)
                time.sleep(0.5)
            wait_for(
                lambda: chain.writes_to({m.partition() for m in read_all(broker.bootstrap, "first.unique")}),
                120, "no record in a new partition", every=1,
            )  # fmt: skip
            chain.await_all(first, second)
            wait_for(lambda: status(chain.url)["ready"], 60, "the second service is not ready")
            wait_for(
                lambda: all(lag["next"] == lag["end"] > 0 for lag in status(chain.url)["lag"]),
                30, "a partition without a lag", every=1,
            )  # fmt: skip
            assert status(chain.url)["totals"]["replay"] == 0
            print(f"noticed after {noticed}, {chain.written} records")
        assert Counter(chain.arrived()) == Counter(range(chain.written))
