"""An audit of the stamps in a sample of a topic: sources, gaps, replays, and what breaks replay filtering.

A replay filter drops every record at or below the mark of its source. That is right for replays and loses
records otherwise, so the audit looks for signs of the other cases. Give it the records of each partition in
their order. For the records of one source it distinguishes:

- *replay*: an offset at or below the mark that occurred before in the sample, or is below the sample's first
  offset;
- *out of order*: an offset at or below the mark that did not occur before. A filter drops this record, and
  it is lost;
- *two writers*: a job that starts again goes back, rises to the mark, and then on above it. If the offsets
  jump from below the mark to above it again and again, two jobs write side by side with one pid;
- *not a stamp, though 20 bytes long*: source partitions are small, and neither partitions nor offsets are
  negative. One in 8,000 random values, such as a SHA-1, passes this check.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.stamp import Stamp, Stamps

MAX_PARTITION = 1_000_000  # no topic has more partitions, so a larger number is not from a stamp
MIN_JUMPS = 3  # fewer may come from one takeover by a second instance of a job
# From this many steps back on, and with more than this share of replays, either two jobs write in step or
# one job crashes all the time.
MIN_RETURNS = 5
MIN_REPLAYED = 0.4
SHOWN_SOURCES = 3  # a warning names this many sources

Source = tuple[int, int]  # pid and source partition


def unlikely(stamps: Stamps) -> NDArray[np.bool_]:
    """bool[n]: which have the length of a stamp, but numbers that no stamping producer writes."""
    wrong = (stamps.partitions < 0) | (stamps.partitions >= MAX_PARTITION) | (stamps.offsets < 0)
    return stamps.valid & wrong


class WarningKind(Enum):
    """Kinds of warnings."""

    NOT_STAMPS = auto()
    UNSTAMPED = auto()
    TWO_WRITERS = auto()
    OUT_OF_ORDER = auto()
    SEVERAL_PARTITIONS = auto()


_ABOUT_SOURCES = {  # what is wrong with a source, and the remedy; in the order of the warnings
    WarningKind.TWO_WRITERS: (
        "two jobs seem to write side by side with the same pid, so that the records of the slower one are "
        "dropped as replays and lost (or one job crashes all the time); give each job its own name in its "
        "pid, and stop second instances"
    ),
    WarningKind.OUT_OF_ORDER: (
        "offsets out of order, which the filter drops as replays; write the records of a source in source "
        "order, with an idempotent producer and acks=all"
    ),
    WarningKind.SEVERAL_PARTITIONS: (
        "records in more than one partition, where their order is not kept; write to partition *source "
        "partition % partitions*, and let readers reach the end before a topic gets more partitions"
    ),
}


@dataclass(frozen=True, slots=True)
class AuditWarning:
    """Something that breaks replay filtering: its kind, a sentence, and the sources it is about."""

    kind: WarningKind
    message: str
    sources: tuple[Source, ...] = ()


@dataclass(slots=True)
class SourceAudit:
    """The records of one source in the sample."""

    records: int = 0
    first: int = 0
    mark: int = 0
    gaps: int = 0
    missing: int = 0  # offsets in the gaps
    replays: int = 0
    returns: int = 0  # how often the offset went back, or stayed
    out_of_order: int = 0
    jumps: int = 0  # from below the mark to above it
    partitions: set[int] = field(default_factory=set)
    _last: int = 0
    _starts: list[int] = field(default_factory=list)  # ranges of offsets that occurred, ascending
    _ends: list[int] = field(default_factory=list)

    def add(self, partition: int, offset: int) -> None:
        """Add the next record."""
        self.partitions.add(partition)
        self.records += 1
        if self.records == 1:
            self.first = self.mark = offset
            self._starts, self._ends = [offset], [offset]
        elif offset > self.mark:
            self.jumps += self._last < self.mark and offset > self._last + 1
            self.gaps += offset > self.mark + 1
            self.missing += offset - self.mark - 1
            if offset == self._ends[-1] + 1:
                self._ends[-1] = offset
            else:
                self._starts.append(offset)
                self._ends.append(offset)
            self.mark = offset
        else:
            self.returns += offset <= self._last
            if offset < self.first or self._occurred(offset):
                self.replays += 1
            else:
                self.out_of_order += 1
                self._insert(offset)
        self._last = offset

    @property
    def two_writers(self) -> bool:
        """Whether two jobs seem to write this source side by side."""
        in_step = self.returns >= MIN_RETURNS and self.replays > MIN_REPLAYED * self.records
        return self.jumps >= MIN_JUMPS or in_step

    def _occurred(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset <= self._ends[at]

    def _insert(self, offset: int) -> None:
        at = bisect_right(self._starts, offset)
        self._starts.insert(at, offset)
        self._ends.insert(at, offset)


class StampAudit:
    """The audit of a sample of a topic.

    ``sources``: the audit of each source. ``stamped``, ``unstamped``, ``unlikely``: how many records have a
    stamp, have none, and have 20 bytes that are no stamp.

    >>> audit = StampAudit()
    >>> for offset in (1, 2, 3, 2, 3, 4):
    ...     audit.add(0, Stamp(7, 0, offset).to_bytes())
    >>> audit.sources[7, 0].replays, audit.warnings()
    (2, [])
    """

    def __init__(self) -> None:
        self.sources: dict[Source, SourceAudit] = {}
        self.stamped = 0
        self.unstamped = 0
        self.unlikely = 0

    def add(self, partition: int, value: bytes | None) -> None:
        """Add the next record of a partition; ``value``: the key or header that should have the stamp."""
        stamp = Stamp.from_bytes(value)
        if stamp is None:
            self.unstamped += 1
        elif not (0 <= stamp.partition < MAX_PARTITION and stamp.offset >= 0):
            self.unlikely += 1
        else:
            self.stamped += 1
            source = self.sources.get(stamp[:2])
            if source is None:
                source = self.sources[stamp[:2]] = SourceAudit()
            source.add(partition, stamp.offset)

    def warnings(self) -> list[AuditWarning]:
        """Everything that breaks replay filtering. Replays and gaps don't."""
        found = []
        if self.unlikely:
            message = (
                f"{self.unlikely:,} records have 20 bytes where the stamp should be, but not a stamp (the "
                "partition or offset is negative or huge), for example a SHA-1: each value would count as a "
                "source of its own, and the second of two equal values as a replay, so records are lost; "
                'stamp in the header (input.stamp = "header"), or set "none" if nothing is stamped'
            )
            found.append(AuditWarning(WarningKind.NOT_STAMPS, message))
        if self.unstamped and self.stamped:
            message = (
                f"{self.unstamped:,} of {self.unstamped + self.stamped:,} records have no stamp: their "
                "replays pass; stamp the records in every job that writes to the topic"
            )
            found.append(AuditWarning(WarningKind.UNSTAMPED, message))
        return found + self._source_warnings()

    def _source_warnings(self) -> list[AuditWarning]:
        """One warning per kind, about all of its sources."""
        described: dict[WarningKind, dict[Source, str]] = {kind: {} for kind in _ABOUT_SOURCES}
        for (pid, partition), source in sorted(self.sources.items()):
            name = f"source {pid}/{partition}"
            if source.two_writers:
                described[WarningKind.TWO_WRITERS][pid, partition] = name
            elif source.out_of_order:
                text = f"{name} ({source.out_of_order:,} records)"
                described[WarningKind.OUT_OF_ORDER][pid, partition] = text
            if len(source.partitions) > 1:
                text = f"{name} (partitions {', '.join(map(str, sorted(source.partitions)))})"
                described[WarningKind.SEVERAL_PARTITIONS][pid, partition] = text
        found = []
        for kind, texts in described.items():
            if texts:
                shown = list(texts.values())[:SHOWN_SOURCES]
                more = f" and {len(texts) - SHOWN_SOURCES} more" if len(texts) > SHOWN_SOURCES else ""
                message = f"{', '.join(shown)}{more}: {_ABOUT_SOURCES[kind]}"
                found.append(AuditWarning(kind, message, tuple(texts)))
        return found
