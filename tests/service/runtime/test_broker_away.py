"""The broker is killed while the service runs: the service waits, continues, and its output is right.

Afterwards every record is compared with what was published, and ``verify`` must agree.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from replayfilter.demo.check import compare
from replayfilter.demo.kafka_io import create_topic, publish, read_topic
from replayfilter.demo.stream import OUTPUTS, expected_routes, generate
from replayfilter.demo.walkthrough import PARTITIONS, write_config
from replayfilter.devbroker import DevBroker
from replayfilter.service.cli.main import app
from replayfilter.service.runtime.supervision import STOP_SECONDS
from tests.support.service_process import Checkpoint, ServiceProcess, wait_for

pytestmark = pytest.mark.spark

NAME = "away"
RECORDS = 24_000


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class StatusClient:
    """Asks a service over HTTP; it adds the HTTP section to the config."""

    def __init__(self, config: Path) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        config.write_text(f'{config.read_text()}\n[http]\nport = {port}\nstale_after = "20s"\n')

    def ready(self) -> bool | None:
        """Whether /readyz returns 200; None without a response."""
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
        except httpx.TransportError:
            return None

    def status(self) -> dict[str, Any]:
        """The whole status."""
        found: dict[str, Any] = httpx.get(f"{self.url}/status", timeout=10).json()
        return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_service_survives_a_broker_that_is_killed_and_restarted(tmp_path: Path) -> None:
    end_ms = int(time.time() * 1000)
    stream = generate(RECORDS, end_ms=end_ms, seed=5)
    expected = expected_routes(stream, end_ms=end_ms)
    with DevBroker() as broker, ThreadPoolExecutor(1) as aside:
        config = write_config(tmp_path, broker.bootstrap, NAME, batch_records=2_000)
        http = StatusClient(config)
        for topic in (NAME, *(f"{NAME}.{route}" for route in OUTPUTS)):
            create_topic(broker.bootstrap, topic, PARTITIONS)
        publish(broker.bootstrap, NAME, stream[: RECORDS // 2])
        checkpoint = Checkpoint(tmp_path / "checkpoint")
        with ServiceProcess(config, "--log-format", "json") as service:
            wait_for(lambda: checkpoint.committed() >= 1, 150, "no batch is committed")
            assert http.ready()
            broker.kill()
            wait_for(lambda: http.ready() is False, 150, "the service is ready without a broker")
            time.sleep(10)
            assert service.process.poll() is None, service.tail()
            broker.restart()
            publishing = aside.submit(publish, broker.bootstrap, NAME, stream[RECORDS // 2 :])
            wait_for(lambda: http.ready() is True, 150, f"not ready again: {http.status()['reasons']}")
            publishing.result()
            # Nothing waits any more.
            wait_for(lambda: http.status()["waiting"] == 0 and publishing.done(), 180, "not done", every=1)
            retries = http.status()["retries"]
            service.process.send_signal(signal.SIGTERM)
            assert service.end(90) == 0, service.tail()
            lines = [
                json.loads(line) for line in service.log.read_text().splitlines() if line.startswith("{")
            ]
        outputs = {route: read_topic(broker.bootstrap, f"{NAME}.{route}") for route in OUTPUTS}
        verified = CliRunner().invoke(app, ["verify", str(config)])
    for verdict in compare(stream, expected, outputs).values():
        assert verdict.ok, verdict
    assert verified.exit_code == 0, verified.output
    assert all(line["service"] == NAME for line in lines)
    assert sum(line["event"] == "batch" for line in lines) >= RECORDS // 2_000
    warnings = [line for line in lines if line["level"] == "warning"]
    print(f"{retries} restarts; {[line['event'][:150] for line in warnings]}")
    events = [line["event"] for line in warnings]
    assert any("no Kafka broker answered" in event for event in events), events
    assert "Kafka answers again" in events


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_stop_without_a_broker_ends_within_the_limit(tmp_path: Path) -> None:
    with DevBroker() as broker:
        config = write_config(tmp_path, broker.bootstrap, NAME, batch_records=2_000)
        for topic in (NAME, *(f"{NAME}.{route}" for route in OUTPUTS)):
            create_topic(broker.bootstrap, topic, PARTITIONS)
        publish(broker.bootstrap, NAME, generate(RECORDS, end_ms=int(time.time() * 1000), seed=6))
        checkpoint = Checkpoint(tmp_path / "checkpoint")
        with ServiceProcess(config, "--log-format", "json") as service:
            wait_for(lambda: checkpoint.committed() >= 1, 150, "no batch is committed")
            started = checkpoint.started()
            wait_for(lambda: checkpoint.started() > started, 60, "no batch has begun")
            service.pids()
            broker.kill()
            service.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            code = service.end(STOP_SECONDS + 30)
            took = time.monotonic() - began
            print(f"exit code {code} after {took:.1f} s")
            assert took < STOP_SECONDS + 10, service.tail()
            wait_for(lambda: not service.pids(), 30, "processes of the stopped service are still alive")
            assert "Traceback" not in service.tail()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_java_process_ends_the_service_with_a_reason(tmp_path: Path) -> None:
    with DevBroker() as broker:
        config = write_config(tmp_path, broker.bootstrap, NAME, batch_records=2_000)
        for topic in (NAME, *(f"{NAME}.{route}" for route in OUTPUTS)):
            create_topic(broker.bootstrap, topic, PARTITIONS)
        publish(broker.bootstrap, NAME, generate(4_000, end_ms=int(time.time() * 1000), seed=7))
        checkpoint = Checkpoint(tmp_path / "checkpoint")
        with ServiceProcess(config, "--log-format", "json") as service:
            wait_for(lambda: checkpoint.committed() >= 0, 150, "no batch is committed")
            java = service.jvm()
            assert java is not None
            os.kill(java, signal.SIGKILL)
            assert service.end(60) == 1, service.tail()
            assert "Spark's Java process has ended" in service.tail()
            assert "Traceback" not in service.tail()
