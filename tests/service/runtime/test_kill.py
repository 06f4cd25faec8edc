"""kill -9 of the service, twenty times at random moments, while a stream is published.

Afterwards every record must be in exactly one topic, once, and in source order: `compare` checks each record.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from replayfilter.demo.check import compare
from replayfilter.demo.kafka_io import create_topic, publish, read_topic
from replayfilter.demo.stream import OUTPUTS, expected_routes, generate
from replayfilter.demo.walkthrough import PARTITIONS, write_config
from replayfilter.devbroker import DevBroker
from tests.support.interruption import Group, interrupted_phase
from tests.support.service_process import Checkpoint, ServiceProcess, paced

pytestmark = [pytest.mark.spark, pytest.mark.kill]

NAME = "killed"
KILLS = 20
RECORDS = 120_000  # more than are published during the kills; the rest follows at the end
PER_SECOND = 100.0


def await_moment(
    rng: random.Random, number: int, service: ServiceProcess, checkpoint: Checkpoint, group: Group
) -> None:
    """Sleep until a random moment: during the start, after a batch began, or once records are delivered."""
    kind = ("batch", "delivery", "start", "delivery", "batch")[number % 5]
    batch, offsets = checkpoint.started(), group.offsets()
    if kind == "start":
        time.sleep(rng.uniform(1, 10))  # mostly before the first batch, which repeats a killed one
    elif kind == "batch":
        service.await_change(lambda: checkpoint.started() > batch)
        time.sleep(rng.uniform(0, 1.5))
    else:
        service.await_change(lambda: group.offsets() != offsets, every=0.002)
        time.sleep(rng.choice((0, rng.uniform(0, 0.1))))


def choose_processes(rng: random.Random, service: ServiceProcess) -> tuple[str, set[int]]:
    """Which processes to kill: the driver, its JVM, or everything at once."""
    who = rng.choice(("driver", "JVM", "all"))
    jvm = service.jvm()
    if who == "JVM" and jvm is not None:
        return who, {jvm}
    return (who, service.pids()) if who == "all" else ("driver", {service.process.pid})


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_kill_20_times(tmp_path: Path) -> None:
    seed = int(time.time())
    rng = random.Random(seed)
    end_ms = int(time.time() * 1000)
    stream = generate(RECORDS, end_ms=end_ms, seed=seed)
    expected = expected_routes(stream, end_ms=end_ms)
    hurry = threading.Event()
    with DevBroker() as broker, ThreadPoolExecutor(1) as aside, ExitStack() as at_end:
        at_end.callback(hurry.set)  # otherwise a failure would wait for the whole stream
        config = write_config(tmp_path, broker.bootstrap, NAME, batch_records=4_000)
        for topic in (NAME, *(f"{NAME}.{route}" for route in OUTPUTS)):
            create_topic(broker.bootstrap, topic, PARTITIONS)
        checkpoint, group = Checkpoint(tmp_path / "checkpoint"), Group(broker.bootstrap, NAME)
        hit: Counter[str] = Counter()
        publishing = aside.submit(publish, broker.bootstrap, NAME, paced(stream, PER_SECOND, hurry))
        for number in range(KILLS):
            assert not publishing.done(), "the stream ended before the last kill; make it longer"
            with ServiceProcess(config) as service:
                await_moment(rng, number, service, checkpoint, group)
                who, pids = choose_processes(rng, service)
                service.kill(pids)
            what = interrupted_phase(checkpoint, group)
            hit[what] += 1
            print(f"kill {number + 1}: {who}, batch {checkpoint.started()}, {what}", flush=True)
        hurry.set()
        publishing.result()
        group.close()
        config = write_config(tmp_path, broker.bootstrap, NAME, batch_records=60_000)  # the rest, quickly
        with ServiceProcess(config, "--once") as service:
            assert service.end() == 0, service.tail()
        outputs = {route: read_topic(broker.bootstrap, f"{NAME}.{route}") for route in OUTPUTS}
    print(f"seed {seed}: {dict(hit)}")
    for verdict in compare(stream, expected, outputs).values():
        assert verdict.ok, f"seed {seed}, {verdict}"
    # Otherwise the kills would prove nothing.
    assert KILLS - hit["no batch in flight"] >= KILLS // 3
    assert hit["batch in flight, part of it delivered"] + hit["batch delivered, not committed"] > 0
