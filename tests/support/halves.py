"""A dirty stream in two halves, between which a service may lose what it remembers."""

from __future__ import annotations

import time
from collections.abc import Mapping

from replayfilter.demo.check import ConsumerRecord, compare
from replayfilter.demo.stream import Expected, Record, expected_routes, generate


class Halves:
    """A stream that is cut where many replays and duplicates come after the cut, of records before it."""

    def __init__(self, records: int, partitions: int) -> None:
        end_ms = int(time.time() * 1000)
        self.stream: list[Record] = generate(records, end_ms=end_ms, partitions=partitions)
        self.expected: list[Expected] = expected_routes(self.stream, end_ms=end_ms)
        self._repeats = self._find_repeats()
        cuts = range(records // 3, 2 * records // 3, 50)
        self.cut = max(cuts, key=lambda cut: min(self.across(cut).values()))

    @property
    def first(self) -> list[Record]:
        """The records before the cut."""
        return self.stream[: self.cut]

    @property
    def second(self) -> list[Record]:
        """The records after the cut."""
        return self.stream[self.cut :]

    def across(self, cut: int) -> dict[str, int]:
        """How many records after a cut are replays and duplicates of records before it."""
        found = {"replay": 0, "duplicate": 0}
        for route, first, at in self._repeats:
            found[route] += first < cut <= at
        return found

    def _find_repeats(self) -> list[tuple[str, int, int]]:
        """Route, index of the first record and own index of each replay and duplicate."""
        places = {(record.partition, record.offset): at for at, record in enumerate(self.stream)}
        stamped: dict[bytes | None, int] = {}
        repeats = []
        for at, (record, expected) in enumerate(zip(self.stream, self.expected, strict=True)):
            if expected.route == "replay":
                repeats.append(("replay", stamped[record.key], at))
            elif expected.first is not None:
                repeats.append(("duplicate", places[expected.first], at))
            stamped.setdefault(record.key, at)
        return repeats

    def problems(self, outputs: Mapping[str, list[ConsumerRecord]], since: int = 0) -> dict[str, list[str]]:
        """What is wrong with the records of all output topics, by route; empty if each is right.

        ``since``: the first record of the stream that must be there.
        """
        verdicts = compare(self.stream[since:], self.expected[since:], outputs)
        return {
            route: verdict.problems or ["missing"] for route, verdict in verdicts.items() if not verdict.ok
        }
