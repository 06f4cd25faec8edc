"""The figures of all runs: their columns, and medians over rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks.comparison import Live, Result
from benchmarks.systems import SYSTEMS


class Column(NamedTuple):
    """A figure of a run; ``value`` is None if it was not measured.

    ``compared``: it is among those in which a peer can be better. Parts of other figures are not.
    """

    title: str
    value: Callable[[Result], float | None]
    digits: int = 0
    more_is_better: bool = False
    compared: bool = True

    def text(self, value: float | None) -> str:
        return "–" if value is None else f"{value:,.{self.digits}f}"  # noqa: RUF001  # a dash for no figure


RECORDS_PER_S = Column("records/s", lambda run: run.records_per_s, more_is_better=True)
CPU_PER_MILLION = Column("CPU s per million", lambda run: run.cpu_per_million, 1)
BROKER_CPU_PER_MILLION = Column("broker's CPU s per million", lambda run: run.broker_cpu_per_million, 1)
BACKLOG = [
    RECORDS_PER_S,
    CPU_PER_MILLION,
    BROKER_CPU_PER_MILLION,
    Column("peak memory, MB", lambda run: run.memory_mb),
    Column("of which JVM, MB", lambda run: run.jvm_memory_mb, compared=False),
    Column("state, bytes per key", lambda run: run.state_bytes_per_key or None, 1),
    Column("start, s", lambda run: run.start_s, 1),
]


def live_columns(rate: int) -> list[Column]:
    """The figures of the live phase at a rate: median, 95%, 99%, cores and the broker's cores.

    At rate 0 there are no delays.
    """

    def at(figure: Callable[[Live], float | None]) -> Callable[[Result], float | None]:
        return lambda run: next((figure(live) for live in run.live if live.rate == rate), None)

    delays = [
        Column("median, ms", at(lambda live: live.p50)),
        Column("95%, ms", at(lambda live: live.p95), compared=False),
        Column("99%, ms", at(lambda live: live.p99)),
    ]
    cores = [
        Column("cores", at(lambda live: live.cores), 2),
        Column("broker's cores", at(lambda live: live.broker_cores), 2),
    ]
    return [*(delays if rate else []), *cores]


class Figures:
    """All runs of one or more calls of the benchmark."""

    def __init__(self, runs: Sequence[dict[str, Any]]) -> None:
        self.runs = [Result.from_json(run) for run in runs]

    def sections(self) -> Iterator[tuple[str, int, list[Column]]]:
        """Title, number of partitions and columns of each table."""
        for partitions in sorted({run.partitions for run in self.runs}):
            yield f"Catch-up, {partitions:,} partitions", partitions, BACKLOG
            rates = {live.rate for run in self.runs if run.partitions == partitions for live in run.live}
            for rate in sorted(rates):
                title = f"{rate:,} records per second" if rate else "Idle"
                yield f"{title}, {partitions:,} partitions", partitions, live_columns(rate)

    def systems(self, partitions: int) -> list[str]:
        """The systems that were measured with so many partitions, in the order of the table."""
        return [name for name in SYSTEMS if self._of(name, partitions)]

    def rounds(self) -> tuple[int, int]:
        """The least and the greatest number of runs that a system has."""
        counts = [len(self._of(run.system, run.partitions)) for run in self.runs]
        return min(counts), max(counts)

    def median(self, system: str, partitions: int, column: Column) -> float | None:
        """The median of a figure over all runs that have it."""
        values = [value for run in self._of(system, partitions) if (value := column.value(run)) is not None]
        return statistics.median(values) if values else None

    def _of(self, system: str, partitions: int) -> list[Result]:
        return [run for run in self.runs if (run.system, run.partitions) == (system, partitions)]
