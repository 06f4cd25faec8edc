"""Random streams for ``route``: records as rows of a table, and what the reference model says of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock.clocks import Clock
from replayfilter.core.routing import Route
from replayfilter.core.rules import Match, OnNull, Rules, Scope
from tests.support.core_run import blob
from tests.support.reference import Model, Position, Record
from tests.support.streams import EPOCH_US, Stream

COLUMNS = ("topic", "partition", "offset", "key", "event", "at")
_NAMES = {Route.FUTURE: "error", Route.JUMP: "error"}


def supported(stream: Stream) -> list[list[Record]]:
    """The stream's batches, as far as there is something in them: ``route`` doesn't know null values."""
    found = [[replace(each, null=False) for each in batch.records] for batch in stream.batches]
    return [batch for batch in found if batch]


def rules_of(stream: Stream, **changed: Any) -> Rules:
    """The stream's rules, as far as ``route`` has them."""
    plain: dict[str, Any] = {
        "dedup": True,
        "match": Match.WINDOW,
        "scope": Scope.INPUT,
        "on_null": OnNull.ERROR,
    }
    plain |= {"refresh": False, "content": "", "remember_first": True, "max_sources": 10**9}
    return replace(stream.rules, **plain | changed)


def row_of(record: Record, clock: Clock) -> tuple[Any, ...]:
    """The record's values in ``COLUMNS``; ``key`` has the stamp. A broken record has no event, or no time."""
    event: int | None = record.key
    at: int | None = record.expiry
    if record.broken:
        event, at = (None, at) if clock is Clock.NONE or record.position.offset % 2 else (event, None)
    return (*record.position, blob(record), event, at)


def expected(batches: Iterable[list[Record]], rules: Rules) -> dict[Position, tuple[str, Position | None]]:
    """Of each record its route and, of duplicates, the first record, by the model."""
    model = Model(rules)
    found = {}
    for batch in batches:
        for position, decided in model.decide(batch, BatchFacts(EPOCH_US, EPOCH_US, False)).items():
            name = _NAMES.get(decided.route, decided.route.name.lower())
            found[position] = name, decided.first if decided.route is Route.DUPLICATE else None
    return found
