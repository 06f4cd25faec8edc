"""The graph of stages: input and output lows."""

from __future__ import annotations

import random

import pytest

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.watermark.stages import Lows, Stages


def test_a_chain_passes_the_output_low_on() -> None:
    stages = Stages({"c": ["b"], "b": ["a"], "a": []})
    own = {"a": 100, "b": 110, "c": 120}
    stages.settle(own, {"b": 70})
    assert stages.lows == {"a": Lows(100, 100), "b": Lows(100, 70), "c": Lows(70, 70)}
    assert stages.overall() == 70
    stages.settle(own, {})
    assert stages.lows["c"] == Lows(100, 100)


def test_a_silent_stage_takes_nothing_from_the_stages_before_it() -> None:
    stages = Stages({"a": [], "b": ["a"], "c": ["b"]})
    stages.settle({"a": 100, "c": 90}, {})
    assert stages.lows["b"] == Lows(), "its service may not have read what a has finished"
    assert stages.lows["c"] == Lows(), "nor could it have written it"
    assert stages.overall() == UNKNOWN
    stages.settle({"a": 100, "b": 80, "c": 90}, {})
    assert (stages.lows["b"], stages.lows["c"]) == (Lows(80, 80), Lows(80, 80))
    stages.settle({"a": 200, "c": 90}, {})
    assert stages.lows["b"] == Lows(80, 80), "what was known stays, but goes no further"


def test_a_join_waits_for_the_slower_input() -> None:
    stages = Stages({"left": [], "right": [], "join": ["left", "right"]})
    stages.settle({"left": 100, "join": 50}, {})
    assert stages.lows["join"] == Lows(UNKNOWN, UNKNOWN)
    stages.settle({"left": 100, "right": 30, "join": 50}, {})
    assert stages.lows["join"] == Lows(30, 30)
    assert (stages.upstream_low("join"), stages.upstream_low("left")) == (30, None)


def test_the_own_bound_of_a_stage_counts_too() -> None:
    stages = Stages({"a": [], "b": ["a"]})
    stages.settle({"a": 100, "b": 40}, {})
    assert stages.lows["b"] == Lows(40, 40)


def test_neither_low_goes_back() -> None:
    stages = Stages({"a": [], "b": ["a"]}, {"b": Lows(50, 45)})
    stages.settle({"a": 20, "b": 80}, {"b": 3})
    assert stages.lows["b"] == Lows(50, 45)
    stages.settle({"a": 60, "b": 80}, {"b": 3})
    assert stages.lows["b"] == Lows(60, 45), "old work that appears later doesn't move the output back"


@pytest.mark.parametrize(
    ("upstream", "message"),
    [
        ({"a": ["a"]}, "a -> a"),
        ({"a": ["c"], "b": ["a"], "c": ["b"], "d": []}, "cycle: "),
        ({"a": ["z"]}, '"a" reads "z"'),
    ],
)
def test_a_cycle_or_an_unknown_stage_is_refused(upstream: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Stages(upstream)


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_agree_with_the_definition(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"s{number}" for number in range(rng.randint(1, 12))]
    upstream = {name: rng.sample(names[:at], rng.randint(0, min(at, 3))) for at, name in enumerate(names)}
    shuffled = dict(rng.sample(list(upstream.items()), len(upstream)))
    stages, before = Stages(shuffled), dict.fromkeys(names, (UNKNOWN, UNKNOWN))
    for _ in range(20):
        own = {name: rng.randint(0, 100) for name in names if rng.random() < 0.7}
        oldest = {name: rng.randint(0, 100) for name in names if rng.random() < 0.4}
        stages.settle(own, oldest)
        after: dict[str, tuple[int, int]] = {}
        for name in names:  # upstream stages come first in this list
            if name not in own:
                after[name] = before[name]
                continue
            into = max(before[name][0], min([own[name], *(after[each][1] for each in upstream[name])]))
            out = into if name not in oldest else min(into, oldest[name])
            after[name] = (into, max(before[name][1], out))
        assert {name: (low.input, low.output) for name, low in stages.lows.items()} == after
        assert all(low.output <= low.input for low in stages.lows.values())
        before = after
