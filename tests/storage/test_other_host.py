"""kill -9 of a service whose checkpoint is on another file system; another host with an empty disk goes on.

Afterwards every record must be in exactly one topic, once, and in source order: `compare` checks each record.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from replayfilter.demo.check import compare
from replayfilter.demo.kafka_io import create_topic, publish, read_topic
from replayfilter.demo.stream import OUTPUTS, expected_routes, generate
from replayfilter.demo.walkthrough import PARTITIONS, write_config
from tests.support.interruption import Group
from tests.support.service_process import ServiceProcess, paced

pytestmark = [pytest.mark.spark, pytest.mark.storage, pytest.mark.slow]

KILLS = 1
RECORDS = 30_000  # more than are published during the kills; the rest follows at the end
PER_SECOND = 200.0


@pytest.mark.timeout(900)
def test_a_killed_service_goes_on_at_another_host(
    storage: str, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"moved-{storage.partition(':')[0]}"
    seed = int(time.time())
    rng, hurry = random.Random(seed), Event()
    stream = generate(RECORDS, end_ms=seed * 1000, seed=seed)
    for topic in (name, *(f"{name}.{route}" for route in OUTPUTS)):
        create_topic(bootstrap, topic, PARTITIONS)
    group = Group(bootstrap, name)

    def host(number: int, batch_records: int) -> Path:
        """The config of a service at another host: with folders of its own."""
        (folder := tmp_path / str(number)).mkdir()
        monkeypatch.setenv("TMPDIR", str(folder))
        config = write_config(folder, bootstrap, name, batch_records)
        text = config.read_text().replace(f"{folder}/checkpoint", f"{storage}/checkpoints/{name}")
        config.write_text(text)
        return config

    with ThreadPoolExecutor(1) as aside:
        publishing = aside.submit(publish, bootstrap, name, paced(stream, PER_SECOND, hurry))
        try:
            for number in range(KILLS):
                with ServiceProcess(host(number, batch_records=2_000)) as service:
                    await_delivery(service, group, batches=1 + number)
                    time.sleep(rng.uniform(0, 1))
                    service.kill(service.pids())
        finally:
            hurry.set()
        publishing.result()
    group.close()
    config = host(KILLS, batch_records=10_000)
    with ServiceProcess(config, "--once") as service:
        assert service.end() == 0, service.tail()
    outputs = {route: read_topic(bootstrap, f"{name}.{route}") for route in OUTPUTS}
    for verdict in compare(stream, expected_routes(stream, end_ms=seed * 1000), outputs).values():
        assert verdict.ok, f"seed {seed}, {verdict}"

    command = [sys.executable, "-m", "replayfilter", "state", str(config)]
    state = subprocess.run(command, capture_output=True, text=True, check=False)
    assert " keys in " in state.stdout, state.stdout + state.stderr


def await_delivery(service: ServiceProcess, group: Group, batches: int) -> None:
    """Wait until records of so many batches are delivered."""
    for _ in range(batches):
        service.await_change(partial(_has_moved, group, group.offsets()), every=0.05)


def _has_moved(group: Group, before: list[int]) -> bool:
    return group.offsets() != before
