"""Laggards: compared with a naive count, and bounded."""

from __future__ import annotations

import random

import pytest

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.watermark.laggards import NAMES, Laggards, laggards_of
from replayfilter.core.watermark.watermark_state import WatermarkRules, WatermarkState
from tests.support.observations import observation

PARTITION = ("t", 0)


@pytest.mark.parametrize("seed", range(30))
def test_laggards_are_the_origins_at_or_behind_the_watermark(seed: int) -> None:
    rng = random.Random(seed)
    hosts = [f"h{number}" for number in range(rng.randint(1, 60))]
    rules = WatermarkRules(tuple(hosts), rng.choice(["1", "0.9", "0.5"]))
    watermark, seen = WatermarkState(), dict[str, int]()
    for _ in range(8):
        times = {host: rng.randint(1, 30) for host in rng.sample(hosts, rng.randint(0, len(hosts)))}
        seen |= {host: max(time, seen.get(host, 0)) for host, time in times.items()}
        watermark = watermark.after([(PARTITION, observation(stranger=10**9, **times))], rules, 0)
        found = laggards_of(watermark, rules)
        behind = sorted((seen.get(host, UNKNOWN), hosts.index(host)) for host in hosts)
        behind = [(time, at) for time, at in behind if time <= watermark.low]
        assert (found.expected, found.heard, found.lagging) == (len(hosts), len(seen), len(behind))
        named = tuple((hosts[at], None if time == UNKNOWN else time) for time, at in behind[:NAMES])
        assert found.slowest == named
        assert found.front == max(seen.values(), default=None)
        assert found.lagging > found.may_lag, "otherwise the watermark would have advanced"
        assert Laggards.from_text(found.to_text()) == found


def test_the_report_is_bounded_for_any_number_of_origins() -> None:
    rules = WatermarkRules(tuple(f"{number:0256}" for number in range(10_000)), "0.999")
    found = laggards_of(WatermarkState(), rules)
    assert (found.lagging, found.may_lag, len(found.slowest)) == (10_000, 10, NAMES)
    assert len(found.to_text()) < 6_000


def test_without_a_roster_it_has_the_watermark_of_each_partition() -> None:
    rules = WatermarkRules(None, partitions={"t": 2})
    watermark = WatermarkState().after([(("t", 1), observation(70))], rules, 0)
    assert laggards_of(watermark, rules) == Laggards(None, 70, lows=(("t", 1, 70),))
    watermark = watermark.after([(("t", 0), observation(50))], rules, 0)
    assert laggards_of(watermark, rules) == Laggards(50, 70, lows=(("t", 0, 50), ("t", 1, 70)))


def test_a_batch_without_observations_changes_nothing() -> None:
    rules = WatermarkRules(("a",))
    watermark = WatermarkState().after([(PARTITION, observation(a=5))], rules, 0)
    after = watermark.after([], rules, 0)
    assert laggards_of(after, rules) == laggards_of(watermark, rules)


def test_idle_origins_do_not_count() -> None:
    rules = WatermarkRules(tuple("abcdefghijk"), "0.9", idle=("k", "j"))
    watermark = WatermarkState().after(
        [(PARTITION, observation(**dict.fromkeys("abcdefgh", 5), i=9))], rules, 0
    )
    found = laggards_of(watermark, rules)
    assert (found.expected, found.heard, found.idle, found.lagging, found.may_lag) == (11, 9, 2, 8, 0)
    assert not {"j", "k"} & {name for name, _ in found.slowest}
