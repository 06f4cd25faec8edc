"""The batches of a service that runs in this process, with the CPU seconds used until the end of each."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.processes import CpuClock
from replayfilter.spark.batch_range import BatchEnd


class Batches:
    """The progress of each batch with records, and the process tree's CPU seconds at its end."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self.cpu: list[float] = []
        self._clock = CpuClock(os.getpid())

    def add(self, progress: Any) -> None:
        if rows_of(progress):
            self.found.append(dict(progress))
            self.cpu.append(self._clock.seconds())


def rows_of(progress: Any) -> int:
    """The input records of a batch, from its offsets: Spark counts frames and payloads."""
    rows = 0
    for source in progress["sources"]:
        start, end = (BatchEnd.from_json(source[f"{side}Offset"] or {}).ends for side in ("start", "end"))
        rows += sum(offset - start.get(partition, 0) for partition, offset in end.items())
    return rows
