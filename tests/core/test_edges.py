"""Edge cases as tables, checked with the core and with the model.

A case is a list of batches. A batch is a list of records, each ``(key, expiry key)`` or ``(key, expiry key,
input partition)``. The expected routes are letters in the same order: Unique, Duplicate, eXpired, Future,
Jump. Batches are separated by a space.
"""

from __future__ import annotations

from random import Random

import pytest

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock.clocks import Clock
from replayfilter.core.clock.units import INT64_MAX, INT64_MIN
from replayfilter.core.routing import Route
from replayfilter.core.rules import Match, Rules, Scope
from tests.support.core_run import CoreRun
from tests.support.reference import Model, Position, Record
from tests.support.streams import Batch, Stream

LETTERS = {
    "U": Route.UNIQUE, "D": Route.DUPLICATE, "X": Route.EXPIRED, "F": Route.FUTURE, "J": Route.JUMP,
}  # fmt: skip
YEAR_MS = 365 * 24 * 3_600_000
NOW_US = 1_700_000_000_000_000
NOW_MS = NOW_US // 1000

Rows = list[list[tuple[int, ...]]]
Case = tuple[Rules, Rows, str]

TUPLE = Rules(period=10, span=3)  # the span does not divide the period
BUCKET = Rules(period=10, span=5, match=Match.BUCKET)
WITHIN = Rules(period=10, span=3, scope=Scope.PARTITION)
TUPLE_CASES: dict[str, Case] = {
    "the boundary expires": (TUPLE, [[(1, 20), (2, 10), (3, 11)]], "UXU"),
    "with period 0 every record expires": (Rules(period=0, span=1), [[(1, 5), (2, 6)]], "XX"),
    "period 1 keeps only the latest point": (
        Rules(period=1, span=1), [[(1, 5), (1, 5), (1, 6), (2, 5)]], "UDUX",
    ),
    "a huge period keeps everything": (
        Rules(period=INT64_MAX, span=2**62), [[(1, INT64_MIN), (2, -5), (1, -2)]], "UUD",
    ),
    "the huge period's boundary": (
        Rules(period=INT64_MAX, span=2**62), [[(1, INT64_MIN), (2, -1), (3, INT64_MIN)]], "UUX",
    ),
    "a key is forgotten exactly at the period": (
        TUPLE, [[(1, 3)], [(2, 12), (1, 12)], [(9, 13), (1, 13)]], "U UD UU",
    ),
    "also in a bucket that lives on": (TUPLE, [[(1, 3), (2, 5)], [(9, 14), (1, 14), (2, 14)]], "UU UUD"),
    "equal keys in one batch": (TUPLE, [[(1, 5), (1, 5), (1, 6)]], "UDD"),
    "equal keys in two partitions: the lower is first": (TUPLE, [[(1, 5, 1), (1, 5, 0)]], "DU"),
    "equal keys in two batches": (TUPLE, [[(1, 5, 1)], [(1, 5, 0)]], "U D"),
    "within partitions: equal keys in two of them": (
        WITHIN, [[(1, 5, 1), (1, 5, 0)], [(1, 5, 0), (1, 5, 2)]], "UU DU",
    ),
    "within partitions: the latest point is still that of all": (
        WITHIN, [[(1, 100, 0), (2, 5, 1)], [(3, 90, 1), (4, 91, 1)]], "UU XU",
    ),
    "equal times at a bucket's edges": (TUPLE, [[(1, 2), (1, 3), (2, 3), (2, 2)]], "UDUD"),
    "other partitions count from the next batch on": (
        TUPLE, [[(1, 100, 0), (2, 5, 1)], [(3, 90, 1), (4, 91, 1)]], "UU XU",
    ),
    "negative times": (TUPLE, [[(1, -20), (1, -11), (2, -21), (3, -22)]], "UDXX"),
    "match bucket: the same bucket only": (BUCKET, [[(1, 4), (1, 5), (1, 9), (1, 4)]], "UUDD"),
    "match bucket: across batches": (BUCKET, [[(1, 4)], [(1, 5)], [(1, 4), (1, 9)]], "U U DD"),
}  # fmt: skip

ORDERED = Rules(clock=Clock.ORDERED, unit="integer", period=10, span=3)
STEPS = Rules(clock=Clock.ORDERED, unit="integer", period=10, span=3, max_jump=5)
ORDERED_CASES: dict[str, Case] = {
    "the boundary expires": (ORDERED, [[(1, 20), (2, 10), (3, 11)]], "UXU"),
    "without max_jump any step is allowed": (ORDERED, [[(1, 0), (2, 2**40)], [(3, 1)]], "UU X"),
    "the first key is never a jump": (STEPS, [[(1, 2**40), (2, 2**40 + 5)]], "UU"),
    "a step of max_jump is no jump": (STEPS, [[(1, 0), (2, 5), (3, 11)]], "UUJ"),
    "a jump doesn't advance the latest point": (STEPS, [[(1, 0), (2, 99), (3, 1), (3, 6)]], "UJUD"),
    "a jump leaves no key behind": (STEPS, [[(1, 0), (2, 99), (2, 3)]], "UJU"),
    "a rise in small steps is no jump": (STEPS, [[(1, 0), (2, 5), (3, 10), (4, 15), (5, 5)]], "UUUUX"),
    "across batches": (STEPS, [[(1, 0)], [(2, 6)], [(3, 5)], [(2, 6)]], "U J U U"),
    "a step of another partition counts from the next batch on": (
        STEPS, [[(1, 0)], [(2, 5, 0), (3, 9, 1)], [(3, 9, 1)]], "U UJ U",
    ),
    "the ends of int64": (STEPS, [[(1, INT64_MIN + 1), (2, INT64_MAX), (3, INT64_MIN + 2)]], "UJU"),
}  # fmt: skip

GROUPS = Rules(clock=Clock.CATEGORICAL, unit="integer", period=1, match=Match.BUCKET)
ANYWHERE = Rules(clock=Clock.CATEGORICAL, unit="integer", period=1, match=Match.WINDOW)
A, B, C, D = 700, -3, 12, 0  # categories have no order
CATEGORICAL_CASES: dict[str, Case] = {
    "one back is still open": (GROUPS, [[(1, A), (2, B), (3, A), (4, C), (5, A), (6, B)]], "UUUUXU"),
    "period 0: only the last category is open": (
        Rules(clock=Clock.CATEGORICAL, unit="integer", period=0), [[(1, A), (2, B), (3, A)]], "UUX",
    ),
    "in the same category only": (GROUPS, [[(1, A), (1, A), (1, B), (1, A)]], "UDUD"),
    "in any open category": (ANYWHERE, [[(1, A)], [(1, B)], [(2, C)], [(1, C)]], "U D U U"),
    "each partition has its own order": (
        GROUPS, [[(1, A, 0), (2, B, 0), (3, C, 0)], [(4, A, 1), (5, A, 0)]], "UUU UX",
    ),
    "keys are remembered across partitions": (GROUPS, [[(1, A, 0)], [(1, A, 1)]], "U D"),
    "closed stays closed": (GROUPS, [[(1, A)], [(2, B), (3, C)], [(4, A)], [(5, D), (6, A)]], "U UU X UX"),
}  # fmt: skip

CASES = {
    f"{clock}: {name}": case
    for clock, cases in {
        "tuple": TUPLE_CASES, "ordered": ORDERED_CASES, "categorical": CATEGORICAL_CASES,
    }.items()
    for name, case in cases.items()
}  # fmt: skip


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_edge(name: str, shards: int) -> None:
    rules, rows, expected = CASES[name]
    assert routed(rules, rows, shards=shards) == expected


HOUR = Rules(period=3_600_000, span=300_000, unit="ms")
AHEAD = NOW_MS + YEAR_MS


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # One record is in the future. The others are not affected.
        ([[(1, NOW_MS - 10), (2, AHEAD), (3, NOW_MS - 5)], [(4, NOW_MS - 3_599_000)]], "UFU U"),
        # All records of one partition are in the future. The other partition is not affected.
        ([[(1, AHEAD, 0), (2, AHEAD + 1, 0), (3, NOW_MS, 1)], [(4, AHEAD + 2, 0), (5, NOW_MS, 1)]], "FFU FU"),
        # All records are in the future: nothing expires.
        ([[(1, NOW_MS)], [(2, AHEAD), (3, AHEAD, 1)], [(4, NOW_MS - 3_599_999)]], "U FF U"),
        # Ten minutes ahead is exactly the limit.
        ([[(1, NOW_MS + 600_000), (2, NOW_MS + 600_001)]], "UF"),
    ],
)
def test_a_clock_a_year_ahead(rows: Rows, expected: str) -> None:
    assert routed(HOUR, rows, max_future_us=600_000_000) == expected


def routed(rules: Rules, rows: Rows, *, shards: int = 2, max_future_us: int | None = None) -> str:
    """The routes of the core as letters, after a check that the model agrees."""
    offsets: dict[int, int] = {}
    batches = []
    for row in rows:
        records = []
        for key, expiry, *rest in row:
            partition = rest[0] if rest else 0
            offsets[partition] = offset = offsets.get(partition, -1) + 1
            records.append(Record(Position("t", partition, offset), None, None, key, expiry))
        batches.append(Batch(BatchFacts.at(NOW_US), tuple(records)))
    stream = Stream(0, "edges", rules, max_future_us, shards, "honest", tuple(batches))
    core, model, random = CoreRun.of(stream), Model(rules, max_future_us), Random(0)
    letter = {route: name for name, route in LETTERS.items()}
    words = []
    for batch in stream.batches:
        routes = core.decide(batch, random)
        expected = model.decide(batch.records, batch.facts)
        assert routes == {position: decision.route for position, decision in expected.items()}
        words.append("".join(letter[routes[record.position]] for record in batch.records))
    return " ".join(words)
