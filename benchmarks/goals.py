"""What this service has to reach, alone and against its peers, and what it has reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.figures import (
    BROKER_CPU_PER_MILLION,
    CPU_PER_MILLION,
    RECORDS_PER_S,
    Figures,
    live_columns,
)

FEW, MANY, VERY_MANY = 4, 200, 1_000  # partitions


class Goal(NamedTuple):
    """A figure and its limit; ``value`` is None if not all that it needs was measured."""

    title: str
    limit: float
    value: Callable[[Figures], float | None]
    at_least: bool = False

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


def _speed(ours: str, *peers: str) -> Callable[[Figures], float | None]:
    """Our throughput, divided by that of the fastest of the peers."""

    def ratio(figures: Figures) -> float | None:
        own = figures.median(ours, FEW, RECORDS_PER_S)
        theirs = [figures.median(peer, FEW, RECORDS_PER_S) for peer in peers]
        known = [each for each in theirs if each is not None]
        return own / max(known) if own is not None and known else None

    return ratio


def _many_against_few(figures: Figures) -> float | None:
    many, few = (figures.median("ours", count, RECORDS_PER_S) for count in (MANY, FEW))
    return many / few if many is not None and few is not None else None


def _us_per_record(figures: Figures) -> float | None:
    own, broker = (figures.median("ours", FEW, each) for each in (CPU_PER_MILLION, BROKER_CPU_PER_MILLION))
    return own + broker if own is not None and broker is not None else None


def _live(system: str, partitions: int, rate: int, column: int) -> Callable[[Figures], float | None]:
    return lambda figures: figures.median(system, partitions, live_columns(rate)[column])


def _delays(partitions: int, rate: int, median: float, highest: float) -> list[Goal]:
    title = f"{partitions:,} partitions, {rate:,}/s, interval 0s"
    return [
        Goal(f"{title}: median, ms", median, _live("ours-low", partitions, rate, 0)),
        Goal(f"{title}: 99%, ms", highest, _live("ours-low", partitions, rate, 2)),
    ]


_RATIO = f"{FEW} partitions, throughput: replayfilter /"
GOALS = [
    Goal(f"{_RATIO} Spark's faster deduplication", 2.2, _speed("ours", "plain", "within"), True),
    Goal(f"{_RATIO} Kafka Streams, repartition", 2.2, _speed("ours", "streams"), True),
    Goal(f"{_RATIO} Flink, the faster of both", 1.8, _speed("ours", "flink-10s", "flink-1s"), True),
    Goal(f"{_RATIO} Kafka Streams, within partitions", 1.2, _speed("ours", "streams-local"), True),
    Goal(f'{_RATIO} the same, with scope = "partition"', 1.5, _speed("ours-local", "streams-local"), True),
    Goal(f"{_RATIO} Spark's copy", 0.5, _speed("ours", "copy"), True),
    Goal(f"{FEW} partitions: CPU µs per record, with the broker's", 6.0, _us_per_record),
    Goal(f"Throughput with {MANY} partitions / with {FEW}", 0.8, _many_against_few, True),
    *_delays(FEW, 1_000, 450, 900),
    *_delays(FEW, 20_000, 1.5 * 450, 1.5 * 900),
    *_delays(MANY, 1_000, 800, 1_500),
    _delays(VERY_MANY, 1_000, 3_000, 0)[0],
    Goal(f"{FEW} partitions, 1,000/s, interval 1s: cores", 0.25, _live("ours", FEW, 1_000, 3)),
    Goal(f"{FEW} partitions, idle, interval 1s: cores", 0.03, _live("ours", FEW, 0, 0)),
]  # fmt: skip


def rows(figures: Figures) -> list[list[str]]:
    """Goal, limit, figure and whether it holds, for each goal that was measured."""
    found = [(goal, goal.value(figures)) for goal in GOALS]
    return [
        [goal.title, f"{'≥' if goal.at_least else '≤'} {_text(goal.limit)}", _text(value),
         "yes" if goal.holds(value) else "no"]
        for goal, value in found if value is not None
    ]  # fmt: skip


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
