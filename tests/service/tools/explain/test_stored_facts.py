"""What a state says about one record."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from replayfilter.core.buckets import Buckets
from replayfilter.core.key_run import INDEX, OFFSET
from replayfilter.core.replay.mark_table import MarkTable
from replayfilter.core.replay.marks import Marks
from replayfilter.core.rules import Match, Rules
from replayfilter.core.stamp import Stamp
from replayfilter.core.state import ShardState
from replayfilter.service.tools.explain.stored_facts import DedupKey, facts_of, runs_to_search
from tests.support.core_run import MemoryStore

RULES = Rules(period=100, span=10, remember_first=True)
STAMP = Stamp(7, 3, 50)


def shard(store: MemoryStore, *keys: tuple[int, int], mark_time_us: int = 5, mark: int = 60) -> ShardState:
    """A shard that remembers these keys, (digest, expiry key), each from an input offset of its own."""
    buckets = Buckets(RULES, store)
    for number, (digest, expiry) in enumerate(keys):
        hi, lo, age = np.array([digest], np.uint64), np.array([1], np.uint64), np.array([expiry])
        first = {INDEX: np.zeros(1, np.uint32), OFFSET: np.array([100 + number])}
        buckets.add(hi, lo, age, buckets.bucket_of(hi, age), first)
    marks = Marks.zeros(1)
    marks.pid[:], marks.partition[:], marks.mark[:], marks.seen[:] = 7, 3, mark, mark_time_us
    state = ShardState(95, MarkTable.of(marks), buckets.entries, partitions=(("orders", 2),))
    return replace(state, time_us=9, mark_time_us=mark_time_us)


def test_a_key_that_is_remembered() -> None:
    store = MemoryStore()
    shards = [shard(store, (11, 42), (12, 47), (13, 60)), shard(store, (14, 41), mark_time_us=8, mark=70)]
    facts = facts_of(shards, store, RULES, STAMP, DedupKey(12, 1, 47))
    assert (facts.mark, facts.latest, facts.time_us) == (70, 95, 9), "of the shard that was updated last"
    assert (facts.bucket_keys, facts.remembered, facts.first) == (3, True, "orders/2/101")
    assert facts.newest == 47
    assert facts.all_buckets


def test_a_key_in_another_bucket_is_found_unless_only_its_own_counts() -> None:
    store = MemoryStore()
    shards = [shard(store, (11, 42))]
    key = DedupKey(11, 1, 73)
    assert key.bucket(RULES) == 7
    assert facts_of(shards, store, RULES, STAMP, key).first == "orders/2/100"
    by_bucket = replace(RULES, match=Match.BUCKET)
    assert runs_to_search(shards, by_bucket, key) == []
    facts = facts_of(shards, store, by_bucket, STAMP, key)
    assert (facts.remembered, facts.bucket_keys, facts.bucket_runs) == (False, 0, 0)


def test_a_record_without_key_or_stamp_or_state() -> None:
    store = MemoryStore()
    facts = facts_of([shard(store, (11, 42))], store, RULES, None, None)
    assert (facts.mark, facts.latest, facts.remembered) == (None, 95, None)
    facts = facts_of([shard(store)], store, RULES, Stamp(7, 4, 0), DedupKey(11, 1, 42))
    assert (facts.mark, facts.remembered, facts.first) == (None, False, "")
    assert facts_of([], store, RULES, STAMP, None).latest is None
