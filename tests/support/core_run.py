"""Runs streams through the vectorised core, in memory, and compares it with the reference model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from random import Random
from typing import Any

import numpy as np
from hypothesis import find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock.clocks import Clock
from replayfilter.core.clock.units import future_threshold
from replayfilter.core.digest import partition_salt
from replayfilter.core.frames import ChunkId, Frame, cut_frames
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.key_run import Run, with_bloom
from replayfilter.core.replay.marks import Marks
from replayfilter.core.routing import FirstSeen, Route, RoutedBatch, Routes, route_batch
from replayfilter.core.rules import Rules, Scope
from replayfilter.core.stamp import Stamp, parse_stamps
from replayfilter.core.state import ShardState
from tests.support.reference import Decision, Key, Model, Position, Record
from tests.support.streams import Batch, Stream, digest


class MemoryStore(dict[str, bytes]):
    """Runs in a dict. Reading or dropping a run that is not there is an error."""

    def read(self, name: str) -> bytes:
        return with_bloom(self[name])

    def write(self, name: str, data: bytes) -> None:
        self[name] = data

    def drop(self, name: str) -> None:
        del self[name]


class CoreRun:
    """The shards of one service: their states and stores, and how they decide a batch."""

    def __init__(self, rules: Rules, max_future_us: int | None, shards: int, digest_kind: str) -> None:
        self.rules = rules
        self.max_future_us = max_future_us
        self.digest_kind = digest_kind
        self.states = [ShardState.empty() for _ in range(shards)]
        self.stores = [MemoryStore() for _ in range(shards)]
        self.firsts: dict[Position, Position] = {}  # duplicate -> first record, in the last batch
        self.late: dict[Position, int] = {}  # how far each expired record of the last batch is behind
        self.stats: list[dict[str, int]] = []  # in the last batch, by shard
        self.twice = 0  # batches decided twice from the same state

    @classmethod
    def of(cls, stream: Stream) -> CoreRun:
        return cls(stream.rules, stream.max_future_us, stream.shards, stream.digest_kind)

    def decide(self, batch: Batch, random: Random) -> dict[Position, Route]:
        """The routes of a batch, errors included. ``random`` chooses what must make no difference."""
        self.rules = replace(self.rules, **batch.changed)
        routes: dict[Position, Route] = {}
        frames: list[list[Frame]] = [[] for _ in self.states]
        chunks: dict[tuple[str, int, int], list[Record]] = {}
        for together in _read_together(_chunks(batch), random):
            chunks |= {chunk[0].position: chunk for chunk in together}
            for record in chain.from_iterable(together):
                if record.broken:
                    _add_route(routes, record.position, Route.ERROR)
            good = [[record for record in chunk if not record.broken] for chunk in together]
            cut = cut_frames(
                [ChunkId(*chunk[0].position) for chunk in together],
                np.cumsum([len(records) for records in good]),
                **self._columns(together, batch.facts.time_us),
                shards=len(self.states),
                chunk_shards=self._chunk_shards(together),
                expiry_order=self.rules.needs_expiry_order,
            )
            given = list(chain.from_iterable(good))
            for row in cut.replays.tolist():
                _add_route(routes, given[row].position, Route.REPLAY)
            for shard, frame in zip(frames, cut.frames, strict=True):
                shard.append(Frame.from_bytes(frame.to_bytes()) if random.random() < 0.5 else frame)
        self.stats, self.firsts, self.late = [], {}, {}
        for number, own in enumerate(frames):
            random.shuffle(own)
            decided = self._decide_shard(number, own, batch.facts, random)
            for part in decided.routes:
                chunk = chunks[part.topic, part.partition, part.first]
                for row, code in zip(part.rows.tolist(), part.codes.tolist(), strict=True):
                    _add_route(routes, chunk[row].position, Route(code))
                for row, first in _firsts(part.first_seen):
                    self.firsts[chunk[row].position] = first
                self.late |= {chunk[row].position: late for row, late in _late(part)}
            self.states[number] = decided.state
            self.stats.append(decided.stats)
        return routes

    def _decide_shard(
        self, number: int, frames: list[Frame], facts: BatchFacts, random: Random
    ) -> RoutedBatch:
        state, store = self.states[number], self.stores[number]
        if random.random() < 0.5:
            state = ShardState.from_bytes(state.to_bytes())
        if random.random() < 0.7:
            return route_batch(frames, self.rules, state, store, facts)
        # A batch that is tried again starts from the same state, and must be decided in the same way.
        self.twice += 1
        before, copied = state.to_bytes(), MemoryStore(store)
        first = route_batch(frames, self.rules, state, copied, facts)
        assert state.to_bytes() == before, "route_batch changed the state it was given"
        random.shuffle(frames)
        second = route_batch(iter(frames), self.rules, state, store, facts)
        assert _comparable(first) == _comparable(second), "a second attempt decides differently"
        assert copied == store, "a second attempt leaves other runs"
        return second

    def _columns(self, chunks: list[list[Record]], time_us: int) -> dict[str, Any]:
        """The arguments of ``cut_frames`` for chunks: the records that are not broken, column by column."""
        good = [(row, record) for chunk in chunks for row, record in enumerate(chunk) if not record.broken]
        expiry = np.array([record.expiry for _, record in good], np.int64)
        digests = [self._digest(record) for _, record in good]
        future = None
        if self.max_future_us is not None and self.rules.clock.expires:
            future = expiry > future_threshold(time_us, self.max_future_us, self.rules.unit)
        return {
            "stamps": parse_stamps([blob(record) for _, record in good]) if self.rules.replay else None,
            "expiry": expiry,
            "digests": np.array(digests, np.uint64).reshape(-1, 2),
            "rows": np.array([row for row, _ in good], np.uint32),
            "future": future,
            "input_offset": np.array([record.position.offset for _, record in good], np.int64)
            if self.rules.remember_first
            else None,
            "null": np.array([record.null for _, record in good], np.bool_),
        }

    def _chunk_shards(self, chunks: list[list[Record]]) -> list[int] | None:
        if not self.rules.shards_by_partition:
            return None
        firsts = (chunk[0].position for chunk in chunks)
        return [(ord(first.topic) + first.partition) % len(self.states) for first in firsts]

    def _digest(self, record: Record) -> tuple[int, int]:
        within = record.position[:2] if self.rules.scope is Scope.PARTITION else None
        return salted(digest(self.digest_kind, record.key), within)

    def remembered(self) -> set[tuple[int, int, int | None, int | None]]:
        """(hi, lo, bucket, largest expiry key) of all dedup keys; None for what the state doesn't have."""
        newest: dict[tuple[int, int, int | None], int | None] = {}
        for state, store in zip(self.states, self.stores, strict=True):
            for bucket, entries in state.runs.items():
                for entry in entries:
                    run = Run.from_bytes(store[entry.name])
                    assert len(run.hi) == entry.keys, "wrong number of keys in the directory"
                    assert len(store[entry.name]) == entry.size, "wrong size in the directory"
                    named = bucket if self.rules.clock.expires else None
                    ages = run.kept["age"].tolist() if "age" in run.kept else [None] * entry.keys
                    for hi, lo, age in zip(run.hi.tolist(), run.lo.tolist(), ages, strict=True):
                        expiry = None if age is None else bucket * self.rules.span + age
                        old = newest.get((hi, lo, named))
                        newest[hi, lo, named] = expiry if old is None or expiry is None else max(old, expiry)
        return {(*key, expiry) for key, expiry in newest.items()}


def compare(stream: Stream) -> Counter[str]:
    """Decide a stream with the core and with the model; AssertionError at the first difference, and why.

    Returns how often each thing happened, so that a test can check that its streams have enough of it.
    """
    random = Random(f"driver {stream.seed}")
    core, model = CoreRun.of(stream), Model(stream.rules, stream.max_future_us)
    # A category that comes back after it was forgotten is new, but a model that never forgets knows it.
    # So is a key whose bucket was forgotten, if the time goes back after that.
    settled = stream.rules.clock not in (Clock.CATEGORICAL, Clock.SYSTEM)
    steady = settled and not any(batch.changed for batch in stream.batches)
    unforgetting = Model(stream.rules, stream.max_future_us, forgets=False)
    seen: Counter[str] = Counter()
    for number, batch in enumerate(stream.batches):
        expected = model.decide(batch.records, batch.facts, batch.changed)
        if steady:
            kept = unforgetting.decide(batch.records, batch.facts)
            assert routes(kept) == routes(expected), f"batch {number}: forgetting changes routes in the model"
        found = core.decide(batch, random)
        for record in sorted(batch.records, key=lambda record: record.position):
            decision, route = expected[record.position], found.get(record.position)
            assert route == decision.route, (
                f"batch {number}, {record}: core says {route!r}, model {decision.route!r}: {decision.why}"
            )
        if stream.rules.remember_first:
            firsts = {at: decision.first for at, decision in expected.items() if decision.first}
            assert core.firsts == firsts, f"batch {number}: first records {core.firsts}, model {firsts}"
        late = {at: decision.late for at, decision in expected.items() if decision.late is not None}
        assert core.late == late, f"batch {number}: behind by {core.late}, model {late}"
        assert len(found) == len(expected), (
            f"batch {number}: the core has routes for records that it was not given"
        )
        _compare_states(f"batch {number}", core, model)
        seen.update(route.name for route in found.values())
        seen.update(f"null {found[record.position].name}" for record in batch.records if record.null)
        seen.update({"gaps": model.gaps, "forgotten": model.forgotten_marks, "batches": 1})
        seen.update({name: sum(shard[name] for shard in core.stats) for name in ("evicted", "false_hits")})
        unique = Counter(r.key for r in batch.records if found[r.position] == Route.UNIQUE)
        seen["accepted again"] += sum(count > 1 for count in unique.values())
    seen["twice"] += core.twice
    seen["spread"] += sum(len(mark.partitions) > 1 for mark in model.marks.values())
    return seen


def routes(decisions: dict[Position, Decision]) -> dict[Position, Route]:
    return {position: decision.route for position, decision in decisions.items()}


def _compare_states(where: str, core: CoreRun, model: Model) -> None:
    expected = {
        source: (mark.offset, mark.seen_us, mark.gaps, len(mark.partitions) > 1)
        for source, mark in model.marks.items()
    }
    for state, store, stats in zip(core.states, core.stores, core.stats, strict=True):
        found = _marks(state.marks.all(store))
        assert found == expected, f"{where}: marks {found}, model {expected}"
        names = [entry.name for entries in (*state.runs.values(), state.marks.runs) for entry in entries]
        assert sorted(names) == sorted(store), (
            f"{where}: the runs in the store are not those in the directory"
        )
        assert stats["gaps"] == model.gaps, f"{where}: gaps {stats['gaps']}, model {model.gaps}"
        spread = sum(len(mark.partitions) > 1 for mark in model.marks.values())
        counted, counts = (stats["sources"], stats["spread"]), (len(model.marks), spread)
        if state.marks.runs:  # there idle marks are counted until they are removed
            assert counted >= counts, f"{where}: sources, spread {counted}, model {counts}"
        else:
            assert counted == counts, f"{where}: sources, spread {counted}, model {counts}"
        if core.rules.clock.has_latest_point and core.rules.dedup and model.latest is not None:
            assert state.latest == model.latest, f"{where}: latest {state.latest}, model {model.latest}"
    if core.rules.dedup:
        kept = _remembered(core, model)
        assert core.remembered() == kept, f"{where}: remembers {core.remembered()}, model {kept}"


def _remembered(core: CoreRun, model: Model) -> set[tuple[int, int, int | None, int | None]]:
    newest: dict[tuple[Key, int | None], int] = {}
    clock = core.rules.clock
    for key, expiries in model.accepted.items():
        for expiry in expiries:
            bucket = expiry // core.rules.span if clock.expires else None
            if clock is Clock.CATEGORICAL:
                bucket = expiry
            newest[key, bucket] = max(expiry, newest.get((key, bucket), expiry))
    aged = core.rules.keeps_ages
    return {
        (*salted(digest(core.digest_kind, key), within), bucket, expiry if aged else None)
        for ((key, within), bucket), expiry in newest.items()
    }


def salted(of_key: tuple[int, int], within: InputPartition | None) -> tuple[int, int]:
    """The digest of a key that counts only within an input partition, None for all."""
    salt = partition_salt(*within) if within is not None else (0, 0)
    return of_key[0] ^ salt[0], of_key[1] ^ salt[1]


def _marks(marks: Marks) -> dict[tuple[int, int], tuple[int, int, int, bool]]:
    columns = (marks.pid, marks.partition, marks.mark, marks.seen, marks.gaps, marks.spread)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    found = {(pid, partition): tuple(rest) for pid, partition, *rest in rows}
    assert len(found) == len(rows), "a source has two marks"
    return found


def _chunks(batch: Batch) -> list[list[Record]]:
    chunks: list[list[Record]] = []
    for record in sorted(batch.records, key=lambda record: record.position):
        if not chunks or record.position[:2] != chunks[-1][0].position[:2] or record.position in batch.cuts:
            chunks.append([])
        chunks[-1].append(record)
    return chunks


def _read_together(chunks: list[list[Record]], random: Random) -> Iterator[list[list[Record]]]:
    """The chunks, some of them in one frame."""
    start = 0
    while start < len(chunks):
        end = start + random.choice([1, 1, 2, 5, 20])
        yield chunks[start:end]
        start = end


def blob(record: Record) -> bytes | None:
    if record.source is None or record.stamped is None:
        return None if record.key % 2 else b"a key that is not a stamp"
    return Stamp(*record.source, record.stamped).to_bytes()


def _add_route(routes: dict[Position, Route], position: Position, route: Route) -> None:
    assert position not in routes, f"{position} has two routes: {routes.get(position)!r} and {route!r}"
    routes[position] = route


def _firsts(seen: FirstSeen | None) -> list[tuple[int, Position]]:
    """Each duplicate's row in its chunk, and the first record that it repeats."""
    if seen is None:
        return []
    columns = (seen.rows.tolist(), seen.input_index.tolist(), seen.input_offset.tolist())
    firsts = []
    for row, index, offset in zip(*columns, strict=True):
        topic, partition = seen.partitions[int(index)]
        firsts.append((row, Position(topic, partition, offset)))
    return firsts


def _late(part: Routes) -> list[tuple[int, int]]:
    """Each expired record's row in its chunk, and how far it is behind."""
    if part.late is None:
        return []
    expired = part.rows[part.codes == Route.EXPIRED]
    return list(zip(expired.tolist(), part.late.tolist(), strict=True))


def _comparable(batch: RoutedBatch) -> object:
    parts: list[object] = [
        (p.topic, p.partition, p.first, p.rows.tolist(), p.codes.tolist()) for p in batch.routes
    ]
    parts += [(_firsts(part.first_seen), _late(part)) for part in batch.routes]
    return parts, batch.state.to_bytes(), batch.stats


def failure_of(stream: Stream) -> Exception | None:
    """What :func:`compare` raises for a stream."""
    try:
        compare(stream)
    except Exception as failure:
        return failure
    return None


def shrink(stream: Stream) -> Stream:
    """A failing stream without the records that Hypothesis finds not to matter for the failure."""
    n = sum(1 for _ in stream.records())
    masks = st.lists(st.sampled_from((False, True, True, True)), min_size=n, max_size=n)
    quick = settings(max_examples=500, deadline=None, database=None, derandomize=True)
    try:
        return find(
            masks.map(partial(_with_only, stream)), lambda small: bool(failure_of(small)), settings=quick
        )
    except NoSuchExample:
        return stream


def _with_only(stream: Stream, kept: list[bool]) -> Stream:
    masks = iter(kept)
    batches = [
        replace(batch, records=tuple(record for record in batch.records if next(masks)))
        for batch in stream.batches
    ]
    return replace(stream, batches=tuple(batches))


def describe(stream: Stream) -> str:
    """A failing stream as text, shrunk, with what the model decides and why."""
    small = shrink(stream)
    failure = failure_of(small)
    model = Model(small.rules, small.max_future_us)
    lines = [
        f"make_stream({stream.seed}, {stream.profile!r}) -> {type(failure).__name__}: {failure}",
        f"{small.rules}, max_future_us={small.max_future_us}, shards={small.shards}, "
        f"digests={small.digest_kind}",
    ]
    for number, batch in enumerate(small.batches):
        lines.append(f"batch {number}, {batch.facts}, changed: {dict(batch.changed)}")
        decisions = model.decide(batch.records, batch.facts, batch.changed)
        for record in sorted(batch.records, key=lambda record: record.position):
            decision = decisions[record.position]
            cut = "cut" if record.position in batch.cuts else "   "
            stamp = f"{tuple(record.source)}+{record.stamped}" if record.source else "no stamp"
            lines.append(
                f"  {cut} {tuple(record.position)} {stamp} key {record.key} expiry {record.expiry}: "
                f"{decision.route.name}, {decision.why}"
            )
    return "\n".join(lines)
