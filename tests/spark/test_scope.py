"""Keys that count within an input partition only, through the real pipeline."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # not in its stubs

from replayfilter.core.routing import Route
from replayfilter.core.rules import Rules, Scope
from replayfilter.core.stamp import Stamp
from replayfilter.demo.kafka_io import publish
from replayfilter.kafka.admin import Cluster
from tests.support.pipelines import Pipeline, order, record

pytestmark = pytest.mark.spark

RULES = Rules(period=3_600_000, span=300_000, scope=Scope.PARTITION, remember_first=True)


def test_a_key_is_unique_once_in_each_input_partition(bootstrap: str, tmp_path: Path) -> None:
    """In three partitions of two topics, which share two shards, and across a restart."""
    Cluster(bootstrap).create({"within-b": 1})
    pipeline = Pipeline(
        bootstrap, tmp_path, "within-a", topics=("within-a", "within-b"), rules=RULES, stamp="none"
    )
    values = [order(number, 5) for number in range(4)]
    partitions = [("within-a", 0), ("within-a", 1), ("within-b", 0)]
    for topic, partition in partitions:
        publish(bootstrap, topic, (record(value, partition=partition) for value in values))
    pipeline.run_once()
    assert Counter(pipeline.values(Route.UNIQUE)) == Counter(values * 3)
    assert pipeline.counts("state_keys") == [12]
    for topic, partition in partitions:
        publish(bootstrap, topic, [record(values[partition], partition=partition)])
    pipeline.run_once()
    found = {dict(duplicate.headers)["rf-first"] for duplicate in pipeline.read(Route.DUPLICATE)}
    assert found == {b"within-a/0/0", b"within-a/1/1", b"within-b/0/0"}
    assert pipeline.counts("unique") == [12, 0]


def test_the_same_decisions_at_every_attempt_and_in_new_partitions(bootstrap: str, tmp_path: Path) -> None:
    """Marks and the latest point are those of all partitions, and reach all shards."""
    hour = 3_600_000
    pipeline = Pipeline(bootstrap, tmp_path, "regrown", partitions=1, rules=RULES)
    pipeline.publish([record(order(1, hour), Stamp(7, 0, 0).to_bytes())])
    pipeline.run_once()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions("regrown", 3)])["regrown"].result(20)
    pipeline.publish([
        record(order(1, hour), Stamp(7, 0, 0).to_bytes(), 1),  # a replay in another partition
        record(order(1, hour), Stamp(7, 0, 1).to_bytes(), 1),  # the key moved to another partition: unique
        record(order(1, hour), Stamp(7, 0, 2).to_bytes(), 1),
        record(order(2, 0), Stamp(8, 0, 0).to_bytes(), 2),  # expired by the latest point of partition 0
    ])  # fmt: skip
    pipeline.run_once()
    counted = {name: pipeline.counts(name)[1:] for name in ("unique", "duplicate", "expired", "replay")}
    assert counted == {"unique": [1], "duplicate": [1], "expired": [1], "replay": [1]}

    before = {route: pipeline.read(route) for route in (Route.UNIQUE, Route.DUPLICATE, Route.EXPIRED)}
    pipeline.uncommit(1)
    pipeline.run_once()
    assert {name: pipeline.counts(name)[2:] for name in counted} == counted
    assert pipeline.counts("skipped")[2:] == [3]
    assert {route: pipeline.read(route) for route in before} == before
