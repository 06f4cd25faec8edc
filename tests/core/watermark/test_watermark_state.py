"""The low watermark in a service: observations, equal state in every shard, and the clock that uses it."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import pytest

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock.clocks import Clock
from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.frames import ChunkId, Frame, cut_frames
from replayfilter.core.routing import Route, RoutedBatch, route_batch
from replayfilter.core.rules import Rules
from replayfilter.core.state import ShardState
from replayfilter.core.watermark.carried import Carried
from replayfilter.core.watermark.watermark_state import Observation, WatermarkRules, WatermarkState, observe
from tests.support.core_run import MemoryStore
from tests.support.observations import observation

S = 10**6


def frames_of(
    partition: int, first: int, ts: list[int], observed: Observation, shards: int = 2
) -> list[Frame]:
    """The frames of a chunk of records with different keys; expiry keys in seconds."""
    rows = np.arange(len(ts), dtype=np.uint32)
    digests = np.array([[first, first + row] for row in range(len(ts))], np.uint64).reshape(-1, 2)
    cut = cut_frames(
        [ChunkId("t", partition, first)], np.array([len(ts)]), stamps=None, expiry=np.array(ts, np.int64),
        digests=digests, rows=rows, future=None, shards=shards, observations={0: observed},
    )  # fmt: skip
    return [Frame.from_bytes(frame.to_bytes()) for frame in cut.frames]


def decide(
    frames: Iterable[Frame], rules: Rules, state: ShardState, store: MemoryStore | None = None
) -> RoutedBatch:
    kept = MemoryStore() if store is None else store
    return route_batch(frames, rules, ShardState.from_bytes(state.to_bytes()), kept, BatchFacts.at(0))


def rules_of(watermark: WatermarkRules, clock: Clock = Clock.WATERMARK) -> Rules:
    return Rules(replay=False, clock=clock, period=10, span=1, unit="s", watermark=watermark)


def test_a_batch_is_decided_with_the_watermark_before_it() -> None:
    rules = rules_of(WatermarkRules(("a", "b")))
    state = ShardState.empty()
    store = MemoryStore()
    first = decide(frames_of(0, 0, [5, 100, 3], observation(a=100 * S, b=90 * S), 1), rules, state, store)
    assert first.low == UNKNOWN
    assert first.state.watermark is not None
    assert first.state.watermark.low == 90 * S
    second = decide(frames_of(0, 3, [80, 81], observation(a=300 * S), 1), rules, first.state, store)
    assert second.low == 90 * S, "observations of this batch don't count yet"
    assert second.routes[0].codes.tolist() == [Route.EXPIRED, Route.UNIQUE], "90 - 80 >= 10, 90 - 81 is not"
    assert second.state.latest == 90


def test_with_this_clock_expiry_keys_do_not_move_the_latest_point() -> None:
    rules = rules_of(WatermarkRules(("a",)))
    batch = decide(
        frames_of(0, 0, [10**6, 1], Observation((), np.zeros(0, np.int64))), rules, ShardState.empty()
    )
    assert all(code == Route.UNIQUE for routes in batch.routes for code in routes.codes)
    assert batch.state.latest == UNKNOWN


@pytest.mark.parametrize("seed", range(20))
def test_every_shard_has_the_same_watermark_and_so_has_a_second_attempt(seed: int) -> None:
    rng = random.Random(seed)
    hosts = [f"h{number}" for number in range(rng.randint(1, 30))]
    share = rng.choice(["1", "0.9", "0.5"])
    rules = rules_of(WatermarkRules(tuple(hosts), share))
    states, stores, lows = [ShardState.empty()] * 2, [MemoryStore(), MemoryStore()], []
    seen = dict.fromkeys(hosts, UNKNOWN)
    for number in range(12):
        chunks = []
        for partition in range(3):
            chosen = rng.sample(hosts, rng.randint(0, len(hosts)))
            origins = {host: (rng.randint(0, 50) + number * 10) * S for host in chosen}
            for host, time in origins.items():
                seen[host] = max(seen[host], time)
            chunks.append(frames_of(partition, number * 10, [1, 2], observation(stranger=10**15, **origins)))
        shards = [[chunk[shard] for chunk in chunks] for shard in range(2)]
        attempts = []
        for _ in range(2):
            copies = [MemoryStore(store) for store in stores]
            parts = zip(shards, states, copies, strict=True)
            attempts.append([decide(rng.sample(own, 3), rules, state, store) for own, state, store in parts])
        (batches, again), stores = attempts, copies
        assert [each.state.to_bytes() for each in batches] == [each.state.to_bytes() for each in again]
        states = [batch.state for batch in batches]
        assert len({batch.low for batch in batches}) == 1
        watermarks = [state.watermark for state in states if state.watermark is not None]
        assert watermarks[0].low == watermarks[1].low
        assert dict(watermarks[0].progress) == dict(watermarks[1].progress)
        assert {h: t for h, t in seen.items() if t != UNKNOWN} == dict(watermarks[0].progress)
        lows.append(watermarks[0].low)
        exact = sorted(seen.values())[{"1": 0, "0.9": len(hosts) // 10, "0.5": len(hosts) // 2}[share]]
        assert watermarks[0].low == max(exact, *lows)
    assert lows == sorted(lows)


def test_without_a_roster_it_is_the_smallest_that_input_partitions_carry() -> None:
    rules, watermark = WatermarkRules(None, partitions={"t": 2, "u": 1}), WatermarkState()
    watermark = watermark.after([(("t", 0), observation(50)), (("t", 1), observation(70))], rules, 0)
    assert watermark.low == UNKNOWN, "u has carried none"
    watermark = watermark.after([(("u", 0), observation(60))], rules, 0)
    assert watermark.low == 50
    watermark = watermark.after(
        [(("t", 0), observation(40)), (("t", 0), observation(90)), (("u", 0), observation())], rules, 0
    )
    assert watermark.low == 60
    assert watermark.after([], rules, 0) == watermark
    restored = WatermarkState.restore(watermark.columns(), watermark.meta())
    assert restored == watermark
    assert restored.lows == {("t", 0): 90, ("t", 1): 70, ("u", 0): 60}


def test_watermarks_that_a_server_tells_count_in_every_input_partition() -> None:
    rules, watermark = WatermarkRules(None, partitions={"t": 2, "u": 1}), WatermarkState()
    named = Observation((), np.zeros(0, np.int64), (Carried(0, "a", 50), Carried(1, "undeclared", 10)))
    watermark = watermark.after([(("t", 0), named)], rules, 0, [("a", 60), ("b", 70)])
    assert watermark.lows == {("t", 0): 10, ("t", 1): 60, ("u", 0): 60}
    assert watermark.low == 10, "of that service only its records say something"
    later = Observation((), np.zeros(0, np.int64), (Carried(0, "undeclared", 65),))
    watermark = watermark.after([(("t", 0), later)], rules, 0, [("a", 60), ("b", 70)])
    assert watermark.low == 60
    watermark = watermark.after([], rules, 0, [("a", 55), ("b", 70)])
    assert watermark.low == 60, "it never goes back"
    assert watermark.after([], rules, 0, [("a", 90), ("b", 80)]).low == 65
    counted = WatermarkState().after([], WatermarkRules(("x",)), 0, [("a", 90)])
    assert counted == WatermarkState(), "a roster knows better"


def test_an_empty_frame_moves_the_watermark_of_its_shard() -> None:
    rules = rules_of(WatermarkRules(None, partitions={"t": 1}))
    frame = Frame.from_bytes(Frame.empty().to_bytes())
    facts = BatchFacts(0, 0, True, (("a", 7 * S),))
    found = route_batch([frame], rules, ShardState.empty(), MemoryStore(), facts)
    assert (found.routes, found.low) == ([], UNKNOWN)
    assert found.state.watermark is not None
    assert found.state.watermark.low == 7 * S


def test_it_does_not_go_back_when_the_roster_changes() -> None:
    watermark = WatermarkState().after([(("t", 0), observation(a=5, b=9))], WatermarkRules(("a", "b")), 0)
    watermark = watermark.after([(("t", 0), observation(new=1))], WatermarkRules(("a", "b", "new")), 0)
    assert watermark.low == 5
    watermark = watermark.after([(("t", 0), observation(new=20))], WatermarkRules(("b", "new")), 0)
    assert (watermark.low, dict(watermark.progress)) == (9, {"b": 9, "new": 20})


def test_origins_are_texts_bytes_or_integers() -> None:
    observed = observe(["a", b"a", 7, True, None, "", 1.5], np.arange(7))
    assert (observed.origins, observed.times.tolist()) == (("a", "7"), [1, 2])


def test_without_a_watermark_state_and_frames_have_nothing_of_it() -> None:
    assert ShardState.from_bytes(ShardState.empty().to_bytes()).watermark is None
    rules = Rules(replay=False, unit="s", period=10, span=1)
    cut = cut_frames(
        [ChunkId("t", 0, 0)], np.array([1]), stamps=None, expiry=np.array([1]),
        digests=np.array([[1, 2]], np.uint64), rows=np.zeros(1, np.uint32), future=None, shards=1,
    )  # fmt: skip
    assert b"news" not in cut.frames[0].to_bytes()
    assert decide(cut.frames, rules, ShardState.empty()).state.watermark is None


def test_an_idle_origin_does_not_count_until_it_advances() -> None:
    both, none = WatermarkRules(("a", "b", "c")), WatermarkRules(("a", "b", "c"), idle=("c", "b"))
    watermark = WatermarkState().after([(("t", 0), observation(a=50, b=20))], both, 0)
    assert watermark.low == UNKNOWN, "c has no progress"
    watermark = watermark.after([(("t", 0), observation(a=60))], none, 0)
    assert (watermark.low, watermark.is_idle("b"), watermark.is_idle("c")) == (60, True, True)
    watermark = WatermarkState.restore(watermark.columns(), watermark.meta())
    watermark = watermark.after([(("t", 0), observation(a=70, b=20))], none, 0)
    assert (watermark.low, watermark.is_idle("b")) == (70, True), "old progress overrides nothing"
    watermark = watermark.after([(("t", 0), observation(a=90, b=30))], none, 0)
    assert (watermark.low, watermark.is_idle("b")) == (70, False), (
        "b counts again, and the watermark doesn't go back"
    )
    watermark = watermark.after([(("t", 0), observation(a=95, b=80))], none, 0)
    assert (watermark.low, watermark.is_idle("b"), watermark.is_idle("c")) == (80, False, True)
    watermark = watermark.after([(("t", 0), observation())], both, 0).after(
        [(("t", 0), observation(a=99))], none, 0
    )
    assert (watermark.low, watermark.is_idle("b")) == (99, True), "b was declared idle again"


def test_silence_makes_no_origin_idle() -> None:
    watermark = WatermarkState().after([(("t", 0), observation(a=1, b=1))], WatermarkRules(("a", "b")), 0)
    for time in range(2, 50):
        watermark = watermark.after([(("t", 0), observation(a=time))], WatermarkRules(("a", "b")), 0)
    assert watermark.low == 1


def test_when_all_origins_are_idle_it_stays() -> None:
    watermark = WatermarkState().after([(("t", 0), observation(a=1))], WatermarkRules(("a",)), 0)
    idle = WatermarkRules(("a",), idle=("a", "nobody"))
    assert watermark.after([(("t", 0), observation(stranger=9))], idle, 0).low == 1


def test_a_state_from_before_services_were_told_apart_can_be_read() -> None:
    rules, watermark = WatermarkRules(None, partitions={"t": 1}), WatermarkState(3)
    meta = watermark.meta() | {"lows": [["t", 0, 5]]}
    del meta["upstreams"]
    restored = WatermarkState.restore(watermark.columns(), meta)
    assert restored.lows == {("t", 0): 5}
    named = Observation((), np.zeros(0, np.int64), (Carried(0, "a", 7),))
    after = restored.after([(("t", 0), named)], rules, 1)
    assert (after.low, after.lows) == (7, {("t", 0): 7}), "the service now gives its name"


def test_a_state_from_before_idle_origins_can_be_read() -> None:
    watermark = WatermarkState(3, {"a": 3})
    meta = watermark.meta()
    del meta["idle"]
    assert WatermarkState.restore(watermark.columns(), meta) == watermark
