"""SIGTERM: the service finishes the current batch, exits with 0, and continues there at the next start.

Before it ends it sends the span of each batch.
"""

from __future__ import annotations

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from replayfilter.demo.check import compare
from replayfilter.demo.kafka_io import create_topic, publish, read_topic
from replayfilter.demo.stream import OUTPUTS, expected_routes, generate
from replayfilter.demo.walkthrough import PARTITIONS, write_config
from replayfilter.devbroker import DevBroker
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.service_process import Checkpoint, ServiceProcess, open_transactions, paced, wait_for

pytestmark = pytest.mark.spark

NAME = "stopped"
STOPS = 3
RECORDS = 12_000


def await_running_batch(service: ServiceProcess, checkpoint: Checkpoint) -> None:
    """Wait until one batch is finished and the next has begun, so that the signal arrives during a batch."""
    committed = checkpoint.committed()
    service.await_change(lambda: checkpoint.committed() > committed)
    started = checkpoint.started()
    service.await_change(lambda: checkpoint.started() > started)


def await_end_of_processes(service: ServiceProcess) -> None:
    wait_for(lambda: not service.pids(), 30, "processes of a stopped service are still alive")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sigterm_finishes_the_batch_and_the_next_start_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(3)
    end_ms = int(time.time() * 1000)
    stream = generate(RECORDS, end_ms=end_ms, seed=3)
    expected = expected_routes(stream, end_ms=end_ms)
    with DevBroker() as broker, ThreadPoolExecutor(1) as aside, OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        config = write_config(tmp_path, broker.bootstrap, NAME, batch_records=2_000)
        outputs = [f"{NAME}.{route}" for route in OUTPUTS]
        for topic in (NAME, *outputs):
            create_topic(broker.bootstrap, topic, PARTITIONS)
        checkpoint = Checkpoint(tmp_path / "checkpoint")
        publishing = aside.submit(publish, broker.bootstrap, NAME, paced(stream, 300))
        for _ in range(STOPS):
            with ServiceProcess(config) as service:
                await_running_batch(service, checkpoint)
                time.sleep(rng.uniform(0, 0.5))
                service.pids()
                current = checkpoint.started()
                service.process.send_signal(signal.SIGTERM)
                assert service.end(60) == 0, service.tail()
                assert checkpoint.committed() >= current, f"the batch was not finished\n{service.tail()}"
                assert not open_transactions(broker.bootstrap, outputs)
                await_end_of_processes(service)
                assert "Traceback" not in service.tail()
        publishing.result()
        with ServiceProcess(config, "--once") as service:
            assert service.end() == 0, service.tail()
        found = {route: read_topic(broker.bootstrap, f"{NAME}.{route}") for route in OUTPUTS}
    for verdict in compare(stream, expected, found).values():
        assert verdict.ok, verdict
    batches = sorted(span["replayfilter.batch"] for span in receiver.attributes())
    assert batches == list(range(checkpoint.committed() + 1))
    assert sum(span["messaging.batch.message_count"] for span in receiver.attributes()) == RECORDS
