"""What the tests of Spark and Flink expect of their deduplication, row by row, is what the core decides.

Inputs and expected rows are those of these files, by the names of their tests:

- Spark: ``StreamingDeduplicationSuite`` and ``StreamingDeduplicationWithinWatermarkSuite`` in
  ``sql/core/src/test/scala/org/apache/spark/sql/streaming`` (apache/spark, 4.2 development).
- Flink: ``DeduplicationTestPrograms`` in ``flink-table/flink-table-planner/src/test/java`` (apache/flink).

Left out are tests of what is not deduplication: plans, metrics of a state store, schemas, aggregates, sinks,
errors of the API. Where this service means something else by design, the case has both answers, and says why.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import pytest

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock.clocks import Clock
from replayfilter.core.routing import Route
from replayfilter.core.rules import Rules
from tests.support.core_comparison import routes
from tests.support.core_run import CoreRun
from tests.support.paths import ROOT
from tests.support.reference import Model, Position, Record
from tests.support.streams import Batch

Row = tuple[Any, int]  # key and time


class Step(NamedTuple):
    """Rows that are added, and those that come out because of them."""

    added: list[Row]
    emitted: list[Row]


class Case(NamedTuple):
    """A test of another system. ``period``: None if nothing is forgotten."""

    test: str
    period: int | None
    steps: list[Step]


def at(*times: int) -> list[Row]:
    """Rows whose key is their time."""
    return [(time, time) for time in times]


def keys(*names: Any) -> list[Row]:
    """Rows without a time."""
    return [(name, 0) for name in names]


FIVE_TIMES = at(*[*range(10, 16)] * 5)
S = 1_000_000_000

SPARK_WITHIN_WATERMARK = [
    Case(
        "deduplicate with all columns with event time column in DataFrame",
        10,
        [
            Step(FIVE_TIMES, at(*range(10, 16))),
            Step(at(13, 14, 15, 16, 17), at(16, 17)),
            Step(at(5), []),
            Step(at(35), at(35)),
            Step(at(55), at(55)),
        ],
    ),
    Case(
        "deduplicate with subset of columns which event time column is not in subset",
        2,
        [
            Step([("a", 17)], [("a", 17)]),
            Step([("a", 16)], []),
            Step([("a", 13)], []),
            Step([("b", 22), ("c", 21)], [("b", 22), ("c", 21)]),
            Step([("a", 21)], [("a", 21)]),
            Step([("d", 25)], [("d", 25)]),
        ],
    ),
    Case(
        "SPARK-39650: duplicate with specific keys should allow input to change schema",
        10,
        [
            Step([("a", 1)], [("a", 1)]),
            Step([("a", 2), ("b", 3)], [("b", 3)]),
            Step([("a", 5), ("b", 2), ("c", 9)], [("c", 9)]),
        ],
    ),
    Case(
        "SPARK-50492: drop event time column after dropDuplicatesWithinWatermark",
        10,
        [Step([(2, 1)], [(2, 1)])],
    ),
    Case(
        "SPARK-57843: dropDuplicatesWithinWatermark with nanosecond-precision event-time",
        10 * S,
        [
            Step(
                [("a", 17 * S), ("b", 22 * S), ("c", 21 * S)], [("a", 17 * S), ("b", 22 * S), ("c", 21 * S)]
            ),
            Step([("a", 16 * S)], []),
            Step([("a", 11 * S)], []),
            Step([("d", 35 * S)], [("d", 35 * S)]),
            Step([("e", 55 * S)], [("e", 55 * S)]),
        ],
    ),
    Case(
        "SPARK-57843: sub-microsecond dedup semantics - epochMicros truncation dedup key",
        10 * S,
        [
            Step(
                [("x", 20_000_000_001), ("y", 20_000_000_999)], [("x", 20_000_000_001), ("y", 20_000_000_999)]
            ),
            Step([("x", 20_000_000_500)], []),
        ],
    ),
]

SPARK = [
    Case(
        "deduplicate with all columns",
        None,
        [Step(keys("a"), keys("a")), Step(keys("a"), []), Step(keys("b"), keys("b"))],
    ),
    Case(
        "deduplicate with some columns",
        None,
        [Step([("a", 1)], [("a", 1)]), Step([("a", 2)], []), Step([("b", 1)], [("b", 1)])],
    ),
    Case(
        "SPARK-35896: metrics in StateOperatorProgress are output correctly",
        10,
        [
            Step(FIVE_TIMES, at(*range(10, 16))),
            Step(at(25), at(25)),
            Step(at(10), []),
            Step(at(10), []),
        ],
    ),
    Case(
        "deduplicate with watermark",
        10,
        [
            Step(FIVE_TIMES, at(*range(10, 16))),
            Step(at(25), at(25)),
            Step(at(10), []),
            Step(at(45), at(45)),
        ],
    ),
    Case(
        "deduplicate with file sink",
        None,
        [Step(keys("a"), keys("a")), Step(keys("a"), []), Step(keys("b"), keys("b"))],
    ),
    Case(
        "SPARK-19841: watermarkPredicate should filter based on keys",  # id and time together are the key
        1,
        [
            Step([((1, 1), 1), ((1, 1), 1), ((2, 1), 1)], [((1, 1), 1), ((2, 1), 1)]),
            Step([((1, 1), 1), ((3, 2), 2), ((4, 2), 2)], [((3, 2), 2), ((4, 2), 2)]),
            Step([((0, 1), 1), ((1, 1), 1), ((5, 3), 3), ((6, 3), 3)], [((5, 3), 3), ((6, 3), 3)]),
            Step([((0, 1), 1), ((7, 4), 4)], [((7, 4), 4)]),
        ],
    ),
    Case(
        "SPARK-21546: dropDuplicates should ignore watermark when it's not a key",
        None,
        [Step([(1, 1), (1, 2), (2, 2)], [(1, 1), (2, 2)])],
    ),
    Case(
        "test no-data flag",
        10,
        [Step(at(*range(10, 16)), at(*range(10, 16))), Step(at(25), at(25))],
    ),
    Case(
        "SPARK-29438: ensure UNION doesn't lead streaming deduplication to use shifted partition IDs",
        None,
        [Step(keys(21, 22), keys(21, 22)), Step(keys(22, 23), keys(23))],
    ),
    Case(
        "SPARK-35880: custom metric numDroppedDuplicateRows in state operator progress",
        None,
        [
            Step([("a", 1)], [("a", 1)]),
            Step([("a", 2), ("b", 3)], [("b", 3)]),
            Step([("a", 5), ("b", 2), ("c", 9)], [("c", 9)]),
        ],
    ),
    Case(
        "SPARK-35880: custom metric numDroppedDuplicateRows in state operator progress, with watermark",
        10,
        [
            Step(FIVE_TIMES, at(*range(10, 16))),
            Step(at(14), []),
            Step(at(25), at(25)),
            Step(at(10), []),
            Step(at(26, 26), at(26)),
        ],
    ),
    Case(
        "collation aware deduplication",
        None,
        [Step([("a", 1)], [("a", 1)]), Step([("a", 2)], []), Step([("ä", 1)], [("ä", 1)])],
    ),
]

BEFORE_RESTORE = [("pen", 1000), ("pen", 2000), ("pen", 3000), ("apple", 4000), ("apple", 5000)]
AFTER_RESTORE = [("pen", 6000), ("apple", 7000), ("banana", 8000), ("apple", 9000)]
FIRST_ROWS = [
    Step(BEFORE_RESTORE, [("pen", 1000), ("apple", 4000)]),
    Step(AFTER_RESTORE, [("banana", 8000)]),
]
FLINK = [Case("deduplicate-asc", None, FIRST_ROWS), Case("deduplicate-asc-proctime", None, FIRST_ROWS)]
FLINK_LAST_ROWS = Case(
    "deduplicate-desc",
    None,
    [Step(BEFORE_RESTORE, BEFORE_RESTORE), Step(AFTER_RESTORE, AFTER_RESTORE)],  # each row replaces the last
)


def emitted(case: Case, shards: int) -> list[list[Row]]:
    """What is unique in each step by the core; it must decide as the model does."""
    clock = Clock.NONE if case.period is None else Clock.TUPLE
    period = case.period or 1
    rules = Rules(replay=False, clock=clock, period=period, span=max(1, period // 12), unit="integer")
    core, model, random = CoreRun(rules, None, shards, "honest"), Model(rules), Random(case.test)
    numbers: dict[Any, int] = {}
    found: list[list[Row]] = []
    offset = 0
    for step in case.steps:
        records = []
        for key, time in step.added:
            number = numbers.setdefault(key, len(numbers) + 1)
            records.append(Record(Position("t", 0, offset), None, None, number, time))
            offset += 1
        decided = core.decide(Batch(BatchFacts.at(0), tuple(records)), random)
        assert decided == routes(model.decide(records, BatchFacts.at(0)))
        rows = zip(step.added, records, strict=True)
        found.append([row for row, record in rows if decided[record.position] is Route.UNIQUE])
    return found


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("case", [*SPARK_WITHIN_WATERMARK, *SPARK, *FLINK], ids=lambda case: case.test)
def test_the_same_rows_come_out(case: Case, shards: int) -> None:
    assert emitted(case, shards) == [step.emitted for step in case.steps]


def test_the_last_row_of_a_key_is_not_kept_and_the_docs_say_so() -> None:
    """Flink's ORDER BY ... DESC makes a table in which later rows replace earlier ones; topics keep both."""
    assert emitted(FLINK_LAST_ROWS, 3) == [step.emitted for step in FIRST_ROWS]
    assert emitted(FLINK_LAST_ROWS, 3) != [step.emitted for step in FLINK_LAST_ROWS.steps]
    assert "ORDER BY ts DESC" in (ROOT / "docs" / "guides" / "migrate.md").read_text("utf-8")
