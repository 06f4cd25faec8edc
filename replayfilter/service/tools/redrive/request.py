"""What a redrive is asked for, and what it has done: both are committed with its offsets, as JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from replayfilter.service.tools.redrive.selection import MAX_REDRIVEN, HeaderTest, Selection
from replayfilter.watermark.times import format_time


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asks for; another request is another job.

    ``route``: "error" or "expired". ``to`` "": each record goes to the input topic that it came from.
    ``job``: a name for a job that takes no notice of the others.
    """

    route: str = "error"
    selection: Selection = field(default_factory=Selection)
    to: str = ""
    max_redriven: int = MAX_REDRIVEN
    job: str = ""

    def describe(self) -> str:
        """The request as options of the command.

        >>> Request("error", Selection(("json",), since_ms=1), to="again").describe()
        '--from error --reason json --since 1000 --to again --max-redriven 3'
        """
        words = ["--from", self.route, *self.selection.options()]
        words += ["--to", self.to] if self.to else []
        words += ["--max-redriven", str(self.max_redriven)]
        words += ["--job", self.job] if self.job else []
        return shlex.join(words)

    def values(self) -> dict[str, Any]:
        """The request as values of JSON."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """The request with these :meth:`values`. Raises KeyError, TypeError or ValueError for others."""
        chosen = values["selection"]
        headers = tuple(HeaderTest(name, value) for name, value in chosen["headers"])
        selection = Selection(tuple(chosen["reasons"]), chosen["since_ms"], chosen["until_ms"], headers)
        return cls(**(values | {"selection": selection}))


@dataclass(frozen=True, slots=True)
class Done:
    """What a job has done in all its executions. ``seconds``: when, since the epoch."""

    written: int = 0
    left_out: int = 0
    seconds: int = 0
    request: Request | None = None

    def to_text(self) -> str:
        """JSON for the offsets' metadata."""
        request = self.request.values() if self.request is not None else None
        values = {"written": self.written, "left_out": self.left_out, "seconds": self.seconds}
        return json.dumps(values | {"request": request}, separators=(",", ":"))

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """The last one of these texts; nothing done if there is none. Other texts are ignored.

        >>> texts = [Done(5, 1, 90, Request()).to_text(), Done(3, 0, 80, Request()).to_text(), "", "first"]
        >>> Done.of(texts) == Done(5, 1, 90, Request())
        True
        """
        found = [cls()]
        for text in texts:
            try:
                values = json.loads(text)
                found.append(cls(**(values | {"request": Request.of(values["request"])})))
            except (ValueError, TypeError, KeyError):
                continue
        return max(found, key=lambda each: (each.written + each.left_out, each.seconds))

    @property
    def time(self) -> str:
        """When, in ISO 8601."""
        return format_time(self.seconds * 10**6)
