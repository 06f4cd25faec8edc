"""Duplicates with other content, in the real pipeline: header, count, and a topic of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from replayfilter.core.digest import content_name
from replayfilter.core.routing import Route
from replayfilter.core.rules import Rules
from replayfilter.kafka.admin import Cluster
from replayfilter.spark.partitioning import output_pids
from replayfilter.spark.pipeline_settings import Output
from tests.support.pipelines import Pipeline, order, record

pytestmark = pytest.mark.spark

HOUR = 3_600_000
NOW = 1_000 * HOUR
FIELDS = ("amount", "note")
PLAIN = Rules(period=HOUR, span=HOUR // 12, remember_first=True)
RULES = replace(PLAIN, content=content_name(FIELDS))


def conflicts(pipeline: Pipeline, route: Route) -> list[tuple[bytes | None, bytes | None]]:
    """By duplicate what it repeats, and what was compared if it is a conflict."""
    found = [dict(each.headers) for each in pipeline.read(route)]
    return [(headers.get("rf-first"), headers.get("rf-conflict")) for headers in found]


def test_conflicts_are_found_once_it_is_turned_on(bootstrap: str, tmp_path: Path) -> None:
    """The state was written without digests; restarts lie between all steps."""
    pipeline = Pipeline(bootstrap, tmp_path, "conflict", partitions=1, rules=PLAIN)
    pipeline.publish([record(order(1, NOW, amount=5)), record(order(1, NOW, amount=6))])
    pipeline.run_once()
    keys = replace(pipeline.settings.keys, content=FIELDS)
    pipeline.settings = replace(pipeline.settings, rules=RULES, keys=keys)
    pipeline.publish(
        [
            record(order(1, NOW, amount=7)),  # what the first record said is not known
            record(order(2, NOW, amount=5)),
            record(order(2, NOW, amount=5.0, sent=1)),
            record(order(2, NOW, amount=6)),
        ]
    )
    pipeline.run_once()
    pipeline.publish([record(order(2, NOW, amount=5, note=None)), record(order(2, NOW, amount=5))])
    pipeline.run_once()
    compared = b"amount, note"
    assert conflicts(pipeline, Route.DUPLICATE) == [
        (b"conflict/0/0", None), (b"conflict/0/0", None), (b"conflict/0/3", None),
        (b"conflict/0/3", compared), (b"conflict/0/3", compared), (b"conflict/0/3", None),
    ]  # fmt: skip
    assert (pipeline.counts("conflict"), pipeline.counts("duplicate")) == ([0, 1, 1], [1, 3, 2])
    assert conflicts(pipeline, Route.UNIQUE) == [(None, None)] * 2


def test_conflicts_in_a_topic_of_their_own(bootstrap: str, tmp_path: Path) -> None:
    """In the same transactions: a batch that is delivered again is not delivered twice."""
    pipeline = Pipeline(bootstrap, tmp_path, "apart", partitions=1, rules=RULES)
    topic, cluster = pipeline.topic_of(Route.CONFLICT), Cluster(bootstrap)
    cluster.create({topic: 1})
    ids = {name: found.id for name, found in cluster.topics(["apart"]).items()}
    pids = output_pids(cluster.id, "apart", ids, cluster.topics([topic]))
    pipeline.settings = replace(
        pipeline.settings,
        keys=replace(pipeline.settings.keys, content=("@value",)),
        outputs={**pipeline.settings.outputs, Route.CONFLICT: Output(topic, 1)},
        output_pids={**pipeline.settings.output_pids, **pids},
    )
    values = [order(1, NOW, amount=5), order(1, NOW, amount=6), order(1, NOW, amount=5)]
    pipeline.publish([record(value) for value in values])
    pipeline.run_once()
    pipeline.uncommit(0)
    pipeline.run_once()
    assert pipeline.values(Route.UNIQUE) == [values[0]]
    assert pipeline.values(Route.CONFLICT) == [values[1]]
    assert pipeline.values(Route.DUPLICATE) == [values[2]]
    assert conflicts(pipeline, Route.CONFLICT) == [(b"apart/0/0", b"@value")]
    assert pipeline.counts("skipped")[-1] == 3
