"""Streams whose origins are late, replayed without a clock: what a watermark makes of them.

Each origin writes one record every ``EVERY_S`` seconds. While it is delayed its records wait with it; when it
comes back they arrive all at once, in order. benchmarks/watermark.py prints what comes of it, the tests
assert it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.expiry import UNKNOWN
from replayfilter.core.watermark.low_watermark import LowWatermark

HOUR_S = 3600
ORIGINS = 10_000
EVERY_S = 60


@dataclass(frozen=True, slots=True)
class Delay:
    """Origins ``first`` to ``last`` - 1 are away from ``start`` on, each back at ``back[i]``; in seconds."""

    first: int
    start: int
    back: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Closed:
    """A window when it closed: its hour, the second of closing, the records in it then and in the end."""

    hour: int
    at_s: int
    held: int
    full: int

    @property
    def difference(self) -> float:
        """The share of its records that the closed window lacked."""
        return (self.full - self.held) / self.full


def arrivals(now_s: int, every_s: int, origins: int, delay: Delay | None) -> NDArray[np.int64]:
    """int64[origins]: the event time of each one's last record that is there at ``now_s``; -1 for none.

    Origin i writes at i % every_s, and every ``every_s`` seconds from then on.
    """
    upto = np.full(origins, now_s, np.int64)
    if delay is not None and now_s >= delay.start:
        away = np.arange(delay.first, delay.first + len(delay.back))
        upto[away] = np.where(now_s < delay.back, delay.start - 1, now_s)
    phase = np.arange(origins, dtype=np.int64) % every_s
    return np.where(upto >= phase, upto - (upto - phase) % every_s, -1)


def replay_windows(delay: Delay | None, hours: int, completeness: str = "0.999") -> list[Closed]:
    """The hourly windows in the order in which they close, of a stream of so many hours and one more."""
    names = [f"host-{number}" for number in range(ORIGINS)]
    low = LowWatermark(completeness, names)
    closed: list[Closed] = []
    last = -np.ones(ORIGINS, np.int64)
    for now_s in range(0, (hours + 1) * HOUR_S, EVERY_S):
        times = arrivals(now_s, EVERY_S, ORIGINS, delay)
        moved = np.flatnonzero(times > last).tolist()
        low.advance([names[origin] for origin in moved], times[moved])
        last = times
        reached = low.settle()
        while reached != UNKNOWN and len(closed) < hours and reached >= (len(closed) + 1) * HOUR_S:
            hour = len(closed)
            held = int(_records_in(hour, times).sum())
            everything = np.full(ORIGINS, 10**9)
            closed.append(Closed(hour, now_s, held, int(_records_in(hour, everything).sum())))
    return closed


def _records_in(hour: int, upto: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many records of an hour each origin has written, if its last one was at ``upto``."""
    phase = np.arange(len(upto), dtype=np.int64) % EVERY_S
    end = np.minimum(upto, (hour + 1) * HOUR_S - 1)
    return np.maximum((end - phase) // EVERY_S - (hour * HOUR_S - 1 - phase) // EVERY_S, 0)


# The three cases: nobody late; a thousandth late for hours; more than that, coming back one after the other.
CASES: dict[str, Delay | None] = {
    "no delay": None,
    "0.1% delayed for three hours": Delay(7_000, 5_000, np.full(10, 5_000 + 3 * HOUR_S, np.int64)),
    "0.5% delayed for two to three hours": Delay(
        7_000, 5_000, 5_000 + 2 * HOUR_S + np.arange(50, dtype=np.int64) * 72
    ),
}


@dataclass(frozen=True, slots=True)
class Stall:
    """A share of the origins stalls for a while, then all its records come at once; in seconds."""

    origins: int = 1_000
    stalled: int = 300
    every_s: int = 5
    batch_s: int = 10
    start_s: int = 600
    end_s: int = 1_200
    length_s: int = 1_800
    allowed_s: int = 60  # what Spark's user declares as the most that a record is late
    completeness: str = "0.999"


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: its records' event times and origins, and the records behind either watermark."""

    at_s: int
    times: NDArray[np.int64]
    origins: NDArray[np.int64]
    ours: int
    ours_low: int
    spark: int
    spark_low: int


def replay_stall(stall: Stall) -> list[Batch]:
    """The stream cut into batches, held against ours and against Spark's rule.

    Spark: the watermark is the largest time seen minus what is allowed, renewed after each batch; rows are
    dropped as late if not above the watermark of the batch before, so by the records up to the last batch but
    one. A real run drops exactly the same (benchmarks/watermark.py).
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
