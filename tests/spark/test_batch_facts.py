"""The facts of a batch: how the planner finds them, and that they travel unchanged."""

from __future__ import annotations

import time

import pytest

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.rules import Rules
from replayfilter.formats import KeySpec
from replayfilter.spark.batch_range import BatchEnd
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.rows import facts_from_text, facts_to_text
from replayfilter.spark.source import BatchPlanner, SourceSettings

HOUR_NS = 3600 * 10**9
PIPELINE = PipelineSettings(
    service="s", checkpoint="c", bootstrap="b:1", topics=("t",), outputs={}, shards=1, lanes=1,
    output_pids={}, keys=KeySpec("raw", (), None, "ms"), rules=Rules(dedup=False),
)  # fmt: skip


def planned(planner: BatchPlanner, end: int) -> BatchFacts:
    """The facts of a batch of up to ten records, before ``end`` in the only partition."""
    facts = BatchEnd.from_json(planner._plan({("t", 0): 0}, {("t", 0): end}, {}, 0)).facts
    assert facts is not None
    return facts


def test_a_clock_that_jumps_ahead_is_not_believed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {"wall": 0, "running": 0}
    monkeypatch.setattr(time, "time_ns", lambda: clocks["wall"] * HOUR_NS)
    monkeypatch.setattr(time, "monotonic_ns", lambda: clocks["running"] * HOUR_NS)
    planner, found = BatchPlanner(SourceSettings(PIPELINE, 10, 1)), []
    for wall, running in ((0, 0), (5, 5), (48, 6), (7, 7), (90, 8), (91, 9)):
        clocks |= {"wall": wall, "running": running}
        facts = planned(planner, 1)
        assert facts.time_us == wall * HOUR_NS // 1000
        found.append(facts.believed_us * 1000 // HOUR_NS)
    assert found == [0, 5, 6, 7, 8, 91], "the second batch confirms it; a quiet time is no jump"

    clocks["wall"] = 200
    again = BatchPlanner(SourceSettings(PIPELINE, 10, 1, last_end='{"t": {}, "@batch": {"time_us": 7}}'))
    assert planned(again, 1).believed_us == 7, "nobody knows how long the service was down"


def test_a_batch_has_caught_up_if_it_has_all_that_could_be_read() -> None:
    planner = BatchPlanner(SourceSettings(PIPELINE, 10, 1))
    assert [planned(planner, end).caught_up for end in (10, 11)] == [True, False]


def test_an_offset_log_without_facts() -> None:
    assert BatchEnd({("t", 0): 5}).facts is None
    assert BatchEnd({("t", 0): 5}, 9, {("t", 0): 1}).facts == BatchFacts(9, 9, caught_up=False)


def test_facts_travel_as_text() -> None:
    facts = BatchFacts(2**53 + 1, -1, True, (("counted", 2**53 + 1), ("other", -1)))
    assert facts_from_text(facts_to_text(facts)) == facts
