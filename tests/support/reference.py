"""The reference model: the route of each record, decided one record at a time with dicts and ints.

It is slow and obvious on purpose: read it as the specification of what the vectorised core must decide. It
knows nothing of shards, frames, runs or overflow. From the core it uses only the names of the routes and of
the clocks, and the plain numbers in ``Rules`` and ``BatchFacts``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock.clocks import Clock
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.routing import Route
from replayfilter.core.rules import Match, OnNull, Rules, Scope

HOUR_US = 3600 * 10**6
NOTHING: Mapping[str, Any] = MappingProxyType({})
Key = tuple[int, InputPartition | None]  # a dedup key, and the only input partition in which it counts
UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1, "iso8601": 10**3}


class Position(NamedTuple):
    """Where a record is in the input; the records of a batch are decided in this order."""

    topic: str
    partition: int
    offset: int


class Source(NamedTuple):
    """A source: the pid of the producing job, and the partition that it read."""

    pid: int
    partition: int


@dataclass(frozen=True)
class Record:
    """A record as decode sees it. ``stamped``: its source offset, None without a ``source``."""

    position: Position
    source: Source | None
    stamped: int | None
    key: int
    expiry: int
    broken: bool = False  # it can't be parsed
    content: int = 1  # what is compared to find conflicts
    null: bool = False  # it has no value: the key is that of its Kafka key, and the expiry key means nothing


class Accepted(NamedTuple):
    """An accepted record: where it is, and its content.

    ``content`` has a name, since contents of two names can't be compared. It is None if it is not known: then
    nothing conflicts with it.
    """

    position: Position
    content: tuple[str, int] | None


@dataclass(frozen=True)
class Decision:
    """A route, and why; of a duplicate the first record, of an expired record how far it is behind.

    ``age``: how far a record is behind the latest point; of a duplicate ``apart``: how far that is ahead of
    what it repeats. None where there is no such length, or it is not known.
    """

    route: Route
    why: str
    first: Position | None = None
    late: int | None = None
    age: int | None = None
    apart: int | None = None


@dataclass
class Mark:
    """The mark of a source after a batch, and what else is known of the source."""

    offset: int
    seen_us: int  # in mark time
    gaps: int = 0
    partitions: set[InputPartition] = field(default_factory=set)  # where its records were


@dataclass
class View:
    """What the records of one input partition see while a batch is decided.

    They see the state before the batch, and the records before them in their own partition. They never see
    records of other partitions in the same batch, because those may be decided elsewhere at the same time.
    """

    marks: dict[Source, int]
    latest: int | None
    gaps: dict[Source, int] = field(default_factory=dict)
    sources: set[Source] = field(default_factory=set)


class Model:
    """Decides batches, and remembers. ``max_future_us`` None: no record is in the future.

    ``forgets=False`` keeps every dedup key for ever. As long as the period is not changed, the routes must
    be the same.
    """

    def __init__(self, rules: Rules, max_future_us: int | None = None, *, forgets: bool = True) -> None:
        self.rules = rules
        self.max_future_us = max_future_us
        self.forgets = forgets
        self.marks: dict[Source, Mark] = {}
        self.latest: int | None = None
        self.time_us: int | None = None  # of the last batch
        self.mark_time_us = 0
        self.categories: dict[InputPartition, list[int]] = {}  # in the order in which they first appeared
        self.accepted: dict[Key, list[int]] = {}  # dedup key -> expiry keys at which it is remembered
        self.firsts: dict[tuple[Key, int], Accepted] = {}  # (dedup key, expiry key) -> the accepted record
        self.forgotten_marks = 0  # in the last batch
        self.gaps = 0  # in the last batch
        self.refreshed = 0  # duplicates that have started the period again

    def decide(
        self, records: Iterable[Record], facts: BatchFacts, changed: Mapping[str, Any] = NOTHING
    ) -> dict[Position, Decision]:
        """Decide one batch; ``changed``: settings of the rules that are others from this batch on."""
        self.rules, time_us = replace(self.rules, **changed), facts.time_us
        self._advance_mark_time(time_us)
        if self.rules.clock is Clock.SYSTEM:
            now = self._time_in_unit(facts.believed_us)
            wrong = self.latest is not None and self.latest > self._time_in_unit(facts.believed_us + HOUR_US)
            self.latest = now if self.latest is None or wrong else max(self.latest, now)
        if self.rules.clock is not Clock.CATEGORICAL:
            self._forget_expired_buckets()

        marks_before = {source: mark.offset for source, mark in self.marks.items()}
        latest_before = self.latest
        decisions: dict[Position, Decision] = {}
        views: dict[InputPartition, View] = {}
        for (topic, partition), own in groupby(sorted(records, key=_position), key=_partition):
            view = views[topic, partition] = View(dict(marks_before), latest_before)
            for record in own:
                decisions[record.position] = self._decide_record(record, view, time_us)

        self._commit(views)
        self._forget_idle_marks(facts.caught_up)
        self._forget_expired_buckets()
        return decisions

    def _decide_record(self, record: Record, view: View, time_us: int) -> Decision:
        if record.broken:
            return Decision(Route.ERROR, "broken: it moves neither the mark nor the latest point")
        replay_of = self._pass_mark(record, view)
        if replay_of is not None:
            return Decision(Route.REPLAY, f"offset {record.stamped} is not above the mark {replay_of}")
        if not self.rules.dedup:
            return Decision(Route.UNIQUE, "no dedup: no record is future, expired or duplicate")
        if record.null:
            return self._decide_null(record, view)
        if self._is_future(record, time_us):
            return Decision(Route.FUTURE, f"later than batch time {time_us} us + {self.max_future_us} us")
        if self._is_jump(record, view):
            return Decision(Route.JUMP, f"more than {self.rules.max_jump} above {view.latest}")
        if self.rules.clock is Clock.CATEGORICAL:
            behind = self._categories_behind(record)
            if behind > self.rules.period:
                return Decision(
                    Route.EXPIRED, f"{behind} categories came after, {self.rules.period} stay open"
                )
        elif self.rules.clock in (Clock.TUPLE, Clock.ORDERED):
            view.latest = record.expiry if view.latest is None else max(view.latest, record.expiry)
        if self.rules.clock in (Clock.NONE, Clock.CATEGORICAL):
            age = None
        else:
            assert view.latest is not None
            age = view.latest - record.expiry
            if age >= self.rules.period:
                why = f"{age} behind {view.latest}, period {self.rules.period}"
                return Decision(Route.EXPIRED, why, late=age, age=age)
        return replace(self._search_key(record, view.latest, f"age {age}"), age=age)

    def _decide_null(self, record: Record, view: View) -> Decision:
        """A null value is as old as the latest point; before there is one, older than all that has a time."""
        if self.rules.on_null is OnNull.UNIQUE:
            return Decision(Route.UNIQUE, "null")
        if self.rules.clock is Clock.NONE:
            return self._search_key(record, None, "null")
        latest = -(2**63) if view.latest is None else view.latest
        age = 0 if self.rules.clock.has_latest_point else None
        return replace(self._search_key(replace(record, expiry=latest), latest, "null"), age=age)

    def _search_key(self, record: Record, latest: int | None, age: str) -> Decision:
        first = self._first_accepted(record, latest)
        if first is not None:
            why = f"key accepted with expiry key {first}, latest {latest}"
            position, known = self.firsts[self._key(record), first]
            if known is not None and known[0] != self.rules.content:
                known = None
            if self.rules.refresh and record.expiry > first:  # never back: the record may be out of order
                self.refreshed += 1
                self.accepted[self._key(record)] = [record.expiry]
                self.firsts[self._key(record), record.expiry] = Accepted(position, known)
            content = self._content(record)
            timed = latest is not None and self.rules.keeps_ages and not self.rules.refresh
            apart = latest - first if latest is not None and timed else None
            if known is not None and content is not None and known != content:
                return Decision(
                    Route.CONFLICT, f"{why}, content {content}, not {known}", position, apart=apart
                )
            return Decision(Route.DUPLICATE, why, position, apart=apart)
        before = self.accepted.setdefault(self._key(record), [])
        why = f"{age}, latest {latest}, accepted before: {before}"
        before.append(record.expiry)
        self.firsts[self._key(record), record.expiry] = Accepted(record.position, self._content(record))
        return Decision(Route.UNIQUE, why)

    def _content(self, record: Record) -> tuple[str, int] | None:
        if not self.rules.content or record.null:
            return None
        return self.rules.content, record.content

    def _pass_mark(self, record: Record, view: View) -> int | None:
        """Advance the mark of the source; if the record is a replay, return the mark that it is not above."""
        if not self.rules.replay or record.source is None or record.stamped is None:
            return None
        view.sources.add(record.source)
        mark = view.marks.get(record.source)
        if mark is not None and record.stamped <= mark:
            return mark
        if mark is not None and record.stamped > mark + 1:
            view.gaps[record.source] = view.gaps.get(record.source, 0) + 1
        view.marks[record.source] = record.stamped
        return None

    def _is_future(self, record: Record, time_us: int) -> bool:
        if self.max_future_us is None or self.rules.clock is Clock.NONE:
            return False
        return record.expiry * UNIT_NS[self.rules.unit] > (time_us + self.max_future_us) * 1000

    def _is_jump(self, record: Record, view: View) -> bool:
        if self.rules.clock is not Clock.ORDERED or self.rules.max_jump is None or view.latest is None:
            return False
        return record.expiry - view.latest > self.rules.max_jump

    def _categories_behind(self, record: Record) -> int:
        """How many categories have appeared in the record's input partition after the record's own."""
        known = self.categories.setdefault(_partition(record), [])
        if record.expiry not in known:
            known.append(record.expiry)
        return len(known) - 1 - known.index(record.expiry)

    def _first_accepted(self, record: Record, latest: int | None) -> int | None:
        """The expiry key of the newest unique record that makes this one its duplicate."""
        for accepted in sorted(self.accepted.get(self._key(record), []), reverse=True):
            if self.rules.clock is Clock.NONE:
                return accepted
            if self.rules.match is Match.BUCKET:
                if self._bucket(accepted) == self._bucket(record.expiry):
                    return accepted
            elif self._is_within_period(accepted, latest):
                return accepted
        return None

    def _key(self, record: Record) -> Key:
        return record.key, _partition(record) if self.rules.scope is Scope.PARTITION else None

    def _is_within_period(self, accepted: int, latest: int | None) -> bool:
        if self.rules.clock is Clock.CATEGORICAL:
            return True  # otherwise it would have been forgotten
        return latest is not None and latest - accepted < self.rules.period

    def _advance_mark_time(self, time_us: int) -> None:
        """By the time since the last batch, but neither back nor by more than an hour."""
        if self.time_us is None:
            self.mark_time_us = time_us
        elif time_us > self.time_us:
            self.mark_time_us += min(time_us - self.time_us, HOUR_US)
        self.time_us = time_us

    def _commit(self, views: dict[InputPartition, View]) -> None:
        self.gaps = 0
        for partition, view in views.items():
            if view.latest is not None:
                self.latest = view.latest if self.latest is None else max(self.latest, view.latest)
            for source in view.sources:
                offset = view.marks[source]
                mark = self.marks.setdefault(source, Mark(offset, self.mark_time_us))
                mark.offset = max(mark.offset, offset)
                mark.seen_us = self.mark_time_us
                mark.partitions.add(partition)
                mark.gaps += view.gaps.get(source, 0)
                self.gaps += view.gaps.get(source, 0)

    def _forget_idle_marks(self, caught_up: bool) -> None:
        """Not while there is more to read: a source that seems idle may be in what comes next."""
        ages = {source: self.mark_time_us - mark.seen_us for source, mark in self.marks.items()}
        idle = [source for source, age in ages.items() if caught_up and age > self.rules.mark_ttl_us]
        for source in idle:
            del self.marks[source]
        self.forgotten_marks = len(idle)

    def _forget_expired_buckets(self) -> None:
        """A bucket is forgotten when all of its keys have expired."""
        if not self.forgets or not self.rules.dedup or self.rules.clock is Clock.NONE:
            return
        for key, expiries in list(self.accepted.items()):
            kept = [expiry for expiry in expiries if self._keeps_bucket(expiry)]
            self.accepted[key] = kept
            if not kept:
                del self.accepted[key]

    def _keeps_bucket(self, expiry: int) -> bool:
        if self.rules.clock is Clock.CATEGORICAL:
            return any(expiry in known[-(self.rules.period + 1) :] for known in self.categories.values())
        return self.latest is None or self.latest - self._end(expiry) < self.rules.period

    def _bucket(self, expiry: int) -> int:
        if self.rules.clock is Clock.CATEGORICAL:
            return expiry
        return expiry // self.rules.span

    def _end(self, expiry: int) -> int:
        """The largest expiry key of the same bucket."""
        return (self._bucket(expiry) + 1) * self.rules.span - 1

    def _time_in_unit(self, time_us: int) -> int:
        return time_us * 1000 // UNIT_NS[self.rules.unit]


def _position(record: Record) -> Position:
    return record.position


def _partition(record: Record) -> InputPartition:
    return record.position.topic, record.position.partition
