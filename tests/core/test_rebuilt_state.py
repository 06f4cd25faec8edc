"""A rebuilt state against the state that nobody has lost, on random streams.

A stream is cut between two batches. What was delivered before the cut is all that the rebuild gets, in
random parts. It must remember the same, and decide the rest of the stream as the run that has seen it all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import NamedTuple

import numpy as np
import pytest

from replayfilter.core import buckets, rebuilt_state
from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.input_partition import InputPartition, partition_hash
from replayfilter.core.key_run import INDEX, OFFSET
from replayfilter.core.rebuilt_state import Delivered, Keys, RebuiltShard, highest_marks
from replayfilter.core.replay.marks import Marks
from replayfilter.core.routing import Route
from replayfilter.core.rules import Rules
from tests.support.core_run import CoreRun, MemoryStore
from tests.support.reference import Position, Record
from tests.support.streams import Batch, Stream, make_stream

PROFILES = ("plain", "crowded", "replays", "edges", "extremes", "times", "system", "none", "bare", "ordered")
SEEDS = 25
FOREVER_US = 2**60
PASSED = (Route.UNIQUE, Route.DUPLICATE, Route.CONFLICT)


class Known(NamedTuple):
    """What the outputs say of records: their routes, and which record a duplicate repeats."""

    routes: dict[Position, Route]
    firsts: dict[Position, Position]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_rebuilt_state_decides_as_the_lost_one(profile: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        stream = rebuildable(make_stream(seed, profile))
        random = Random(f"rebuild {seed}")
        cut = random.randrange(len(stream.batches) + 1)
        kept, known = CoreRun.of(stream), Known({}, {})
        for batch in stream.batches[:cut]:
            known.routes.update(kept.decide(batch, random))
            known.firsts.update(kept.firsts)
        rebuilt = rebuilt_run(stream, cut, known, random)
        compare_states(kept, rebuilt, f"{profile} {seed}, {cut} batches")
        for batch in stream.batches[cut:]:
            expected = kept.decide(batch, random)
            found = rebuilt.decide(batch, random)
            if stream.rules.refresh:  # a conflict that has refreshed its key doesn't say what it differs from
                found, expected = map(without_conflicts, (found, expected))
            assert found == expected, (profile, seed, cut)
            assert rebuilt.firsts == kept.firsts, (profile, seed, cut)
            seen.update(route.name for route in expected.values())
        seen["keys"] += sum(state.keys for state in rebuilt.states)
    assert seen["UNIQUE"] > SEEDS
    assert profile == "bare" or seen["DUPLICATE"] > SEEDS / 2
    assert seen["REPLAY"] > SEEDS / 4


def test_small_runs_and_joined_marks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuilt_state, "MAX_RUN_KEYS", 2)
    monkeypatch.setattr(buckets, "MAX_RUN_KEYS", 3)
    monkeypatch.setattr(rebuilt_state, "JOINED_MARKS", 2)
    test_a_rebuilt_state_decides_as_the_lost_one("crowded")


@pytest.mark.parametrize(("period", "span"), [(3, 1), (90, 30), (17, 4)])
def test_with_another_period_the_keys_that_count_are_remembered(period: int, span: int) -> None:
    """A longer period finds what is within it, also what the service had forgotten."""
    rows = [(key, 100 - 10 * key) for key in range(12)]  # each key is 10 older than the one before
    rules = Rules(period=period, span=span)
    shard, store = rebuilt_shard(rules, rows, latest=100)
    run = CoreRun(rules, None, 1, "honest")
    run.states, run.stores = [shard.state()], [store]
    again = [Record(Position("t", 0, key), None, None, key, 100) for key, _ in rows]
    routes = run.decide(Batch(BatchFacts.at(0), tuple(again)), Random(1))
    for key, expiry in rows:
        expected = Route.DUPLICATE if 100 - expiry < period else Route.UNIQUE
        assert routes[Position("t", 0, key)] == expected, key


def test_a_source_in_two_input_partitions_is_spread_and_has_the_higher_mark() -> None:
    parts = [marks_of([(7, 1, 5, ("t", 0)), (7, 2, 9, ("t", 0))]), marks_of([(7, 1, 4, ("t", 1))])]
    for order in (parts, parts[::-1]):
        found = highest_marks(order)
        assert found.as_dict() == {(7, 1): 5, (7, 2): 9}
        assert found.spread.tolist() == [True, False]
    assert highest_marks([highest_marks(parts), *parts]).spread.tolist() == [True, False]


def test_nothing_delivered_is_an_empty_state() -> None:
    rules = Rules()
    shard, store = rebuilt_shard(rules, [], latest=UNKNOWN)
    state = shard.state()
    assert (state.keys, state.marks.sources, state.latest, dict(store)) == (0, 0, UNKNOWN, {})


def without_conflicts(routes: dict[Position, Route]) -> dict[Position, Route]:
    return {at: Route.DUPLICATE if route == Route.CONFLICT else route for at, route in routes.items()}


def rebuildable(stream: Stream) -> Stream:
    """The stream without what a rebuild can't know: forgotten marks, and the ages of null values."""
    nulls_have_ages = stream.rules.clock.has_latest_point
    batches = tuple(
        replace(
            batch,
            changed={},
            facts=batch.facts._replace(believed_us=stream.batches[0].facts.time_us + number),
            records=tuple(record for record in batch.records if not (record.null and nulls_have_ages)),
        )
        for number, batch in enumerate(stream.batches)
    )
    return replace(stream, batches=batches, rules=replace(stream.rules, mark_ttl_us=FOREVER_US))


def rebuilt_run(stream: Stream, cut: int, known: Known, random: Random) -> CoreRun:
    """A run whose shards, of another number, are rebuilt from the records of the first batches."""
    rules, shards = stream.rules, random.randint(1, 4)
    run = CoreRun(rules, stream.max_future_us, shards, stream.digest_kind)
    before = stream.batches[:cut]
    facts = before[-1].facts if before else None
    inputs = sorted({record.position[:2] for batch in before for record in batch.records})
    time_us = facts.believed_us if facts is not None else 0
    rebuilt = [RebuiltShard(rules, store, time_us, inputs) for store in run.stores]
    records = [record for batch in before for record in batch.records]
    random.shuffle(records)
    while records:
        size = random.randint(1, 9)
        part, records = records[:size], records[size:]
        for number, shard in enumerate(rebuilt):
            shard.add(Delivered.from_bytes(delivered(run, part, known, number, inputs).to_bytes()))
    if cut:
        run.states = [shard.state() for shard in rebuilt]
    return run


def delivered(
    run: CoreRun,
    records: list[Record],
    known: Known,
    number: int,
    inputs: list[InputPartition],
) -> Delivered:
    """What a shard must know of these records."""
    rules, routes = run.rules, known.routes
    named = rules.replay
    marks = [
        (record.source.pid, record.source.partition, record.stamped or 0, record.position[:2])
        for record in records
        if named and record.source is not None and not record.broken
    ]
    passed = [record for record in records if routes[record.position] in PASSED]
    latest = max((record.expiry for record in passed if not record.null), default=UNKNOWN)
    remembered = [
        record
        for record in passed
        if rules.dedup and (rules.refresh or routes[record.position] == Route.UNIQUE)
        if not (record.null and rules.on_null.value == "unique")
        if shard_of(run, record) == number
    ]
    digests = np.array([run._digest(record) for record in remembered], np.uint64).reshape(-1, 2)
    firsts = [known.firsts.get(record.position, record.position) for record in remembered]
    kept = run._kept(remembered)
    if rules.remember_first:
        kept[INDEX] = np.array([inputs.index(first[:2]) for first in firsts], np.uint32)
        kept[OFFSET] = np.array([first.offset for first in firsts], np.int64)
    if rules.content:
        kept[rules.content][[routes[record.position] == Route.CONFLICT for record in remembered]] = 0
    expiry = np.array([record.expiry for record in remembered], np.int64)
    keys = Keys(digests[:, 0], digests[:, 1], expiry, kept)
    return Delivered(keys, latest if rules.dedup else UNKNOWN, marks_of(marks))


def shard_of(run: CoreRun, record: Record) -> int:
    if run.rules.shards_by_partition:
        return (ord(record.position.topic) + record.position.partition) % len(run.states)
    return run._digest(record)[1] % len(run.states)


def marks_of(rows: Iterable[tuple[int, int, int, InputPartition]]) -> Marks:
    listed = list(rows)
    marks = Marks.zeros(len(listed))
    for row, (pid, partition, mark, at) in enumerate(listed):
        marks.pid[row], marks.partition[row], marks.mark[row] = pid, partition, mark
        marks.input_hash[row] = partition_hash(*at)
    return marks


def compare_states(kept: CoreRun, rebuilt: CoreRun, where: str) -> None:
    if kept.rules.dedup:
        assert rebuilt.remembered() == kept.remembered(), where
    expected = kept.states[0].marks.all(kept.stores[0])
    for state, store in zip(rebuilt.states, rebuilt.stores, strict=True):
        found = state.marks.all(store)
        assert found.as_dict() == expected.as_dict(), where
        assert found.spread.tolist() == expected.spread.tolist(), where
        assert state.marks.sources == len(expected.mark), where
        names = [entry.name for entries in (*state.runs.values(), state.marks.runs) for entry in entries]
        assert sorted(names) == sorted(store), where
    # With period 0 every record is expired, whatever the latest point is.
    if kept.rules.dedup and kept.rules.clock.has_latest_point and kept.rules.period:
        assert {state.latest for state in rebuilt.states} == {kept.states[0].latest}, where


def rebuilt_shard(rules: Rules, rows: list[tuple[int, int]], latest: int) -> tuple[RebuiltShard, MemoryStore]:
    run = CoreRun(rules, None, 1, "honest")
    shard = RebuiltShard(rules, run.stores[0], 0)
    records = [Record(Position("t", 0, key), None, None, key, expiry) for key, expiry in rows]
    known = Known({record.position: Route.UNIQUE for record in records}, {})
    shard.add(replace(delivered(run, records, known, 0, [("t", 0)]), latest=latest))
    return shard, run.stores[0]
