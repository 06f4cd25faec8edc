"""Simulated streams with late origins, and how watermarks deal with them.

Each origin writes one record every ``EVERY_S`` seconds. The records of a delayed origin wait until it is
back, and then arrive all at once and in order. benchmarks/watermark.py prints the results, and the tests
assert them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.watermark.low_watermark import LowWatermark

HOUR_S = 3600
ORIGINS = 10_000
EVERY_S = 60


@dataclass(frozen=True, slots=True)
class Delay:
    """From second ``start`` on, ``len(back)`` origins from number ``first`` on are away until ``back[i]``."""

    first: int
    start: int
    back: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed window: its hour, the second when it closed, its records at that time and in the end."""

    hour: int
    at_s: int
    held: int
    full: int

    @property
    def difference(self) -> float:
        """The share of its records that came after it had closed."""
        return (self.full - self.held) / self.full


def arrivals(now_s: int, every_s: int, origins: int, delay: Delay | None) -> NDArray[np.int64]:
    """The event time of each origin's last record that has arrived at ``now_s``, int64[origins]; -1 for none.

    Origin i writes its first record at i % every_s, and then one every ``every_s`` seconds.
    """
    upto = np.full(origins, now_s, np.int64)
    if delay is not None and now_s >= delay.start:
        away = np.arange(delay.first, delay.first + len(delay.back))
        upto[away] = np.where(now_s < delay.back, delay.start - 1, now_s)
    phase = np.arange(origins, dtype=np.int64) % every_s
    return np.where(upto >= phase, upto - (upto - phase) % every_s, -1)


def replay_windows(
    delay: Delay | None, hours: int, completeness: str = "0.999", bound_s: int | None = None
) -> list[Closed]:
    """The first ``hours`` hourly windows of a stream, in the order in which they close.

    With ``bound_s`` the watermark is not ours, but the largest time so far minus a bound. Flink's
    ``forBoundedOutOfOrderness`` and Spark's ``withWatermark`` both have this rule; Spark applies it one batch
    later.
    """
    names = [f"host-{number}" for number in range(ORIGINS)]
    low = LowWatermark(completeness, names)
    closed: list[Closed] = []
    last = -np.ones(ORIGINS, np.int64)
    for now_s in range(0, (hours + 5) * HOUR_S, EVERY_S):
        times = arrivals(now_s, EVERY_S, ORIGINS, delay)
        if bound_s is None:
            moved = np.flatnonzero(times > last).tolist()
            low.advance([names[origin] for origin in moved], times[moved])
            last = times
            reached = low.settle()
        else:
            reached = int(times.max()) - bound_s
        if len(closed) == hours:
            break
        while reached != UNKNOWN and len(closed) < hours and reached >= (len(closed) + 1) * HOUR_S:
            hour = len(closed)
            held = int(_records_in(hour, times).sum())
            everything = np.full(ORIGINS, 10**9)
            closed.append(Closed(hour, now_s, held, int(_records_in(hour, everything).sum())))
    return closed


def _records_in(hour: int, upto: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many records of an hour each origin has written by the times ``upto``."""
    phase = np.arange(len(upto), dtype=np.int64) % EVERY_S
    end = np.minimum(upto, (hour + 1) * HOUR_S - 1)
    count: NDArray[np.int64] = (end - phase) // EVERY_S - (hour * HOUR_S - 1 - phase) // EVERY_S
    return np.maximum(count, 0)


# No origin late; a thousandth late for hours; more than a thousandth late, coming back one by one.
CASES: dict[str, Delay | None] = {
    "no delay": None,
    "0.1% delayed for three hours": Delay(7_000, 5_000, np.full(10, 5_000 + 3 * HOUR_S, np.int64)),
    "0.5% delayed for two to three hours": Delay(
        7_000, 5_000, 5_000 + 2 * HOUR_S + np.arange(50, dtype=np.int64) * 72
    ),
}


@dataclass(frozen=True, slots=True)
class Stall:
    """Some origins stall for a while, then all their records arrive at once; times in seconds."""

    origins: int = 1_000
    stalled: int = 300
    every_s: int = 5
    batch_s: int = 10
    start_s: int = 600
    end_s: int = 1_200
    length_s: int = 1_800
    allowed_s: int = 60  # the lateness that a user of Spark declares
    completeness: str = "0.999"


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch: its records' event times and origins, and how many are behind either watermark."""

    at_s: int
    times: NDArray[np.int64]
    origins: NDArray[np.int64]
    ours: int
    ours_low: int
    spark: int
    spark_low: int


def replay_stall(stall: Stall) -> list[Batch]:
    """The stream cut into batches, each compared with our watermark and with Spark's rule.

    Spark's watermark is the largest time seen minus the allowed lateness, computed after each batch. Spark
    drops rows that are not above the watermark of the batch before, which knows the records up to the last
    batch but one. A real query drops exactly the same rows (benchmarks/watermark.py).
    """
    names = [f"host-{number}" for number in range(stall.origins)]
    back = np.full(stall.stalled, stall.end_s, np.int64)
    delay = Delay(0, stall.start_s, back)
    low = LowWatermark(stall.completeness, names)
    before = np.arange(stall.origins) % stall.every_s - stall.every_s
    reached, largest, watermarks, batches = UNKNOWN, 0, [0, 0], []
    for at_s in range(stall.batch_s, stall.length_s + 1, stall.batch_s):
        times = arrivals(at_s - 1, stall.every_s, stall.origins, delay)
        counts = (times - before) // stall.every_s
        origins = np.repeat(np.arange(stall.origins), counts)
        steps = np.concatenate([np.arange(count) for count in counts.tolist()])
        records = times[origins] - steps * stall.every_s
        ours = int((records < reached).sum())
        late_by = watermarks[-2]
        batches.append(Batch(at_s, records, origins, ours, reached, int((records <= late_by).sum()), late_by))
        low.advance(names, times)
        reached = low.settle()
        largest = max(largest, int(records.max(initial=0)))
        watermarks.append(max(watermarks[-1], largest - stall.allowed_s))
        before = times
    return batches
