"""The text output of ``run``: a progress line on a terminal, otherwise one plain line per batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from replayfilter.service.monitor.batch import Batch
from replayfilter.spark.counts import ROUTES


class Reporter:
    """Prints each finished batch. As a context manager it shows the progress line, and removes it at the end.

    There is a progress line only if ``console`` is a terminal.
    """

    def __init__(self, console: Console) -> None:
        self.totals: Counter[str] = Counter()
        self.batches = 0
        self._console, self._stderr = console, Console(stderr=True)
        self._line = Text("waiting for the first batch")
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(Spinner("dots", self._line), console=self._console, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if kind is None:
            batches = "1 batch" if self.batches == 1 else f"{self.batches:,} batches"
            self.info(f"{batches}: {self._counts(self.totals)}")

    def batch(self, batch: Batch) -> None:
        """Show one batch. Batches without records are not shown."""
        if not batch.records:
            return
        self.totals.update(batch.routes)
        self.batches += 1
        speed = f" ({batch.rate:,.0f} records/s)" if batch.rate else ""
        head = f"batch {batch.number}: {batch.records:,} records in {batch.seconds['total']:.2f} s{speed}"
        if self._live is not None:
            self._line = Text(
                f"{head}; in total {self._counts(self.totals)}", overflow="ellipsis", no_wrap=True
            )
            self._live.update(Spinner("dots", self._line))
        else:
            self.info(f"{head}: {self._counts(batch.routes)}")

    def info(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def warning(self, text: str, cause: BaseException | None = None) -> None:
        """Print a warning: above the progress line if there is one, otherwise to stderr."""
        if self._live is not None:
            self.info(text)
        else:
            self.error(text)

    def error(self, *texts: str, cause: BaseException | None = None) -> None:
        """Print errors to stderr, one per line."""
        for text in texts:
            self._stderr.print(text, highlight=False, markup=False, soft_wrap=True)

    def _counts(self, counts: Mapping[str, int]) -> str:
        return ", ".join(f"{route} {counts.get(route, 0):,}" for route in ROUTES)
