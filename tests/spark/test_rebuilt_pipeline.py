"""A state that was rebuilt from Kafka against one that was never lost, through the real pipeline.

Two services read the first half of a stream. One of them loses its checkpoint, which is rebuilt. Both read
the second half, and each record of both must be where it belongs, with the header that names the record which
it repeats.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from replayfilter.core.input_partition import InputPartition
from replayfilter.core.routing import Route
from replayfilter.core.rules import Rules
from replayfilter.demo.check import ConsumerRecord
from replayfilter.demo.kafka_io import publish
from replayfilter.formats import KeySpec
from replayfilter.kafka.admin import Cluster
from replayfilter.service.runtime.checkpoint import SPARK
from replayfilter.service.tools.own_stamps import own_pids
from replayfilter.spark import rebuild_query
from replayfilter.spark.rebuild_query import rebuild_state
from replayfilter.spark.recall import RecallSettings
from tests.support.halves import Halves
from tests.support.pipelines import OUTPUTS, Pipeline

pytestmark = pytest.mark.spark

INPUT, PARTITIONS = "rebuilt-in", 4
KEYS = KeySpec("json", ("event_id",), "ts", "ms")
RULES = Rules(period=3_600_000, span=300_000, remember_first=True)


@pytest.fixture(scope="module")
def halves(bootstrap: str) -> Halves:
    """A stream, whose first half is in the input topic."""
    found = Halves(8_000, PARTITIONS)
    assert min(found.across(found.cut).values()) > 20, "too few records need what is remembered"
    Cluster(bootstrap).create({INPUT: PARTITIONS})
    publish(bootstrap, INPUT, found.first)
    return found


def test_each_record_is_routed_as_by_a_service_that_lost_nothing(
    bootstrap: str, tmp_path: Path, halves: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once with as many shards as before, once with more, whose state comes from many tasks."""
    shards = {"rebuilt-kept": 2, "rebuilt-same": 2, "rebuilt-more": 3}
    pipelines = {name: pipeline(bootstrap, tmp_path, name) for name in shards}
    for each in pipelines.values():
        each.run_once()
    monkeypatch.setattr(rebuild_query, "TASK_RECORDS", 700)
    monkeypatch.setattr(rebuild_query, "POLL_SECONDS", 0.02)
    for name in ("rebuilt-same", "rebuilt-more"):
        lost, number = pipelines[name], shards[name]
        lost.checkpoint = tmp_path / f"{name}-again"
        checkpoint = str(lost.checkpoint / SPARK)
        lost.settings = replace(lost.settings, checkpoint=checkpoint, shards=number, lanes=number)
        counted, progress, plan = rebuilt(lost)
        assert counted["keys"] == pipelines["rebuilt-kept"].counts("state_keys")[-1]
        sources = pipelines["rebuilt-kept"].counts("state_sources")[-1]
        assert counted["sources_in_shards"] == number * sources
        assert counted["foreign"] == counted["unreadable"] == 0
        assert progress == sorted(progress)
        assert all(0 <= done <= total for done, total in progress)
        assert plan.count("MicroBatchScan") == 1, "the topics are read twice"

    publish(bootstrap, INPUT, halves.second)
    for name, each in pipelines.items():
        each.run_once()
        assert halves.problems(outputs(each)) == {}, name
        for count in ("unique", "duplicate", "expired", "error", "replay", "state_keys"):
            assert each.counts(count)[-1] == pipelines["rebuilt-kept"].counts(count)[-1], (name, count)


def test_a_service_takes_over_what_another_job_has_delivered(
    bootstrap: str, tmp_path: Path, halves: Halves
) -> None:
    """The job has written unique records without stamps, and knows nothing of marks."""
    rules = replace(RULES, remember_first=False)
    name = "rebuilt-taken"
    taken = Pipeline(bootstrap, tmp_path, name, PARTITIONS, topics=(name,), keys=KEYS, rules=rules)
    expected = halves.expected[: halves.cut]
    unique = [record for record, each in zip(halves.first, expected, strict=True) if each.route == "unique"]
    taken.publish(halves.first)
    publish(bootstrap, taken.topic_of(Route.UNIQUE), unique)
    counted, _, _ = rebuilt(taken, foreign=True)
    assert (counted["foreign"], counted["remembered"]) == (len(unique), len(unique))
    taken.publish(halves.second)
    taken.run_once()
    found = outputs(taken)
    delivered_before = Counter(record.partition for record in unique)
    own = [list(records) for _, records in groupby(found["unique"], key=lambda record: record.partition)]
    found["unique"] = [each for part in own for each in part[delivered_before[part[0].partition] :]]
    assert halves.problems(found, halves.cut) == {}


def pipeline(bootstrap: str, folder: Path, name: str) -> Pipeline:
    """A service that reads the input topic, with outputs of its own."""
    return Pipeline(bootstrap, folder, name, PARTITIONS, topics=(INPUT,), keys=KEYS, rules=RULES)


def rebuilt(lost: Pipeline, foreign: bool = False) -> tuple[dict[str, int], list[tuple[int, int]], str]:
    """Rebuild the state of a pipeline in its checkpoint, which is empty.

    What was counted, the progress that was shown, and the plan as Spark executed it.
    """
    progress: list[tuple[int, int]] = []
    plans = [""]

    def on_progress(done: int, total: int) -> None:
        progress.append((done, total))
        plans.extend(str(query._jsq.explainInternal(False)) for query in lost.session().streams.active)

    cluster, settings = Cluster(lost.bootstrap), lost.settings
    topics = [lost.topic_of(route) for route in (Route.UNIQUE, Route.DUPLICATE)]
    (name,) = settings.topics
    found = cluster.topics([name, *(lost.topic_of(route) for route in OUTPUTS)])
    inputs = [(name, number) for number in range(PARTITIONS)]
    ends = cluster.end_offsets(inputs) if foreign else cluster.committed(settings.service, inputs)
    delivered = [(topic, number) for topic in topics for number in range(PARTITIONS)]
    ranges: Mapping[InputPartition, tuple[int, int]] = {
        partition: (0, end) for partition, end in (ends | cluster.end_offsets(delivered)).items()
    }
    pids = own_pids(cluster.id, settings.service, found, [name], found.keys() - {name})
    counted = rebuild_state(
        RecallSettings(
            settings,
            time.time_ns() // 1000,
            tuple(inputs),
            {pid: each.input_topic for pid, each in pids.items()},
            foreign,
        ),
        ranges,
        ends,
        on_progress,
    )
    return counted, progress, plans[-1]


def outputs(each: Pipeline) -> dict[str, list[ConsumerRecord]]:
    """The records of each output topic."""
    return {route.name.lower(): each.read(route) for route in OUTPUTS}
