"""The clocks without time, records without one, and the first records of duplicates, in the real pipeline."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from replayfilter.core.clock.clocks import Clock
from replayfilter.core.routing import Route
from replayfilter.core.rules import Match, OnNull, Rules
from replayfilter.core.stamp import Stamp
from replayfilter.demo.stream import Record
from replayfilter.formats import KeySpec
from tests.support.pipelines import Pipeline, order, record

pytestmark = pytest.mark.spark

HOUR = 3_600_000
NOW = 1_000 * HOUR  # event time: long ago, so that no record is in the future


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


def test_a_duplicate_starts_the_period_again(bootstrap: str, tmp_path: Path) -> None:
    """Copies of a key with a period of an hour, before and after the setting is turned on."""
    rules = Rules(period=HOUR, span=HOUR // 12, remember_first=True)
    pipeline = Pipeline(bootstrap, tmp_path, "refresh", partitions=1, rules=rules)
    minutes = (0, 50, 65, 110, 155, 200, 195, 255, 316)
    copies = [record(order(7, NOW + each * HOUR // 60)) for each in minutes]
    pipeline.publish(copies[:2])
    pipeline.run_once()
    pipeline.settings = replace(pipeline.settings, rules=replace(rules, refresh=True))
    pipeline.publish(copies[2:5])
    pipeline.run_once()
    pipeline.publish(copies[5:])
    pipeline.run_once()
    assert pipeline.values(Route.UNIQUE) == [copies[at].value for at in (0, 2, 8)]
    duplicates = pipeline.read(Route.DUPLICATE)
    assert [each.value for each in duplicates] == [copies[at].value for at in (1, 3, 4, 5, 6, 7)]
    first = [dict(each.headers)["rf-first"] for each in duplicates]
    assert first == [b"refresh/0/0", *[b"refresh/0/2"] * 5]


@pytest.mark.parametrize("on_null", ["unique", "key"])
def test_tombstones(bootstrap: str, tmp_path: Path, on_null: str) -> None:
    """They are no duplicates of values, may be replays, never expire, and are remembered after a restart."""
    keys = KeySpec("json", ("@key",), "ts", "ms", on_null=on_null)
    rules = Rules(period=HOUR, span=HOUR // 12, on_null=OnNull(on_null))
    name = f"tombstones-{on_null}"
    pipeline = Pipeline(
        bootstrap, tmp_path, name, partitions=1, keys=keys, rules=rules, stamp="header", output_stamp="none"
    )

    def stamp(offset: int) -> bytes:
        return Stamp(7, 0, offset).to_bytes()

    def tombstone(key: bytes | None, offset: int) -> Record:
        return record(None, key, 0, [("rf-stamp", stamp(offset))])

    pipeline.publish([
        tombstone(b"first", 0),  # before any record with a time
        record(order(1, NOW), b"a", 0, [("rf-stamp", stamp(1))]),
        tombstone(b"a", 2),
        tombstone(b"a", 2),  # replay
        record(b"", b"a", 0, [("rf-stamp", stamp(3))]),
    ])  # fmt: skip
    pipeline.run_once()
    pipeline.publish([
        tombstone(b"a", 4), tombstone(None, 5), record(order(1, NOW + 2 * HOUR), b"b", 0), tombstone(b"a", 6)
    ])  # fmt: skip
    pipeline.run_once()
    unique, duplicate, error = (
        [(row.key, row.value is None) for row in pipeline.read(route)]
        for route in (Route.UNIQUE, Route.DUPLICATE, Route.ERROR)
    )
    passed = [(b"first", True), (b"a", False), (b"a", True)]
    if on_null == "unique":
        assert unique == [*passed, (b"a", True), (None, True), (b"b", False), (b"a", True)]
        assert (duplicate, error) == ([], [(b"a", False)])
    else:
        assert unique == [*passed, (b"b", False), (b"a", True)]
        assert (duplicate, error) == ([(b"a", True)], [(b"a", False), (None, True)])
    assert pipeline.values(Route.EXPIRED) == []
    assert sum(pipeline.counts("replay")) == 1
