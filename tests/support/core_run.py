"""Runs streams through the vectorised core, in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from random import Random
from typing import Any

import numpy as np

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock.units import future_threshold
from replayfilter.core.columns import Columns
from replayfilter.core.digest import partition_salt
from replayfilter.core.frames import ChunkId, Frame, cut_frames
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.key_run import OFFSET, Run, with_bloom
from replayfilter.core.routing import FirstSeen, Route, RoutedBatch, Routes, route_batch
from replayfilter.core.rules import Rules, Scope
from replayfilter.core.stamp import Stamp, parse_stamps
from replayfilter.core.state import ShardState
from tests.support.reference import Position, Record
from tests.support.streams import Batch, Stream, digest

# A dedup key: hi, lo, bucket, largest expiry key in the bucket; None for what the state doesn't have.
Remembered = tuple[int, int, int | None, int | None]


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
        self.may_have_moved = rules.refresh  # then a key may be in earlier buckets too, which count no more

    @classmethod
    def of(cls, stream: Stream) -> CoreRun:
        return cls(stream.rules, stream.max_future_us, stream.shards, stream.digest_kind)

    def decide(self, batch: Batch, random: Random) -> dict[Position, Route]:
        """The routes of a batch, errors included. ``random`` chooses what must make no difference."""
        self.rules = replace(self.rules, **batch.changed)
        self.may_have_moved |= self.rules.refresh
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
            "kept": self._kept([record for _, record in good]),
            "null": np.array([record.null for _, record in good], np.bool_),
        }

    def _kept(self, records: list[Record]) -> Columns:
        kept: Columns = {}
        if self.rules.remember_first:
            kept[OFFSET] = np.array([record.position.offset for record in records], np.int64)
        if self.rules.content:
            digests = [0 if record.null else record.content * 0x9E3779B1 % 2**32 for record in records]
            kept[self.rules.content] = np.array(digests, np.uint32)
        return kept

    def _chunk_shards(self, chunks: list[list[Record]]) -> list[int] | None:
        if not self.rules.shards_by_partition:
            return None
        firsts = (chunk[0].position for chunk in chunks)
        return [(ord(first.topic) + first.partition) % len(self.states) for first in firsts]

    def _digest(self, record: Record) -> tuple[int, int]:
        within = record.position[:2] if self.rules.scope is Scope.PARTITION else None
        return salted(digest(self.digest_kind, record.key), within)

    def remembered(self) -> set[Remembered]:
        """All dedup keys."""
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
        kept = {(*key, expiry) for key, expiry in newest.items()}
        return newest_of(kept) if self.may_have_moved else kept


def newest_of(kept: set[Remembered]) -> set[Remembered]:
    """Of each key the one with the largest expiry key."""
    found: dict[tuple[int, int], Remembered] = {}
    for each in sorted(kept, key=lambda each: each[3] or 0):
        found[each[:2]] = each
    return set(found.values())


def salted(of_key: tuple[int, int], within: InputPartition | None) -> tuple[int, int]:
    """The digest of a key that counts only within an input partition, None for all."""
    salt = partition_salt(*within) if within is not None else (0, 0)
    return of_key[0] ^ salt[0], of_key[1] ^ salt[1]


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
