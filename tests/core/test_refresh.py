"""``dedup.refresh``: what starts the period of a key again. By the core and by the model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replayfilter.core.rules import Rules
from tests.support.one_key import Seen, decide, times, together

RULES = Rules(period=10, span=4, remember_first=True, refresh=True)


def test_a_duplicate_starts_the_period_again() -> None:
    for batches in (times(0, 8, 16, 24, 34), together(times(0, 8, 16, 24, 34))):
        assert decide(batches, RULES) == ("UDDDU", [None, 0, 0, 0, None]), "all repeat the accepted record"
        assert decide(batches, replace(RULES, refresh=False))[0] == "UDUDU"


def test_a_duplicate_out_of_order_does_not_shorten_the_period() -> None:
    for batches in (times(0, 8, 3, 17, 27), together(times(0, 8, 3, 17, 27))):
        assert decide(batches, RULES)[0] == "UDDDU"


def test_the_key_of_an_older_copy_is_remembered_at_the_time_of_the_newest() -> None:
    assert decide([[Seen(5)], [12], [Seen(8)], [17], [Seen(17)]], RULES)[0] == "UDD"


def test_an_expired_copy_refreshes_nothing() -> None:
    assert decide([[Seen(0)], [15], [Seen(5)], [Seen(15)]], RULES)[0] == "UEU"


def test_a_replay_refreshes_nothing() -> None:
    replayed = [[Seen(0, stamped=7)], [Seen(8, stamped=7)], [Seen(16, stamped=8)]]
    assert decide(replayed, RULES) == ("URU", [None, None, None])


def test_after_the_period_the_next_copy_is_the_accepted_record() -> None:
    batches = times(0, 8, 18, 26, 27)
    for each in (batches, together(batches)):
        assert decide(each, RULES) == ("UDUDD", [None, 0, None, 2, 2])


@pytest.mark.parametrize("span", [1, 4, 10])
def test_it_may_be_turned_on_and_off_on_a_live_state(span: int) -> None:
    rules = replace(RULES, refresh=False, span=span)
    on = decide(times(0, 8, 12, 20), rules, {1: {"refresh": True}})
    assert on[0] == "UDDD", "the first duplicate after that starts the period again"
    off = decide(times(0, 8, 12, 18), replace(rules, refresh=True), {2: {"refresh": False}})
    assert off[0] == "UDDU", "what was refreshed stays so, and the next duplicate no longer refreshes"
