"""The clocks without time, and the first records of duplicates, through the real pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replayfilter.core.clock.clocks import Clock
from replayfilter.core.routing import Route
from replayfilter.core.rules import Match, Rules
from replayfilter.formats import KeySpec
from tests.support.pipelines import Pipeline, record

pytestmark = pytest.mark.spark


def event(id_: int, key: object) -> bytes:
    return json.dumps({"id": id_, "at": key}).encode()


def test_ordered_with_a_jump_across_a_restart(bootstrap: str, tmp_path: Path) -> None:
    rules = Rules(clock=Clock.ORDERED, unit="integer", period=10, span=1, max_jump=100)
    keys = KeySpec("json", ("id",), "at", "integer")
    pipeline = Pipeline(bootstrap, tmp_path, "ordered", partitions=1, rules=rules, keys=keys)
    first = [event(1, 1000), event(2, 999_999), event(3, 1005), event(1, 1001)]
    pipeline.publish([record(value) for value in first])
    pipeline.run_once()
    second = [event(4, 995), event(5, 996), event(3, 1006), event(6, 1106), event(7, 1206), event(8, 1307)]
    pipeline.publish([record(value) for value in second])
    pipeline.run_once()
    assert pipeline.values(Route.UNIQUE) == [first[0], first[2], second[1], second[3], second[4]]
    assert pipeline.values(Route.DUPLICATE) == [first[3], second[2]]
    assert pipeline.values(Route.EXPIRED) == [second[0]]
    assert ("rf-late-by", b"10") in pipeline.read(Route.EXPIRED)[0].headers, "in units of the key"
    jumped = pipeline.read(Route.ERROR)
    assert [found.value for found in jumped] == [first[1], second[5]]
    assert {("rf-reason", b"jump"), ("rf-stage", b"route")} <= set(jumped[0].headers)


def test_categorical_across_a_restart(bootstrap: str, tmp_path: Path) -> None:
    rules = Rules(clock=Clock.CATEGORICAL, unit="integer", period=1, match=Match.BUCKET)
    keys = KeySpec("json", ("id",), "at", "category")
    pipeline = Pipeline(bootstrap, tmp_path, "categorical", partitions=1, rules=rules, keys=keys)
    first = [event(1, "a"), event(1, "a"), event(1, "b"), event(2, "a")]
    pipeline.publish([record(value) for value in first])
    pipeline.run_once()
    second = [event(2, "a"), event(3, "c"), event(4, "a"), event(1, "b"), event(5, "d"), event(6, "b")]
    pipeline.publish([record(value) for value in second])
    pipeline.run_once()
    assert pipeline.values(Route.UNIQUE) == [first[0], first[2], first[3], second[1], second[4]]
    assert pipeline.values(Route.DUPLICATE) == [first[1], second[0], second[3]]
    assert pipeline.values(Route.EXPIRED) == [second[2], second[5]]
    assert all(len(row.headers) == 3 for row in pipeline.read(Route.EXPIRED)), "where they were, no lateness"
    # By shard: "a" in both and "b" in one, then "c" and "d".
    assert pipeline.counts("state_buckets") == [3, 2]


def test_a_duplicate_names_its_first_record(bootstrap: str, tmp_path: Path) -> None:
    rules = Rules(period=3_600_000, span=300_000, remember_first=True)
    keys = KeySpec("json", ("id",), "at", "ms")
    pipeline = Pipeline(bootstrap, tmp_path, "first", partitions=2, rules=rules, keys=keys)
    pipeline.publish([record(event(7, 5)), record(event(8, 5)), record(event(8, 6), partition=1)])
    pipeline.run_once()
    pipeline.publish([record(event(7, 9), partition=1)])
    pipeline.run_once()
    found = [dict(duplicate.headers)["rf-first"] for duplicate in pipeline.read(Route.DUPLICATE)]
    assert found == [b"first/0/1", b"first/0/0"]
