"""Which dead letters are redriven: by reason, time and headers; and the sums of what was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from replayfilter.errors import ConfigError
from replayfilter.kafka.chunk_reader import NO_TIMESTAMP
from replayfilter.service.tools.redrive.dead_letter import MESSAGE_HEADER, REASON_HEADER, DeadLetter
from replayfilter.spark.error_reasons import REASONS
from replayfilter.watermark.times import parse_time

MAX_REDRIVEN = 3
_EXAMPLE_CHARACTERS = 100


class HeaderTest(NamedTuple):
    """A header that a record must have. ``value`` None: with any value."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters are chosen: all conditions must hold; an empty one always holds.

    ``since_ms`` and ``until_ms`` are timestamps of records: from the first on, and before the second.
    """

    reasons: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    headers: tuple[HeaderTest, ...] = ()

    def takes(self, letter: DeadLetter) -> bool:
        """Whether this record is chosen. One without a timestamp is in no range of time."""
        if self.reasons and letter.text(REASON_HEADER) not in self.reasons:
            return False
        at = letter.timestamp_ms
        if (self.since_ms, self.until_ms) != (None, None) and at == NO_TIMESTAMP:
            return False
        if (self.since_ms is not None and at < self.since_ms) or (
            self.until_ms is not None and at >= self.until_ms
        ):
            return False
        return all(
            any(
                name == test.name and (test.value is None or value == test.value.encode())
                for name, value in letter.headers
            )
            for test in self.headers
        )

    def options(self) -> list[str]:
        """The selection as options of the command; the same for the same selection."""
        words = [word for reason in self.reasons for word in ("--reason", reason)]
        for option, limit_ms in (("--since", self.since_ms), ("--until", self.until_ms)):
            words += [option, str(limit_ms * 1000)] if limit_ms is not None else []
        for name, value in self.headers:
            words += ["--header", name if value is None else f"{name}={value}"]
        return words


def parse_selection(
    reasons: list[str], since: str | None, until: str | None, headers: list[str], expired: bool = False
) -> Selection:
    """The selection that options ask for: ``headers`` as NAME or NAME=VALUE, times as in ISO 8601.

    Raises ConfigError with a sentence for each option that is wrong. Expired records have no reason.

    >>> chosen = parse_selection(["key", "json"], None, "2026-01-01", ["trace", "team=shop"])
    >>> print(*chosen.options())
    --reason json --reason key --until 1767225600000000 --header team=shop --header trace
    """
    errors = []
    if expired and reasons:
        errors.append(f"--reason {reasons[0]}: expired records have no reason; leave it out")
    errors += [
        f"--reason {reason}: there is no such reason; use one of {', '.join(REASONS)}"
        for reason in reasons
        if not expired and reason not in REASONS
    ]
    times: dict[str, int | None] = {}
    for option, text in (("--since", since), ("--until", until)):
        try:
            times[option] = None if text is None else -(-parse_time(text) // 1000)
        except ValueError as error:
            errors.append(f"{option} {text}: {error}")
    first, end = times.get("--since"), times.get("--until")
    if first is not None and end is not None and first >= end:
        errors.append(f"--until {until}: not after --since {since}; correct one of them")
    pairs = [each.partition("=") for each in headers]
    errors += [
        f"--header {each}: no name; write NAME or NAME=VALUE"
        for each, (name, _, _) in zip(headers, pairs, strict=True)
        if not name
    ]
    if errors:
        raise ConfigError(errors)
    tests = {HeaderTest(name, value if equals else None) for name, equals, value in pairs}
    in_order = sorted(tests, key=lambda test: (test.name, test.value is not None, test.value or ""))
    return Selection(tuple(sorted(set(reasons))), first, end, tuple(in_order))


class LeftOut(StrEnum):
    """Why a record that was chosen is not redriven."""

    TOO_OFTEN = "too often"
    WRITTEN = "written"
    NO_ORIGIN = "no origin"
    KEY_LOST = "key lost"
    UNREADABLE = "unreadable"


EXPLANATIONS = {
    LeftOut.TOO_OFTEN: "have been redriven as often as --max-redriven allows",
    LeftOut.WRITTEN: "were written by another job; --job NAME writes them again",
    LeftOut.NO_ORIGIN: "don't say which input topic they came from; --to TOPIC sends them to one",
    LeftOut.KEY_LOST: 'lost their own key to output.stamp = "key", and dedup.key or input.on_null reads it',
    LeftOut.UNREADABLE: "have a header whose name is not UTF-8, so their headers can't be read",
}


@dataclass(slots=True)
class Group:
    """The records of one reason in one partition: how many, which offsets and timestamps, and a message."""

    records: int = 0
    first_offset: int = -1
    last_offset: int = -1
    oldest_ms: int | None = None
    newest_ms: int | None = None
    example: str = ""

    def add(self, letter: DeadLetter) -> None:
        """Count a record; they come in offset order."""
        if not self.records:
            self.first_offset = letter.offset
            self.example = letter.text(MESSAGE_HEADER)[:_EXAMPLE_CHARACTERS]
        self.records += 1
        self.last_offset = letter.offset
        if letter.timestamp_ms != NO_TIMESTAMP:
            at = letter.timestamp_ms
            self.oldest_ms = at if self.oldest_ms is None else min(at, self.oldest_ms)
            self.newest_ms = at if self.newest_ms is None else max(at, self.newest_ms)


@dataclass(slots=True)
class Summary:
    """What was found: all records read, those to be written by reason and partition, and those left out."""

    read: int = 0
    groups: dict[tuple[str, int], Group] = field(default_factory=dict)
    left_out: dict[LeftOut, int] = field(default_factory=dict)
    destinations: dict[str, int] = field(default_factory=dict)

    @property
    def written(self) -> int:
        """How many records are to be written, or were."""
        return sum(group.records for group in self.groups.values())

    def add(self, reason: str, letter: DeadLetter, topic: str) -> None:
        """Count a record that goes to ``topic``."""
        self.groups.setdefault((reason, letter.partition), Group()).add(letter)
        self.destinations[topic] = self.destinations.get(topic, 0) + 1

    def leave_out(self, why: LeftOut) -> None:
        """Count a record that was chosen and is not written."""
        self.left_out[why] = self.left_out.get(why, 0) + 1
