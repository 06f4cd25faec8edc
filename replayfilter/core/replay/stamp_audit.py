"""What a sample of a stamped topic tells: sources, gaps, replays, and what makes replay filtering go wrong.

Give it each partition's records in their order. What it can tell apart, for the records of one source:

- *replay*: an offset at or below the mark that was in the sample before, or lies before the sample's first;
- *out of order*: one at or below the mark that was not there before. A filter drops it: a record is lost;
- *two writers*: a job that starts again climbs from where it went back up to its mark, and then on. Where
  the offsets jump from below the mark over it, again and again, two jobs write side by side with one pid;
- *no stamp though 20 bytes long*: source partitions are small and never negative, offsets never negative.
  Of random bytes, such as a SHA-1, one in 8,000 looks like that.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from replayfilter.core.stamp import Stamp

PARTITIONS_MAX = 1_000_000  # a source partition above this is none: no topic has so many
JUMPS_MAX = 3  # one takeover by a second instance may look like a jump; more are two writers
MANY_RETURNS = 5  # with this many steps back, and replays being this share of the records, either two jobs
REPLAYED_MOST = 0.4  # write in step, or one crashes all the time


@dataclass(slots=True)
class SourceAudit:
    """One source, a pair of pid and source partition, in the sample."""

    records: int = 0
    first: int = 0
    mark: int = 0
    gaps: int = 0
    missing: int = 0  # offsets that the gaps leave out
    replays: int = 0
    returns: int = 0  # times that the offset went back, or stayed
    out_of_order: int = 0
    jumps: int = 0  # from below the mark over it
    partitions: set[int] = field(default_factory=set)
    _last: int = 0
    _starts: list[int] = field(default_factory=list)  # stretches of offsets seen, ascending
    _ends: list[int] = field(default_factory=list)

    def add(self, partition: int, offset: int) -> None:
        """The next record."""
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
            if offset < self.first or self._saw(offset):
                self.replays += 1
            else:
                self.out_of_order += 1
                self._fill(offset)
        self._last = offset

    @property
    def two_writers(self) -> bool:
        """Whether two jobs seem to write this source side by side."""
        in_step = self.returns >= MANY_RETURNS and self.replays > REPLAYED_MOST * self.records
        return self.jumps >= JUMPS_MAX or in_step

    def _saw(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset <= self._ends[at]

    def _fill(self, offset: int) -> None:
        at = bisect_right(self._starts, offset)
        self._starts.insert(at, offset)
        self._ends.insert(at, offset)


class StampAudit:
    """A sample of a topic; ``stamped``, ``unstamped`` and ``unlikely`` count its records.

    >>> survey = StampAudit()
    >>> for offset in (1, 2, 3, 2, 3, 4):
    ...     survey.add(0, Stamp(7, 0, offset).to_bytes())
    >>> survey.sources[7, 0].replays, survey.warnings()
    (2, [])
    """

    def __init__(self) -> None:
        self.sources: dict[tuple[int, int], SourceAudit] = {}
        self.stamped = 0
        self.unstamped = 0
        self.unlikely = 0

    def add(self, partition: int, blob: bytes | None) -> None:
        """The next record of a partition; ``blob`` is what stands where the stamp should be."""
        stamp = Stamp.from_bytes(blob)
        if stamp is None:
            self.unstamped += 1
        elif not (0 <= stamp.partition < PARTITIONS_MAX and stamp.offset >= 0):
            self.unlikely += 1
        else:
            self.stamped += 1
            source = self.sources.get(stamp[:2])
            if source is None:
                source = self.sources[stamp[:2]] = SourceAudit()
            source.add(partition, stamp.offset)

    def warnings(self) -> list[str]:
        """What will go wrong, a sentence each with the remedy; replays and gaps are no faults."""
        found = []
        if self.unlikely:
            found.append(
                f"{self.unlikely:,} records have 20 bytes where the stamp should be that are none (its "
                "partition or offset is negative or huge), such as a SHA-1: each would count as a source of "
                "its own, the second of two equal ones as a replay, so that records are lost; stamp in the "
                'header (input.stamp = "header"), or set "none" if nobody stamps'
            )
        if self.unstamped and self.stamped:
            found.append(
                f"{self.unstamped:,} of {self.unstamped + self.stamped:,} records have no stamp: their "
                "replays pass; let every job that writes the topic stamp"
            )
        for name, told in self._of_sources().items():
            if told:
                more = f" and {len(told) - 3} more" if len(told) > 3 else ""
                found.append(f"{', '.join(told[:3])}{more}: {name}")
        return found

    def _of_sources(self) -> dict[str, list[str]]:
        kinds: dict[str, list[str]] = {
            "two jobs seem to write side by side with the same pid, so that the records of the slower "
            "one are taken for replays and lost (or one job crashes all the time); give each job a name of "
            "its own in its pid, and stop second instances": [],
            "offsets out of order, which the filter takes for replays and drops; write the records of a "
            "source in source order, with an idempotent producer and acks=all": [],
            "records in more than one partition, where their order is not kept; write to partition *source "
            "partition % partitions*, and let readers reach the end before a topic gets more": [],
        }
        writers, disorder, spread = kinds.values()
        for (pid, partition), source in sorted(self.sources.items()):
            name = f"source {pid}/{partition}"
            if source.two_writers:
                writers.append(name)
            elif source.out_of_order:
                disorder.append(f"{name} ({source.out_of_order:,} records)")
            if len(source.partitions) > 1:
                spread.append(f"{name} (partitions {', '.join(map(str, sorted(source.partitions)))})")
        return kinds
