"""Records of one key, decided by the core and by the model, which must agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.routing import Route
from replayfilter.core.rules import Rules
from tests.support.core_comparison import routes
from tests.support.core_run import CoreRun
from tests.support.reference import Model, Position, Record, Source
from tests.support.streams import Batch

JOB = Source(1, 0)
LETTERS = {Route.CONFLICT: "!"}


class Seen(NamedTuple):
    """A record of the key: its expiry key, its content, and its offset in the source, None for no stamp."""

    expiry: int
    content: int = 1
    stamped: int | None = None
    null: bool = False


Batches = Sequence[Sequence[Seen | int]]


def decide(
    batches: Batches, rules: Rules, changed: Mapping[int, Mapping[str, Any]] | None = None
) -> tuple[str, list[int | None]]:
    """The routes by their first letters, "!" for a conflict; and by record the offset of what it repeats.

    A number in a batch is the expiry key of a record with another key. ``changed``: by batch, the settings
    that are others from there on.
    """
    core, model, random = CoreRun(rules, None, 2, "honest"), Model(rules), Random(1)
    letters, firsts, offset = "", list[int | None](), 0
    for number, batch in enumerate(batches):
        records = []
        for each in batch:
            seen = each if isinstance(each, Seen) else Seen(each)
            key = 1 if isinstance(each, Seen) else 1_000 + offset
            source = JOB if seen.stamped is not None else None
            at = Position("t", 0, offset)
            records.append(
                Record(at, source, seen.stamped, key, seen.expiry, content=seen.content, null=seen.null)
            )
            offset += 1
        settings = (changed or {}).get(number, {})
        expected = model.decide(records, BatchFacts.at(0), settings)
        found = core.decide(Batch(BatchFacts.at(0), tuple(records), changed=settings), random)
        assert found == routes(expected)
        for record, each in zip(records, batch, strict=True):
            first = core.firsts.get(record.position)
            assert first == expected[record.position].first or not rules.remember_first
            if isinstance(each, Seen):
                route = found[record.position]
                letters += LETTERS.get(route, route.name[0])
                firsts.append(first.offset if first else None)
    return letters, firsts


def times(*expiry: int) -> Batches:
    """Each record in a batch of its own."""
    return [[Seen(each)] for each in expiry]


def together(batches: Batches) -> Batches:
    """The same in one batch."""
    return [[each for batch in batches for each in batch]]
