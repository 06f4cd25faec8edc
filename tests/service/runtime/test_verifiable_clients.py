"""Kafka's own verifiable clients judge a service that is killed: none of their code is ours.

Two VerifiableProducers write the same numbers while the service is killed, so each number is unique once and
a duplicate once. A VerifiableConsumer, which reads committed records only, finds what they say was
acknowledged.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from replayfilter.devbroker import DevBroker
from replayfilter.kafka.admin import Cluster
from tests.support.interruption import Group, interrupted_phase
from tests.support.service_process import Checkpoint, ServiceProcess
from tests.support.verifiable import Events, VerifiableProducer, consume

pytestmark = [pytest.mark.spark, pytest.mark.kill]

NAME, PARTITIONS, KILLS = "verifiable", 4, 3
END = "the end"
CONFIG = """\
[service]
name = "{name}"
checkpoint = "{folder}/checkpoint"
master = "local[2]"

[kafka]
bootstrap = "{bootstrap}"

[input]
topics = ["{name}"]
format = "raw"
stamp = "none"

[replay]
enabled = false

[dedup]
key = ["@value"]
expiry_key = "@timestamp"
period = "1h"

[output]
stamp = "none"
unique = "{name}.unique"
duplicate = "{name}.duplicate"
expired = "{name}.expired"
error = "{name}.error"
"""


def by_partition(events: Events) -> Counter[tuple[int, str]]:
    """How often each value is in each partition."""
    return Counter((each["partition"], each["value"]) for each in events)


def await_delivery(service: ServiceProcess, group: Group) -> None:
    """Wait until the service has delivered something."""
    before = group.offsets()
    service.await_change(lambda: group.offsets() != before, every=0.002)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_a_producer_was_acknowledged_a_consumer_finds_once(tmp_path: Path) -> None:
    config = tmp_path / f"{NAME}.toml"
    with DevBroker() as broker, ExitStack() as at_end:
        outputs = [f"{NAME}.{route}" for route in ("unique", "duplicate", "expired", "error")]
        Cluster(broker.bootstrap).create(dict.fromkeys([NAME, *outputs], PARTITIONS))
        config.write_text(CONFIG.format(name=NAME, folder=tmp_path, bootstrap=broker.bootstrap))
        checkpoint, group = Checkpoint(tmp_path / "checkpoint"), Group(broker.bootstrap, NAME)
        at_end.callback(group.close)
        producers = [
            at_end.enter_context(
                VerifiableProducer(broker.bootstrap, NAME, per_second, tmp_path / f"{per_second}.log")
            )
            for per_second in (300, 200)
        ]
        phases: Counter[str] = Counter()
        for _ in range(KILLS):
            with ServiceProcess(config) as service:
                await_delivery(service, group)
                service.kill(service.pids())
            phases[interrupted_phase(checkpoint, group)] += 1
        acknowledged = [producer.stop() for producer in producers]
        with ServiceProcess(config, "--once") as service:
            assert service.end() == 0, service.tail()
        ending = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for topic in outputs:
            for partition in range(PARTITIONS):
                ending.produce(topic, END, partition=partition)
        ending.flush()
        partitions = set(range(PARTITIONS))
        found = {topic: consume(broker.bootstrap, topic, partitions, END, tmp_path) for topic in outputs}
    print(f"{sum(map(len, acknowledged)):,} acknowledged; {dict(phases)}")
    most, least = sorted(map(len, acknowledged), reverse=True)
    assert least > 1_000
    assert [Counter(each["value"] for each in events) for events in found.values()] == [
        Counter(map(str, range(most))),  # unique: each number once
        Counter(map(str, range(least))),  # duplicate: each that both have written
        Counter(),
        Counter(),
    ]
    written = by_partition([event for events in acknowledged for event in events])
    assert sum(map(by_partition, found.values()), Counter()) == written, "in the partition that it came from"
    assert phases["no batch in flight"] < KILLS, "otherwise the kills prove nothing"
