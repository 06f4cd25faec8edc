"""Who holds the watermark back: against a naive count, bounded, and what the driver makes of it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.watermark.laggards import NAMES, Laggards, laggards_of
from replayfilter.core.watermark.watermark_state import Observation, WatermarkRules, WatermarkState
from replayfilter.service.monitor.batch import Batch, read_batch
from replayfilter.service.runtime.run import report_watermark
from replayfilter.spark import counts
from tests.core.watermark.test_watermark_state import observation

PLACE = ("t", 0)


@pytest.mark.parametrize("seed", range(30))
def test_it_counts_those_at_or_behind_the_watermark(seed: int) -> None:
    rng = random.Random(seed)
    hosts = [f"h{number}" for number in range(rng.randint(1, 60))]
    rules = WatermarkRules(tuple(hosts), rng.choice(["1", "0.9", "0.5"]))
    watermark, seen = WatermarkState(), dict[str, int]()
    for _ in range(8):
        said = {host: rng.randint(1, 30) for host in rng.sample(hosts, rng.randint(0, len(hosts)))}
        seen |= {host: max(time, seen.get(host, 0)) for host, time in said.items()}
        watermark = watermark.after([(PLACE, observation(stranger=10**9, **said))], rules)
        found = laggards_of(watermark, rules)
        behind = sorted((seen.get(host, UNKNOWN), hosts.index(host)) for host in hosts)
        behind = [(time, at) for time, at in behind if time <= watermark.low]
        assert (found.expected, found.heard, found.lagging) == (len(hosts), len(seen), len(behind))
        named = tuple((hosts[at], None if time == UNKNOWN else time) for time, at in behind[:NAMES])
        assert found.slowest == named
        assert found.front == max(seen.values(), default=None)
        assert found.lagging > found.may_lag, "else the watermark would have gone on"
        assert Laggards.from_text(found.to_text()) == found


def test_what_it_says_is_bounded_however_many_origins_there_are() -> None:
    rules = WatermarkRules(tuple(f"{number:0256}" for number in range(10_000)), "0.999")
    found = laggards_of(WatermarkState(), rules)
    assert (found.lagging, found.may_lag, len(found.slowest)) == (10_000, 10, NAMES)
    assert len(found.to_text()) < 6_000


def test_without_a_roster_it_says_what_each_partition_brought() -> None:
    rules = WatermarkRules(None, partitions={"t": 2})
    watermark = WatermarkState().after([(("t", 1), observation(70))], rules)
    assert laggards_of(watermark, rules) == Laggards(None, 70, lows=(("t", 1, 70),))
    watermark = watermark.after([(("t", 0), observation(50))], rules)
    assert laggards_of(watermark, rules) == Laggards(50, 70, lows=(("t", 0, 50), ("t", 1, 70)))


def batch(laggards: Laggards | None) -> Batch:
    text = "" if laggards is None else laggards.to_text()
    facts: dict[str, Any] = {
        "batchId": 1,
        "observedMetrics": {"counts": {"unique": 3, counts.LAGGARDS: text}, "other": {"rows": 1}},
        "sources": [{"endOffset": {"t": {"0": 10, "1": 20}}, "latestOffset": {"t": {"0": 10, "1": 25}}}],
    }
    return read_batch(facts, at=1.0)


class Noted:
    """Stands for a client: what was reported, in order."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, dict[str, Any]]] = []

    def report(self, stage: str, partition: str = "", **fields: Any) -> None:
        self.said.append((stage, partition, fields))


def test_the_driver_reports_the_whole_before_its_partitions() -> None:
    said = Noted()
    report_watermark(said, "next", batch(Laggards(50, 70, lows=(("t", 0, 50), ("t", 1, 70)))))  # type: ignore[arg-type]
    assert said.said == [
        ("next", "", {"low": 50, "laggards": None}),
        ("next", "t-0", {"low": 50, "backlog": 0}),
        ("next", "t-1", {"low": 70, "backlog": 5}),
    ]


def test_no_partition_is_reported_ahead_of_a_watermark_that_is_not_known_yet() -> None:
    said = Noted()
    report_watermark(said, "next", batch(Laggards(None, 70, lows=(("t", 1, 70),))))  # type: ignore[arg-type]
    assert [fields["low"] for _, _, fields in said.said] == [None, None, None]


def test_the_driver_reports_who_lags_and_passes_over_a_batch_that_does_not_say() -> None:
    said = Noted()
    found = laggards_of(WatermarkState(5, {"a": 5, "b": 9}), WatermarkRules(("a", "b", "c"), "0.6"))
    report_watermark(said, "web", batch(found))  # type: ignore[arg-type]
    told = said.said[0][2]["laggards"]
    assert (told.lagging, told.may_lag, told.slowest, told.front) == (2, 1, {"c": None, "a": 5}, 9)
    said.said.clear()
    report_watermark(said, "web", batch(None))  # type: ignore[arg-type]
    assert [(at, fields) for _, at, fields in said.said] == [
        ("t-0", {"low": None, "backlog": 0}), ("t-1", {"low": None, "backlog": 5}),
    ]  # fmt: skip


def test_a_batch_without_news_says_nothing_new() -> None:
    rules = WatermarkRules(("a",))
    watermark = WatermarkState().after([(PLACE, observation(a=5))], rules)
    assert laggards_of(
        watermark.after(list[tuple[tuple[str, int], Observation]](), rules), rules
    ) == laggards_of(watermark, rules)


def test_idle_origins_neither_lag_nor_may_they() -> None:
    rules = WatermarkRules(tuple("abcdefghijk"), "0.9", idle=("k", "j"))
    watermark = WatermarkState().after([(PLACE, observation(**dict.fromkeys("abcdefgh", 5), i=9))], rules)
    found = laggards_of(watermark, rules)
    assert (found.expected, found.heard, found.idle, found.lagging, found.may_lag) == (11, 9, 2, 8, 0)
    assert not {"j", "k"} & {name for name, _ in found.slowest}
