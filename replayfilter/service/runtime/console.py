"""What ``run`` shows while it works: one living line on a terminal, one plain line a batch elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from replayfilter.service.monitor.batch import ROUTES, Batch


class Reporter:
    """Shows each finished batch; a context manager, so that the living line goes when the work ends.

    ``console`` decides by itself whether it is a terminal.
    """

    def __init__(self, console: Console) -> None:
        self.totals: Counter[str] = Counter()
        self.batches = 0
        self._console, self._errors = console, Console(stderr=True)
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
            self.say(f"{batches}: {self._counts(self.totals)}")

    def batch(self, batch: Batch) -> None:
        """Show one batch; those that took nothing in are passed over."""
        if not batch.records:
            return
        self.totals.update(batch.routes)
        self.batches += 1
        speed = f" ({batch.rate:,.0f} records/s)" if batch.rate else ""
        head = f"batch {batch.number}: {batch.records:,} records in {batch.seconds['total']:.2f} s{speed}"
        if self._live is not None:
            self._line = Text(
                f"{head}; in all {self._counts(self.totals)}", overflow="ellipsis", no_wrap=True
            )
            self._live.update(Spinner("dots", self._line))
        else:
            self.say(f"{head}: {self._counts(batch.routes)}")

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def warn(self, sentence: str) -> None:
        """A sentence for stderr; the living line stays below it."""
        if self._live is not None:
            self.say(sentence)
        else:
            self.complain(sentence)

    def complain(self, *sentences: str) -> None:
        """Errors and warnings go to stderr, one line each."""
        for sentence in sentences:
            self._errors.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def _counts(self, counts: Mapping[str, int]) -> str:
        return ", ".join(f"{route} {counts.get(route, 0):,}" for route in ROUTES)
