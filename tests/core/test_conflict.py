"""``dedup.conflict``: which duplicates differ from what they repeat. By the core and by the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from replayfilter.core.clock.clocks import Clock
from replayfilter.core.key_run import CONTENT, Run
from replayfilter.core.rules import Match, Rules
from tests.support.one_key import Batches, Seen, decide, together

ONE, OTHER = f"{CONTENT}1", f"{CONTENT}2"
RULES = Rules(period=10, span=4, remember_first=True, content=ONE)
RULES_OF_ALL_KINDS = {
    "window": RULES,
    "bucket": replace(RULES, match=Match.BUCKET, span=10),
    "none": replace(RULES, clock=Clock.NONE),
    "categorical": replace(RULES, clock=Clock.CATEGORICAL, period=1),
    "refresh": replace(RULES, refresh=True),
    "without first records": replace(RULES, remember_first=False),
}


def contents(*content: int) -> Batches:
    """Records of the same time, each in a batch of its own."""
    return [[Seen(5, each)] for each in content]


@pytest.mark.parametrize("rules", RULES_OF_ALL_KINDS.values(), ids=RULES_OF_ALL_KINDS)
def test_a_duplicate_is_compared_with_the_accepted_record_and_not_with_the_last(rules: Rules) -> None:
    for batches in (contents(1, 1, 2, 2, 1), together(contents(1, 1, 2, 2, 1))):
        assert decide(batches, rules)[0] == "UD!!D"
        assert decide(batches, replace(rules, content=""))[0] == "UDDDD"


def test_after_the_period_the_next_record_is_what_copies_are_compared_with() -> None:
    batches: Batches = [[Seen(0, 1)], [Seen(8, 2)], [Seen(11, 2)], [Seen(12, 2)], [Seen(13, 1)]]
    for each in (batches, together(batches)):
        assert decide(each, RULES) == ("U!UD!", [None, 0, None, 2, 2])


def test_what_is_refreshed_keeps_the_content_of_the_accepted_record() -> None:
    batches: Batches = [[Seen(0, 1)], [Seen(8, 2)], [Seen(16, 2)], [Seen(24, 1)]]
    for each in (batches, together(batches)):
        assert decide(each, replace(RULES, refresh=True)) == ("U!!D", [None, 0, 0, 0])


def test_replays_and_expired_records_are_not_compared() -> None:
    batches: Batches = [[Seen(5, 1, stamped=7)], [Seen(5, 2, stamped=7)], [15], [Seen(5, 2)]]
    assert decide(batches, RULES)[0] == "URE"


def test_null_values_never_conflict() -> None:
    assert decide([[Seen(0, 1, null=True)], [Seen(0, 2, null=True)]], RULES)[0] == "UD"


@pytest.mark.parametrize("keys", [0, 30], ids=["runs apart", "runs merged"])
def test_it_may_be_turned_on_on_a_live_state(keys: int) -> None:
    """Of a key remembered before nothing is known; merging its run with others makes no difference."""
    more: list[Seen | int] = [5] * keys
    batches: Batches = [[Seen(5, 1)], [Seen(5, 2), *more], [Seen(5, 3), *more], [Seen(16, 3)], [Seen(16, 2)]]
    assert decide(batches, replace(RULES, content=""), {1: {"content": ONE}})[0] == "UDDU!"


@pytest.mark.parametrize("content", ["", OTHER])
def test_it_may_be_turned_off_or_compare_other_fields_on_a_live_state(content: str) -> None:
    batches: Batches = [[Seen(5, 1)], [Seen(5, 2)], [Seen(5, 3), 5, 6], [Seen(5, 3)]]
    assert decide(batches, RULES, {2: {"content": content}})[0] == "U!DD"


def test_runs_merged_after_it_is_turned_off_lose_their_digests() -> None:
    hi = np.array([3], np.uint64)
    old = Run(hi, hi, {ONE: np.array([7], np.uint32)})
    assert Run.merged([Run(hi + hi, hi), old]).kept == {}
    (kept,) = Run.merged([Run(hi + hi, hi, {OTHER: np.array([9], np.uint32)}), old]).kept.values()
    assert kept.tolist() == [0, 9], "of the old key no digest of that name is known"


def test_four_bytes_a_key_and_none_if_it_is_off() -> None:
    n = 1_000
    hi = np.arange(n, dtype=np.uint64)
    plain = Run(hi, hi).to_bytes()
    assert Run.from_bytes(plain).kept == {}
    kept = Run(hi, hi, {ONE: np.ones(n, np.uint32)}).to_bytes()
    assert 4 * n <= len(kept) - len(plain) < 4 * n + 50
