"""The graph of stages: input and output lows."""

from __future__ import annotations

import random

import pytest

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.watermark.stages import Lows, Stages


def test_a_chain_passes_the_output_low_on() -> None:
    stages = Stages({"c": ["b"], "b": ["a"], "a": []})
    stages.settle({"a": 100}, {"b": 70})
    assert stages.lows == {"a": Lows(100, 100), "b": Lows(100, 70), "c": Lows(70, 70)}
    assert stages.overall() == 70
    stages.settle({"a": 100}, {})
    assert stages.lows["c"] == Lows(100, 100)


def test_a_join_waits_for_the_slower_input() -> None:
    stages = Stages({"left": [], "right": [], "join": ["left", "right"]})
    stages.settle({"left": 100}, {})
    assert stages.lows["join"] == Lows(UNKNOWN, UNKNOWN)
    stages.settle({"left": 100, "right": 30}, {})
    assert stages.lows["join"] == Lows(30, 30)
    assert (stages.upstream_low("join"), stages.upstream_low("left")) == (30, None)


def test_the_own_bound_of_a_stage_counts_too() -> None:
    stages = Stages({"a": [], "b": ["a"]})
    stages.settle({"a": 100, "b": 40}, {})
    assert stages.lows["b"] == Lows(40, 40)


def test_neither_low_goes_back() -> None:
    stages = Stages({"a": [], "b": ["a"]}, {"b": Lows(50, 45)})
    stages.settle({"a": 20}, {"b": 3})
    assert stages.lows["b"] == Lows(50, 45)
    stages.settle({"a": 60}, {"b": 3})
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
        own = {name: rng.randint(0, 100) for name in names if not upstream[name] or rng.random() < 0.3}
        oldest = {name: rng.randint(0, 100) for name in names if rng.random() < 0.4}
        stages.settle(own, oldest)
        after: dict[str, tuple[int, int]] = {}
        for name in names:  # upstream stages come first in this list
            bounds = [after[each][1] for each in upstream[name]] + ([own[name]] if name in own else [])
            into = max(before[name][0], min(bounds) if bounds else UNKNOWN)
            out = into if name not in oldest else min(into, oldest[name])
            after[name] = (into, max(before[name][1], out))
        assert {name: (low.input, low.output) for name, low in stages.lows.items()} == after
        assert all(low.output <= low.input for low in stages.lows.values())
        before = after
