"""What ``run`` says to machines: a JSON object a line, with time, level, service; batch and lane if known."""

from __future__ import annotations

import re
import sys
from types import TracebackType
from typing import Any, Self, TextIO

import structlog

from replayfilter.service.monitor.batch import Batch

_LANE = re.compile(r"\blane \S+-(\d+)\b")


class JsonLog:
    """Writes to ``out``; a context manager like :class:`~replayfilter.service.runtime.console.Reporter`."""

    def __init__(self, service: str, out: TextIO | None = None) -> None:
        self._batch: int | None = None
        self._log: Any = structlog.wrap_logger(
            structlog.PrintLogger(out or sys.stdout),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
                structlog.processors.JSONRenderer(ensure_ascii=False),
            ],
            service=service,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if kind is None:
            self._log.info("ended", **self._last())

    def batch(self, batch: Batch) -> None:
        """A line for a finished batch."""
        self._batch = batch.number
        self._log.info(
            "batch",
            batch=batch.number,
            records=batch.records,
            seconds=round(batch.seconds["total"], 3),
            **batch.routes,
            keys=batch.counts.get("state_keys", 0),
            transactions=batch.counts.get("transactions", 0),
            fences=batch.counts.get("fences", 0),
        )

    def say(self, event: str, **facts: Any) -> None:
        """A line of news."""
        self._log.info(event, **facts)

    def warn(self, sentence: str) -> None:
        """A line for a fault that is tried again, or that keeps nothing from working."""
        self._log.warning(sentence, **self._last(), **_lane(sentence))

    def complain(self, *sentences: str) -> None:
        """A line for each fault that ends the service; people read the same on stderr."""
        for sentence in sentences:
            self._log.error(sentence, **self._last(), **_lane(sentence))
            print(sentence, file=sys.stderr, flush=True)

    def _last(self) -> dict[str, int]:
        return {} if self._batch is None else {"batch": self._batch}


def _lane(sentence: str) -> dict[str, int]:
    found = _LANE.search(sentence)
    return {"lane": int(found[1])} if found else {}
