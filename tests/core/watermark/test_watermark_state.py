"""The low watermark within a service: news of runs, the same in every shard, and the clock that uses it."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import pytest

from replayfilter.core.clock.clocks import Clock
from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.frames import Frame, cut_frames
from replayfilter.core.routing import Route, RoutedBatch, route_batch
from replayfilter.core.rules import Rules
from replayfilter.core.state import ShardState
from replayfilter.core.watermark.watermark_state import Observation, WatermarkRules, WatermarkState, observe
from tests.support.core_run import MemoryStore

S = 10**6


def observation(low: int = UNKNOWN, **origins: int) -> Observation:
    return Observation(tuple(origins), np.array(list(origins.values()), np.int64), low)


def frames_of(partition: int, first: int, ts: list[int], said: Observation, shards: int = 2) -> list[Frame]:
    """A run of records with ids of their own; expiry keys in seconds."""
    rows = np.arange(len(ts), dtype=np.uint32)
    digests = np.array([[first, first + row] for row in range(len(ts))], np.uint64).reshape(-1, 2)
    cut = cut_frames(
        "t", partition, first, stamps=None, expiry=np.array(ts, np.int64), digests=digests, rows=rows,
        future=None, shards=shards, observation=said,
    )  # fmt: skip
    return [Frame.from_bytes(frame.to_bytes()) for frame in cut.frames]


def decide(
    frames: Iterable[Frame], rules: Rules, state: ShardState, store: MemoryStore | None = None
) -> RoutedBatch:
    kept = MemoryStore() if store is None else store
    return route_batch(frames, rules, ShardState.from_bytes(state.to_bytes()), kept, 0)


def rules_of(watermark: WatermarkRules, clock: Clock = Clock.WATERMARK) -> Rules:
    return Rules(replay=False, clock=clock, period=10, span=1, unit="s", watermark=watermark)


def test_a_batch_is_decided_by_the_watermark_before_it() -> None:
    rules = rules_of(WatermarkRules(("a", "b")))
    state = ShardState.empty()
    store = MemoryStore()
    first = decide(frames_of(0, 0, [5, 100, 3], observation(a=100 * S, b=90 * S), 1), rules, state, store)
    assert first.low == UNKNOWN
    assert first.state.watermark is not None
    assert first.state.watermark.low == 90 * S
    second = decide(frames_of(0, 3, [80, 81], observation(a=300 * S), 1), rules, first.state, store)
    assert second.low == 90 * S, "what this batch brings doesn't count yet"
    assert second.routes[0].codes.tolist() == [Route.EXPIRED, Route.UNIQUE], "90 - 80 >= 10, 90 - 81 is not"
    assert second.state.latest == 90


def test_the_largest_expiry_key_moves_nothing_with_this_clock() -> None:
    rules = rules_of(WatermarkRules(("a",)))
    batch = decide(
        frames_of(0, 0, [10**6, 1], Observation((), np.zeros(0, np.int64))), rules, ShardState.empty()
    )
    assert all(code == Route.UNIQUE for routes in batch.routes for code in routes.codes)
    assert batch.state.latest == UNKNOWN


@pytest.mark.parametrize("seed", range(20))
def test_every_shard_knows_the_same_and_a_retry_answers_the_same(seed: int) -> None:
    rng = random.Random(seed)
    hosts = [f"h{number}" for number in range(rng.randint(1, 30))]
    share = rng.choice(["1", "0.9", "0.5"])
    rules = rules_of(WatermarkRules(tuple(hosts), share))
    states, stores, lows = [ShardState.empty()] * 2, [MemoryStore(), MemoryStore()], []
    seen = dict.fromkeys(hosts, UNKNOWN)
    for number in range(12):
        runs = []
        for partition in range(3):
            chosen = rng.sample(hosts, rng.randint(0, len(hosts)))
            origins = {host: (rng.randint(0, 50) + number * 10) * S for host in chosen}
            for host, time in origins.items():
                seen[host] = max(seen[host], time)
            runs.append(frames_of(partition, number * 10, [1, 2], observation(stranger=10**15, **origins)))
        shards = [[run[shard] for run in runs] for shard in range(2)]
        tries = []
        for _ in range(2):
            copies = [MemoryStore(store) for store in stores]
            parts = zip(shards, states, copies, strict=True)
            tries.append([decide(rng.sample(run, 3), rules, state, store) for run, state, store in parts])
        (batches, again), stores = tries, copies
        assert [each.state.to_bytes() for each in batches] == [each.state.to_bytes() for each in again]
        states = [batch.state for batch in batches]
        assert len({batch.low for batch in batches}) == 1
        tides = [state.watermark for state in states if state.watermark is not None]
        assert tides[0].low == tides[1].low
        assert dict(tides[0].progress) == dict(tides[1].progress)
        assert {h: t for h, t in seen.items() if t != UNKNOWN} == dict(tides[0].progress)
        lows.append(tides[0].low)
        exact = sorted(seen.values())[{"1": 0, "0.9": len(hosts) // 10, "0.5": len(hosts) // 2}[share]]
        assert tides[0].low == max(exact, *lows)
    assert lows == sorted(lows)


def test_without_a_roster_it_is_the_smallest_that_the_input_partitions_brought() -> None:
    rules, watermark = WatermarkRules(None, partitions={"t": 2, "u": 1}), WatermarkState()
    none: list[tuple[tuple[str, int], Observation]] = []
    watermark = watermark.after([(("t", 0), observation(50)), (("t", 1), observation(70))], rules)
    assert watermark.low == UNKNOWN, "u has brought none"
    watermark = watermark.after([(("u", 0), observation(60))], rules)
    assert watermark.low == 50
    watermark = watermark.after(
        [(("t", 0), observation(40)), (("t", 0), observation(90)), (("u", 0), observation())], rules
    )
    assert watermark.low == 60
    assert watermark.after(none, rules) == watermark
    restored = WatermarkState.restore(watermark.columns(), watermark.meta())
    assert (restored.low, dict(restored.lows)) == (60, dict(watermark.lows))


def test_a_roster_that_changes_never_makes_it_go_back() -> None:
    watermark = WatermarkState().after([(("t", 0), observation(a=5, b=9))], WatermarkRules(("a", "b")))
    watermark = watermark.after([(("t", 0), observation(new=1))], WatermarkRules(("a", "b", "new")))
    assert watermark.low == 5
    watermark = watermark.after([(("t", 0), observation(new=20))], WatermarkRules(("b", "new")))
    assert (watermark.low, dict(watermark.progress)) == (9, {"b": 9, "new": 20})


def test_origins_are_texts_bytes_or_whole_numbers() -> None:
    said = observe(["a", b"a", 7, True, None, "", 1.5], np.arange(7), 3)
    assert (said.origins, said.times.tolist(), said.carried) == (("a", "7"), [1, 2], 3)


def test_without_a_watermark_state_and_frames_are_as_before() -> None:
    assert ShardState.from_bytes(ShardState.empty().to_bytes()).watermark is None
    rules = Rules(replay=False, unit="s", period=10, span=1)
    cut = cut_frames(
        "t", 0, 0, stamps=None, expiry=np.array([1]), digests=np.array([[1, 2]], np.uint64),
        rows=np.zeros(1, np.uint32), future=None, shards=1,
    )  # fmt: skip
    assert b"news" not in cut.frames[0].to_bytes()
    assert decide(cut.frames, rules, ShardState.empty()).state.watermark is None


def test_an_idle_origin_counts_out_until_it_goes_ahead() -> None:
    both, none = WatermarkRules(("a", "b", "c")), WatermarkRules(("a", "b", "c"), idle=("c", "b"))
    watermark = WatermarkState().after([(("t", 0), observation(a=50, b=20))], both)
    assert watermark.low == UNKNOWN, "c was never heard of"
    watermark = watermark.after([(("t", 0), observation(a=60))], none)
    assert (watermark.low, watermark.is_idle("b"), watermark.is_idle("c")) == (60, True, True)
    watermark = WatermarkState.restore(watermark.columns(), watermark.meta())
    watermark = watermark.after([(("t", 0), observation(a=70, b=20))], none)
    assert (watermark.low, watermark.is_idle("b")) == (70, True), "what it had said before is nothing new"
    watermark = watermark.after([(("t", 0), observation(a=90, b=30))], none)
    assert (watermark.low, watermark.is_idle("b")) == (70, False), (
        "it has returned, and never does it go back"
    )
    watermark = watermark.after([(("t", 0), observation(a=95, b=80))], none)
    assert (watermark.low, watermark.is_idle("b"), watermark.is_idle("c")) == (80, False, True)
    watermark = watermark.after([(("t", 0), observation())], both).after(
        [(("t", 0), observation(a=99))], none
    )
    assert (watermark.low, watermark.is_idle("b")) == (99, True), "declared anew, it counts out again"


def test_silence_makes_none_idle() -> None:
    watermark = WatermarkState().after([(("t", 0), observation(a=1, b=1))], WatermarkRules(("a", "b")))
    for time in range(2, 50):
        watermark = watermark.after([(("t", 0), observation(a=time))], WatermarkRules(("a", "b")))
    assert watermark.low == 1


def test_when_all_are_idle_it_stays() -> None:
    watermark = WatermarkState().after([(("t", 0), observation(a=1))], WatermarkRules(("a",)))
    assert (
        watermark.after(
            [(("t", 0), observation(stranger=9))], WatermarkRules(("a",), idle=("a", "nobody"))
        ).low
        == 1
    )


def test_a_state_of_before_there_were_idle_ones_can_be_read() -> None:
    watermark = WatermarkState(3, {"a": 3})
    meta = watermark.meta()
    del meta["idle"]
    assert WatermarkState.restore(watermark.columns(), meta) == watermark
