"""Streams through the vectorised core, in memory, held against the reference model after every batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np

from replayfilter.core.clock.expiry import Rules, future_threshold
from replayfilter.core.frames import Frame, cut_frames
from replayfilter.core.key_run import Run, prepare
from replayfilter.core.replay.marks import Marks
from replayfilter.core.routing import Batch as Decided
from replayfilter.core.routing import Route, ShardState, route_batch
from replayfilter.core.stamp import Stamp, parse_stamps
from tests.support.reference import Decision, Model, Place, Record
from tests.support.streams import Batch, Stream, digest


class MemoryStore(dict[str, bytes]):
    """Runs in a dict; dropping what is not there is an error, as reading it is."""

    def read(self, name: str) -> bytes:
        return prepare(self[name])

    def write(self, name: str, data: bytes) -> None:
        self[name] = data

    def drop(self, name: str) -> None:
        del self[name]


class CoreRun:
    """The shards of one service: their states and stores, and how a batch goes through them."""

    def __init__(self, rules: Rules, max_future_us: int | None, shards: int, digest_kind: str) -> None:
        self.rules = rules
        self.max_future_us = max_future_us
        self.digest_kind = digest_kind
        self.states = [ShardState.empty() for _ in range(shards)]
        self.stores = [MemoryStore() for _ in range(shards)]
        self.repeats: dict[Place, Place] = {}  # duplicate -> the accepted record, in the last batch
        self.stats: list[dict[str, int]] = []  # of the last batch, by shard
        self.twice = 0  # batches decided again from the same state

    @classmethod
    def of(cls, stream: Stream) -> CoreRun:
        return cls(stream.rules, stream.max_future_us, stream.shards, stream.digest_kind)

    def decide(self, batch: Batch, random: Random) -> dict[Place, Route]:
        """The routes of a batch, faults included; ``random`` chooses what must not matter."""
        if batch.period is not None:
            self.rules = replace(self.rules, period=batch.period)
        routes: dict[Place, Route] = {}
        frames: list[list[Frame]] = [[] for _ in self.states]
        runs: dict[tuple[str, int, int], list[Record]] = {}
        for run in _runs(batch):
            place = run[0].place
            runs[place] = run
            for record in run:
                if record.fault:
                    _answer(routes, record.place, Route.ERROR)
            cut = cut_frames(
                *place,
                **self._columns(run, batch.time_us),
                shards=len(self.states),
                changes=self.rules.needs_changes,
            )
            for row in cut.replays.tolist():
                _answer(routes, run[row].place, Route.REPLAY)
            for shard, frame in zip(frames, cut.frames, strict=True):
                shard.append(Frame.from_bytes(frame.to_bytes()) if random.random() < 0.5 else frame)
        self.stats, self.repeats = [], {}
        for number, own in enumerate(frames):
            random.shuffle(own)
            decided = self._decide_shard(number, own, batch.time_us, random)
            for part in decided.routes:
                run = runs[part.topic, part.partition, part.first]
                for row, code in zip(part.rows.tolist(), part.codes.tolist(), strict=True):
                    _answer(routes, run[row].place, Route(code))
                if part.origins is not None:
                    named = [part.origins.names[place] for place in part.origins.place.tolist()]
                    found = zip(part.origins.rows.tolist(), named, part.origins.offset.tolist(), strict=True)
                    self.repeats |= {run[row].place: Place(*place, at) for row, place, at in found}
            self.states[number] = decided.state
            self.stats.append(decided.stats)
        return routes

    def _decide_shard(self, number: int, frames: list[Frame], time_us: int, random: Random) -> Decided:
        state, store = self.states[number], self.stores[number]
        if random.random() < 0.5:
            state = ShardState.from_bytes(state.to_bytes())
        if random.random() < 0.7:
            return route_batch(frames, self.rules, state, store, time_us)
        # A batch that is tried again finds the state as it was, and must decide the same.
        self.twice += 1
        before, copied = state.to_bytes(), MemoryStore(store)
        first = route_batch(frames, self.rules, state, copied, time_us)
        assert state.to_bytes() == before, "route_batch changed the state it was given"
        random.shuffle(frames)
        second = route_batch(iter(frames), self.rules, state, store, time_us)
        assert _comparable(first) == _comparable(second), "a second try decides otherwise"
        assert copied == store, "a second try leaves other runs"
        return second

    def _columns(self, run: list[Record], time_us: int) -> dict[str, object]:
        """The arguments of ``cut_frames`` for a run: its records without fault, column by column."""
        good = [(row, record) for row, record in enumerate(run) if not record.fault]
        expiry = np.array([record.expiry for _, record in good], np.int64)
        digests = [digest(self.digest_kind, record.key) for _, record in good]
        future = None
        if self.max_future_us is not None and self.rules.clock != "none":
            future = expiry > future_threshold(time_us, self.max_future_us, self.rules.unit)
        return {
            "stamps": parse_stamps([blob(record) for _, record in good]) if self.rules.replay else None,
            "expiry": expiry,
            "digests": np.array(digests, np.uint64).reshape(-1, 2),
            "rows": np.array([row for row, _ in good], np.uint32),
            "future": future,
            "input_offset": np.array([record.place.offset for _, record in good], np.int64)
            if self.rules.remember_first
            else None,
        }

    def remembered(self) -> set[tuple[int, int, int | None, int | None]]:
        """(hi, lo, bucket, largest expiry key) of all dedup keys that are kept, None where not kept."""
        newest: dict[tuple[int, int, int | None], int | None] = {}
        for state, store in zip(self.states, self.stores, strict=True):
            for bucket, entries in state.runs.items():
                for entry in entries:
                    run = Run.from_bytes(store[entry.name])
                    assert len(run.hi) == entry.keys, "the directory has another number of keys"
                    assert len(store[entry.name]) == entry.size, "the directory has another size"
                    named = None if self.rules.clock == "none" else bucket
                    ages = run.kept["age"].tolist() if "age" in run.kept else [None] * entry.keys
                    for hi, lo, age in zip(run.hi.tolist(), run.lo.tolist(), ages, strict=True):
                        expiry = None if age is None else bucket * self.rules.span + age
                        old = newest.get((hi, lo, named))
                        newest[hi, lo, named] = expiry if old is None or expiry is None else max(old, expiry)
        return {(*key, expiry) for key, expiry in newest.items()}


def compare(stream: Stream) -> Counter[str]:
    """Decide a stream on both sides; an ``AssertionError`` says where they differ first, and why.

    Returns how often what happened, so that a test can tell that its streams are nasty enough.
    """
    random = Random(f"driver {stream.seed}")
    core, model = CoreRun.of(stream), Model(stream.rules, stream.max_future_us)
    # A category that comes back after all have closed it is new; a model that keeps everything knows it.
    steady = stream.rules.clock != "categorical" and all(b.period is None for b in stream.batches)
    keeper = Model(stream.rules, stream.max_future_us, forgets=False)
    seen: Counter[str] = Counter()
    for number, batch in enumerate(stream.batches):
        expected = model.decide(batch.records, batch.time_us, batch.period)
        if steady:
            kept = keeper.decide(batch.records, batch.time_us)
            assert routes(kept) == routes(expected), f"batch {number}: forgetting shows in the model itself"
        found = core.decide(batch, random)
        for record in sorted(batch.records, key=lambda record: record.place):
            decision, route = expected[record.place], found.get(record.place)
            assert route == decision.route, (
                f"batch {number}, {record}: core says {route!r}, model {decision.route!r}: {decision.why}"
            )
        if stream.rules.remember_first:
            repeats = {place: decision.repeats for place, decision in expected.items() if decision.repeats}
            assert core.repeats == repeats, f"batch {number}: origins {core.repeats}, model {repeats}"
        assert len(found) == len(expected), f"batch {number}: the core answers for records it was not given"
        _compare_states(f"batch {number}", core, model)
        seen.update(route.name for route in found.values())
        seen.update({"gaps": model.gaps, "forgotten": model.forgotten_marks, "batches": 1})
        seen.update({name: sum(shard[name] for shard in core.stats) for name in ("evicted", "false_hits")})
        unique = Counter(r.key for r in batch.records if found[r.place] == Route.UNIQUE)
        seen["accepted again"] += sum(count > 1 for count in unique.values())
    seen["twice"] += core.twice
    seen["spread"] += sum(len(mark.inputs) > 1 for mark in model.marks.values())
    return seen


def routes(decisions: dict[Place, Decision]) -> dict[Place, Route]:
    return {place: decision.route for place, decision in decisions.items()}


def _compare_states(where: str, core: CoreRun, model: Model) -> None:
    expected = {
        source: (mark.offset, mark.seen_us, mark.gaps, len(mark.inputs) > 1)
        for source, mark in model.marks.items()
    }
    for state, store, stats in zip(core.states, core.stores, core.stats, strict=True):
        assert _marks(state.marks) == expected, f"{where}: marks {_marks(state.marks)}, model {expected}"
        names = [entry.name for entries in state.runs.values() for entry in entries]
        assert sorted(names) == sorted(store), f"{where}: the store holds other runs than the directory"
        counted = (stats["gaps"], stats["forgotten"], stats["sources"])
        counts = (model.gaps, model.forgotten_marks, len(model.marks))
        assert counted == counts, f"{where}: gaps, forgotten, sources {counted}, model {counts}"
        if core.rules.clock not in ("none", "categorical") and core.rules.dedup and model.latest is not None:
            assert state.latest == model.latest, f"{where}: latest {state.latest}, model {model.latest}"
    if core.rules.dedup:
        kept = _remembered(core, model)
        assert core.remembered() == kept, f"{where}: remembers {core.remembered()}, model {kept}"


def _remembered(core: CoreRun, model: Model) -> set[tuple[int, int, int | None, int | None]]:
    newest: dict[tuple[int, int | None], int] = {}
    timeless = core.rules.clock == "none"
    for key, expiries in model.accepted.items():
        for expiry in expiries:
            bucket = None if timeless else expiry // core.rules.span
            if core.rules.clock == "categorical":
                bucket = expiry
            newest[key, bucket] = max(expiry, newest.get((key, bucket), expiry))
    aged = core.rules.keeps_ages
    return {
        (*digest(core.digest_kind, key), bucket, expiry if aged else None)
        for (key, bucket), expiry in newest.items()
    }


def _marks(marks: Marks) -> dict[tuple[int, int], tuple[int, int, int, bool]]:
    columns = (marks.pid, marks.partition, marks.mark, marks.seen, marks.gaps, marks.spread)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    found = {(pid, partition): tuple(rest) for pid, partition, *rest in rows}
    assert len(found) == len(rows), "a source has two marks"
    return found


def _runs(batch: Batch) -> list[list[Record]]:
    runs: list[list[Record]] = []
    for record in sorted(batch.records, key=lambda record: record.place):
        if not runs or record.place[:2] != runs[-1][0].place[:2] or record.place in batch.cuts:
            runs.append([])
        runs[-1].append(record)
    return runs


def blob(record: Record) -> bytes | None:
    if record.source is None or record.stamped is None:
        return None if record.key % 2 else b"a key that is not a stamp"
    return Stamp(*record.source, record.stamped).to_bytes()


def _answer(routes: dict[Place, Route], place: Place, route: Route) -> None:
    assert place not in routes, f"{place} is answered twice: {routes.get(place)!r} and {route!r}"
    routes[place] = route


def _comparable(batch: Decided) -> object:
    parts: list[object] = [
        (p.topic, p.partition, p.first, p.rows.tolist(), p.codes.tolist()) for p in batch.routes
    ]
    parts += [
        (o.rows.tolist(), o.place.tolist(), o.offset.tolist()) for p in batch.routes if (o := p.origins)
    ]
    return parts, batch.state.to_bytes(), batch.stats


def shrink(stream: Stream) -> tuple[Stream, AssertionError | Exception]:
    """A stream with as few records as still make :func:`compare` fail, and its failure."""
    failure = _failure(stream)
    assert failure is not None, "only a failing stream can be shrunk"
    size = max(1, sum(1 for _ in stream.records()) // 2)
    while size:
        at, smaller = 0, False
        while at < sum(1 for _ in stream.records()):
            candidate = _without(stream, at, at + size)
            found = _failure(candidate)
            if found is None:
                at += size
            else:
                stream, failure, smaller = candidate, found, True
        size = size // 2 if size > 1 or not smaller else 1
    return stream, failure


def _failure(stream: Stream) -> Exception | None:
    try:
        compare(stream)
    except Exception as failure:
        return failure
    return None


def _without(stream: Stream, start: int, end: int) -> Stream:
    gone = {record.place for record in list(stream.records())[start:end]}
    batches = (
        replace(batch, records=tuple(record for record in batch.records if record.place not in gone))
        for batch in stream.batches
    )
    kept = tuple(batch for batch in batches if batch.records or batch.period is not None)
    return replace(stream, batches=kept)


def describe(stream: Stream) -> str:
    """A failing stream in words: what is left of it when shrunk, and what both sides say."""
    small, failure = shrink(stream)
    model = Model(small.rules, small.max_future_us)
    lines = [
        f"make_stream({stream.seed}, {stream.profile!r}) -> {type(failure).__name__}: {failure}",
        f"{small.rules}, max_future_us={small.max_future_us}, shards={small.shards}, "
        f"digests={small.digest_kind}",
    ]
    for number, batch in enumerate(small.batches):
        lines.append(f"batch {number} at {batch.time_us} us, period {batch.period or 'as before'}")
        decisions = model.decide(batch.records, batch.time_us, batch.period)
        for record in sorted(batch.records, key=lambda record: record.place):
            decision = decisions[record.place]
            run = "run" if record.place in batch.cuts else "   "
            stamp = f"{tuple(record.source)}+{record.stamped}" if record.source else "no stamp"
            lines.append(
                f"  {run} {tuple(record.place)} {stamp} key {record.key} expiry {record.expiry}: "
                f"{decision.route.name}, {decision.why}"
            )
    return "\n".join(lines)
