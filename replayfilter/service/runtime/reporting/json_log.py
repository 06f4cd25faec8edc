"""The JSON log of ``run``: one object per line with time, level and service; batch and lane if known."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self, TextIO

import structlog

from replayfilter.errors import DeliveryError
from replayfilter.service.monitor.batch import Batch


class JsonLog:
    """Writes to ``out``. Used in place of :class:`console.Reporter`."""

    def __init__(self, service: str, out: TextIO | None = None) -> None:
        self._last_batch: int | None = None
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
            self._log.info("ended", **self._context(None))

    def batch(self, batch: Batch) -> None:
        """Log a finished batch."""
        self._last_batch = batch.number
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

    def info(self, text: str) -> None:
        """Log an event."""
        self._log.info(text)

    def warning(self, text: str, cause: BaseException | None = None) -> None:
        """Log a problem that the service goes on after. ``cause`` is the error behind it, if there is one."""
        self._log.warning(text, **self._context(cause))

    def error(self, *texts: str, cause: BaseException | None = None) -> None:
        """Log the errors that end the service, and print them to stderr, where people read them."""
        for text in texts:
            self._log.error(text, **self._context(cause))
            print(text, file=sys.stderr, flush=True)

    def _context(self, cause: BaseException | None) -> dict[str, int]:
        """The last batch, and the lane that the error is about."""
        batch = {} if self._last_batch is None else {"batch": self._last_batch}
        lane = cause.lane if isinstance(cause, DeliveryError) else None
        return batch if lane is None else batch | {"lane": lane}
