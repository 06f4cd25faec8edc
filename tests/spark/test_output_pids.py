"""Who reads several outputs, or an output that got more partitions, loses nothing to its marks."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # not in its stubs

from replayfilter.core.routing import Route
from replayfilter.core.rules import Rules
from tests.support.pipelines import Pipeline, order, record

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

HOUR = 3_600_000


def reader_of(pipeline: Pipeline, folder: Path, *routes: Route, stamp: str = "key") -> Pipeline:
    """A service that only filters replays, and reads these outputs in batches of 6 records."""
    topics = tuple(map(pipeline.topic_of, routes))
    reader = Pipeline(
        pipeline.bootstrap, folder, f"{pipeline.name}-reader", topics=topics, batch_records=6, stamp=stamp,
        rules=Rules(dedup=False),
    )  # fmt: skip
    reader.run_once()
    return reader


@pytest.mark.parametrize("stamp", ["key", "header"])
def test_a_reader_of_two_outputs_gets_the_records_of_both(bootstrap: str, tmp_path: Path, stamp: str) -> None:
    pipeline = Pipeline(bootstrap, tmp_path, f"two-outputs-{stamp}", partitions=1, output_stamp=stamp)
    pipeline.publish(record(order(number % 10, HOUR)) for number in range(20))
    pipeline.run_once()
    assert len(pipeline.values(Route.UNIQUE)) == len(pipeline.values(Route.DUPLICATE)) == 10

    reader = reader_of(pipeline, tmp_path, Route.UNIQUE, Route.DUPLICATE, stamp=stamp)
    assert sum(reader.counts("replay")) == 0
    assert sum(reader.counts("unstamped")) == 0
    assert len(reader.values(Route.UNIQUE)) == 20


def test_a_reader_of_an_output_that_got_more_partitions_gets_all(bootstrap: str, tmp_path: Path) -> None:
    pipeline = Pipeline(bootstrap, tmp_path, "raised", partitions=2)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = pipeline.topic_of(Route.UNIQUE)
    admin.create_partitions([NewPartitions(pipeline.name, 4)])[pipeline.name].result(20)
    pipeline.publish(record(order(number, HOUR), partition=3) for number in range(10))
    pipeline.run_once()
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(20)
    raised = Pipeline(bootstrap, tmp_path, "raised", partitions=2)  # the same service, after the next start
    raised.publish(record(order(number, HOUR), partition=3) for number in range(10, 20))
    raised.run_once()
    assert [row.partition for row in raised.read(Route.UNIQUE)] == [1] * 10 + [3] * 10

    reader = reader_of(raised, tmp_path, Route.UNIQUE)
    assert sum(reader.counts("replay")) == 0
    assert len(reader.values(Route.UNIQUE)) == 20
