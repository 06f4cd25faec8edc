"""Three brokers are killed, frozen and cut off in turn, and the network between is slow and lossy.

Afterwards every record must be in exactly one topic, once, and in source order: `compare` checks each record.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from replayfilter.demo.check import compare
from replayfilter.demo.kafka_io import publish, read_topic
from replayfilter.demo.stream import OUTPUTS, expected_routes, generate
from replayfilter.demo.walkthrough import PARTITIONS, write_config
from replayfilter.kafka.admin import Cluster
from tests.support.broker_cluster import BrokerCluster, Node
from tests.support.interruption import Group
from tests.support.service_process import ServiceProcess, paced

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.slow]

NAME = "hostile"
RECORDS = 60_000  # more than are published during the faults; the rest follows at the end
PER_SECOND = 100.0
BROKER_SECONDS = 6.0  # longer than broker.session.timeout.ms: the other brokers lead meanwhile
NETWORK_SECONDS = 10.0


Fault = tuple[str, Callable[[], None]]  # its name, and what makes it happen


class Faults:
    """What is done to a cluster. Each fault is over when its method returns."""

    def __init__(self, cluster: BrokerCluster, rng: random.Random) -> None:
        self._cluster, self._rng = cluster, rng

    def all(self) -> list[Fault]:
        """Each broker is killed, so every leader and coordinator is lost once; the rest in random order."""
        nodes = self._cluster.nodes
        faults: list[Fault] = [
            (f"broker {number} killed", partial(self._kill, node)) for number, node in enumerate(nodes, 1)
        ]
        faults += [
            ("broker restarted", self._restart),
            ("broker frozen", self._freeze),
            ("one broker cut off", partial(self._cut, 1)),
            ("all brokers cut off", partial(self._cut, 3)),
            ("connections reset", self._reset),
            ("slow network", self._slow),
        ]
        self._rng.shuffle(faults)
        return faults

    def _kill(self, node: Node) -> None:
        node.kill()
        time.sleep(BROKER_SECONDS)
        node.start()

    def _restart(self) -> None:
        """Stop a broker in order: it hands over what it leads."""
        node = self._rng.choice(self._cluster.nodes)
        node.signal(signal.SIGTERM)
        node.wait()
        node.restart()

    def _freeze(self) -> None:
        """When it wakes up, it still believes that it leads."""
        node = self._rng.choice(self._cluster.nodes)
        node.signal(signal.SIGSTOP)
        time.sleep(BROKER_SECONDS)
        node.signal(signal.SIGCONT)

    def _cut(self, brokers: int) -> None:
        proxies = self._rng.sample(self._cluster.proxies, brokers)
        for proxy in proxies:
            proxy.cut()
        time.sleep(NETWORK_SECONDS)
        for proxy in proxies:
            proxy.restore()

    def _reset(self) -> None:
        for _ in range(int(NETWORK_SECONDS)):
            self._rng.choice(self._cluster.proxies).reset_connections()
            time.sleep(1)

    def _slow(self) -> None:
        """300 ms there and back, and 110 kB/s for each connection."""
        for proxy in self._cluster.proxies:
            proxy.delay_s = 0.15
        time.sleep(NETWORK_SECONDS)
        for proxy in self._cluster.proxies:
            proxy.restore()


@pytest.mark.timeout(900)
def test_three_brokers_and_a_hostile_network(tmp_path: Path) -> None:
    seed = int(time.time())
    end_ms = seed * 1000
    stream = generate(RECORDS, end_ms=end_ms, seed=seed)
    hurry = Event()
    with BrokerCluster() as cluster, ThreadPoolExecutor(1) as aside, ExitStack() as at_end:
        at_end.callback(hurry.set)  # otherwise a failure would wait for the whole stream
        topics = (NAME, *(f"{NAME}.{route}" for route in OUTPUTS))
        Cluster(cluster.inside).create(dict.fromkeys(topics, PARTITIONS))
        group = Group(cluster.inside, NAME)
        at_end.callback(group.close)
        publishing = aside.submit(publish, cluster.inside, NAME, paced(stream, PER_SECOND, hurry))
        config = write_config(tmp_path, cluster.outside, NAME, batch_records=4_000)
        seconds = {}
        with ServiceProcess(config) as service:

            def await_delivery() -> None:
                before = group.offsets()
                service.await_change(lambda: group.offsets() != before, every=0.05)

            await_delivery()
            for fault, happens in Faults(cluster, random.Random(seed)).all():
                happens()
                ended = time.monotonic()
                await_delivery()
                seconds[fault] = time.monotonic() - ended
                print(f"seed {seed}: {fault}, delivered {seconds[fault]:.1f} s after its end", flush=True)
                assert not publishing.done(), "the stream ended before the last fault; make it longer"
            hurry.set()
            publishing.result()
            service.await_change(lambda: sum(group.offsets()) == len(stream))
            service.process.send_signal(signal.SIGTERM)
            assert service.end(90) == 0, service.tail()
        outputs = {route: read_topic(cluster.inside, f"{NAME}.{route}") for route in OUTPUTS}
    expected = expected_routes(stream, end_ms=end_ms)
    for verdict in compare(stream, expected, outputs).values():
        assert verdict.ok, f"seed {seed}, {verdict}"
