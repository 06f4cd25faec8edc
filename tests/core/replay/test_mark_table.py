"""Marks in runs: what they cost, and that they mean the same as marks in a dict."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.columns import pack
from replayfilter.core.frames import ChunkId, Frame, cut_frames
from replayfilter.core.replay import mark_table
from replayfilter.core.replay.mark_changes import MarkChange
from replayfilter.core.replay.mark_table import MarkTable
from replayfilter.core.routing import route_batch
from replayfilter.core.rules import Rules
from replayfilter.core.stamp import Stamps
from replayfilter.core.state import ShardState
from replayfilter.errors import StampError
from tests.support.core_run import MemoryStore

HOUR = 3600 * 10**6
RULES = Rules(dedup=False)


class CountingStore(MemoryStore):
    """Counts the bytes that are written, and the runs that are read."""

    written = reads = 0

    def write(self, name: str, data: bytes) -> None:
        self.written += len(data)
        super().write(name, data)

    def read(self, name: str) -> bytes:
        self.reads += 1
        return super().read(name)


def frame_of(first: int, pids: np.ndarray) -> Frame:
    """A chunk with one record of each of these sources."""
    n = len(pids)
    stamps = Stamps(pids, np.zeros(n, np.int32), np.full(n, first), np.ones(n, np.bool_))
    cut = cut_frames(
        [ChunkId("t", 0, first)], np.array([n]), stamps=stamps, expiry=np.zeros(n, np.int64),
        digests=np.zeros((n, 2), np.uint64), rows=np.arange(n, dtype=np.uint32), future=None, shards=1,
    )  # fmt: skip
    return cut.frames[0]


def test_a_small_batch_writes_what_it_changes_and_not_what_there_is() -> None:
    random = np.random.default_rng(1)
    pids = np.unique(random.integers(-(2**63), 2**63 - 1, 50_000))
    store, state = CountingStore(), ShardState.empty()
    state = route_batch([frame_of(0, pids)], RULES, state, store, BatchFacts.at(HOUR)).state
    store.written = written = 0
    for number in range(1, 201):
        data = state.to_bytes()
        written += len(data)
        batch = [frame_of(number, random.choice(pids, 10, replace=False))]
        state = route_batch(batch, RULES, ShardState.from_bytes(data), store, BatchFacts.at(HOUR)).state
    assert state.marks.sources == len(pids)
    assert (written + store.written) / 200 < 100_000, "all marks take 3 MB"


def test_too_many_sources_are_refused_before_anything_is_decided() -> None:
    rules = replace(RULES, max_sources=3_000, mark_ttl_us=HOUR // 2)
    store, pids = MemoryStore(), np.arange(5_000)
    state = route_batch([frame_of(0, pids[:3_000])], rules, ShardState.empty(), store, BatchFacts.at(0)).state
    again = route_batch([frame_of(1, pids[:3_000])], rules, state, store, BatchFacts.at(1)).state
    behind = BatchFacts(HOUR, HOUR, caught_up=False)
    with pytest.raises(StampError, match=r"replay.max_sources = 3000: .* 3001 sources in t; .* input.stamp"):
        route_batch([frame_of(2, pids[3_000:3_001])], rules, again, MemoryStore(store), behind)
    found = route_batch([frame_of(2, pids[2_500:])], rules, again, store, BatchFacts.at(HOUR))
    assert found.stats["sources"] == 2_500, "idle marks don't count"
    lower = replace(rules, max_sources=5)
    route_batch([frame_of(3, pids[2_500:2_510])], lower, found.state, store, behind)


def test_a_state_of_version_1_is_read() -> None:
    """It has all marks in its block, and the batch time where there is mark time now."""
    pids = np.arange(3_000)
    marks = {"pid": pids, "mark": pids, "seen": pids + HOUR, "gaps": pids, "place": pids}
    marks |= {"partition": pids.astype(np.int32), "spread": pids == 7}
    runs = {f"run_{name}": np.zeros(0, np.int64) for name in ("bucket", "keys", "size")}
    data = pack(
        {**marks, **runs, "run_name": np.zeros(0, np.uint8)},
        {"version": 1, "latest": 5, "places": [], "edits": 0},
    )
    state, store = ShardState.from_bytes(data), MemoryStore()
    assert (state.time_us, state.mark_time_us) == (HOUR + 2_999, HOUR + 2_999)
    assert (state.marks.sources, state.marks.spread) == (3_000, 1)
    after = route_batch([frame_of(9, pids[:10])], RULES, state, store, BatchFacts.at(2 * HOUR)).state
    assert (after.marks.sources, len(after.marks.recent.mark), len(store)) == (3_000 + 10 - 1, 0, 1)
    assert after.marks.all(store).as_dict()[2_999, 2_999] == 2_999


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_a_dict(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Set and forgotten by hand, idle and seen again, with a few marks in each run."""
    random, store = Random(seed), MemoryStore()
    monkeypatch.setattr(mark_table, "RECENT_MARKS", random.choice((0, 1, 4, 1_024)))
    table, ttl = MarkTable(), random.choice((0, 3, 50, 2**60))
    marks: dict[tuple[int, int], int] = {}
    seen: dict[tuple[int, int], int] = {}
    for now in range(60):
        touched = {(random.randrange(-3, 4), random.randrange(3)) for _ in range(random.randrange(4))}
        for number, (pid, partition) in enumerate(sorted(touched)):
            mark = random.choice((None, random.randrange(100)))
            table = table.with_changes([MarkChange(number, 0, pid, partition, mark)], now, store)
            marks.pop((pid, partition), None)
            if mark is not None:
                marks[pid, partition], seen[pid, partition] = mark, now
        if random.random() < 0.5:
            table = table.without_idle(now, ttl, store)
            marks = {source: mark for source, mark in marks.items() if now - seen[source] <= ttl}
        if random.random() < 0.3:
            table = MarkTable.restore(table.columns(), table.meta())
        assert table.all(store).as_dict() == marks
        assert sorted(entry.name for entry in table.runs) == sorted(store)
    table = table.without_idle(10**6, 0, store).without_idle(10**6, 0, store)
    assert (table.sources, table.spread, store) == (0, 0, {})
