"""``dedup.refresh``: what starts the period of a key again. By the core and by the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

import pytest

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.routing import Route
from replayfilter.core.rules import Rules
from tests.support.core_comparison import routes
from tests.support.core_run import CoreRun
from tests.support.reference import Model, Position, Record, Source
from tests.support.streams import Batch

RULES = Rules(period=10, span=4, remember_first=True, refresh=True)
JOB = Source(1, 0)


class Seen(NamedTuple):
    """A record of key 1: its expiry key, and its offset in the source, None for no stamp."""

    expiry: int
    stamped: int | None = None


Batches = Sequence[Sequence[Seen | int]]


def decide(
    batches: Batches, rules: Rules = RULES, changed: dict[int, bool] | None = None
) -> tuple[str, list[int | None]]:
    """The routes by their first letters, and by offset what each record repeats.

    A number in a batch is the expiry key of a record with another key. ``changed``: by batch whether
    duplicates refresh from there on.
    """
    core, model, random = CoreRun(rules, None, 2, "honest"), Model(rules), Random(1)
    letters, firsts, offset = "", list[int | None](), 0
    for number, batch in enumerate(batches):
        records = []
        for each in batch:
            expiry, stamped = each if isinstance(each, Seen) else (each, None)
            key = 1 if isinstance(each, Seen) else 1_000 + offset
            source = JOB if stamped is not None else None
            records.append(Record(Position("t", 0, offset), source, stamped, key, expiry))
            offset += 1
        settings = {"refresh": changed[number]} if changed and number in changed else {}
        expected = model.decide(records, BatchFacts.at(0), settings)
        found = core.decide(Batch(BatchFacts.at(0), tuple(records), changed=settings), random)
        assert found == routes(expected)
        for record, each in zip(records, batch, strict=True):
            first = core.firsts.get(record.position)
            assert first == expected[record.position].first
            if isinstance(each, Seen):
                letters += Route(found[record.position]).name[0]
                firsts.append(first.offset if first else None)
    return letters, firsts


def times(*expiry: int) -> Batches:
    """Each record in a batch of its own."""
    return [[Seen(each)] for each in expiry]


def together(batches: Batches) -> Batches:
    """The same in one batch."""
    return [[each for batch in batches for each in batch]]


def test_a_duplicate_starts_the_period_again() -> None:
    for batches in (times(0, 8, 16, 24, 34), together(times(0, 8, 16, 24, 34))):
        assert decide(batches) == ("UDDDU", [None, 0, 0, 0, None]), "all repeat the accepted record"
        assert decide(batches, replace(RULES, refresh=False))[0] == "UDUDU"


def test_a_duplicate_out_of_order_does_not_shorten_the_period() -> None:
    for batches in (times(0, 8, 3, 17, 27), together(times(0, 8, 3, 17, 27))):
        assert decide(batches)[0] == "UDDDU"


def test_the_key_of_an_older_copy_is_remembered_at_the_time_of_the_newest() -> None:
    assert decide([[Seen(5)], [12], [Seen(8)], [17], [Seen(17)]])[0] == "UDD"


def test_an_expired_copy_refreshes_nothing() -> None:
    assert decide([[Seen(0)], [15], [Seen(5)], [Seen(15)]])[0] == "UEU"


def test_a_replay_refreshes_nothing() -> None:
    replayed = [[Seen(0, stamped=7)], [Seen(8, stamped=7)], [Seen(16, stamped=8)]]
    assert decide(replayed) == ("URU", [None, None, None])


def test_after_the_period_the_next_copy_is_the_accepted_record() -> None:
    batches = times(0, 8, 18, 26, 27)
    for each in (batches, together(batches)):
        assert decide(each) == ("UDUDD", [None, 0, None, 2, 2])


@pytest.mark.parametrize("span", [1, 4, 10])
def test_it_may_be_turned_on_and_off_on_a_live_state(span: int) -> None:
    rules = replace(RULES, refresh=False, span=span)
    on = decide(times(0, 8, 12, 20), rules, {1: True})
    assert on[0] == "UDDD", "the first duplicate after that starts the period again"
    off = decide(times(0, 8, 12, 18), replace(rules, refresh=True), {2: False})
    assert off[0] == "UDDU", "what was refreshed stays so, and the next duplicate no longer refreshes"
