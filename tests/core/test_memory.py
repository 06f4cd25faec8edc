"""The state of a shard is bounded by the period and by the time to live of marks, not by the stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import xxhash
from numpy.typing import NDArray

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock.clocks import Clock
from replayfilter.core.frames import ChunkId, cut_frames
from replayfilter.core.routing import route_batch
from replayfilter.core.rules import Match, Rules
from replayfilter.core.stamp import Stamps
from replayfilter.core.state import ShardState
from tests.support.core_run import MemoryStore

PERIOD = 3_600  # in the expiry key's unit, seconds
SPAN = PERIOD // 12
BATCHES = 20  # per period
TICK = PERIOD // BATCHES  # seconds from batch to batch
KEYS = 1_000  # new keys per batch
PERIODS = 8
KEY_BYTES = 24  # at most, per key in the state, overheads included
EPOCH = 1_700_000_000


@dataclass
class Kept:
    """What a shard keeps after a batch: the bytes of its state and runs, and what is in them."""

    size: int
    keys: int
    runs: int
    sources: int


@pytest.mark.parametrize("clock", [Clock.TUPLE, Clock.SYSTEM])
@pytest.mark.parametrize("match", Match)
def test_dedup_keys_are_bounded_by_the_period(clock: Clock, match: Match) -> None:
    rules = Rules(clock=clock, period=PERIOD, span=SPAN, match=match, unit="s")
    kept = list(run_stream(rules, PERIODS * BATCHES, sources=4))
    full = kept[2 * BATCHES :]  # from here on as many keys expire as arrive
    # All keys within the period, and expired ones whose bucket has not expired yet.
    most = KEYS * (PERIOD + SPAN + TICK) // TICK
    assert max(after.keys for after in full) <= most
    assert min(after.keys for after in full) >= KEYS * (PERIOD - TICK) // TICK, "unexpired keys are gone"
    assert max(after.size / after.keys for after in full) <= KEY_BYTES
    assert max(after.runs for after in full) <= 3 * (PERIOD // SPAN + 2), "runs are not merged"
    assert_level([after.size for after in full])


def test_marks_are_bounded_by_their_time_to_live() -> None:
    """Every batch has sources that were never seen before and are never seen again."""
    rules = Rules(dedup=False, mark_ttl_us=10 * TICK * 1_000_000)
    kept = list(run_stream(rules, 60, sources=50, new_sources=True))
    assert [after.sources for after in kept[10:]] == [50 * 11] * 50, "the last batch's and ten before it"
    assert_level([after.size for after in kept[10:]])


def test_without_a_clock_everything_is_kept() -> None:
    """The check itself can fail: without expiry the state grows."""
    kept = list(run_stream(Rules(clock=Clock.NONE), 2 * BATCHES, sources=4))
    assert [after.keys for after in kept] == [KEYS * (number + 1) for number in range(2 * BATCHES)]
    with pytest.raises(AssertionError):
        assert_level([after.size for after in kept])


def assert_level(sizes: list[int]) -> None:
    """The second half of the sizes is at most 1% larger than the first."""
    half = len(sizes) // 2
    assert max(sizes[half:]) <= 1.01 * max(sizes[:half])
    assert sum(sizes[half:]) / (len(sizes) - half) <= 1.01 * sum(sizes[:half]) / half


def run_stream(rules: Rules, batches: int, sources: int, *, new_sources: bool = False) -> Iterator[Kept]:
    """A steady stream through one shard: in each batch new keys, as many duplicates and as many replays.

    Between batches the state is written to bytes and read again, as in the service.
    """
    store, data = MemoryStore(), ShardState.empty().to_bytes()
    random = np.random.default_rng(7)
    for number in range(batches):
        now = EPOCH + number * TICK
        new = np.arange(number * KEYS, (number + 1) * KEYS)
        late = random.integers(0, TICK, KEYS)
        source = np.arange(KEYS) % sources + (number * sources if new_sources else 0)
        stamps = Stamps(source, np.zeros(KEYS, np.int32), new, np.ones(KEYS, np.bool_))
        chunks = [
            (new, stamps),
            (new[::-1], unstamped(KEYS)),  # retries of the senders
            (new, stamps),  # a retry of the upstream job
        ]
        frames = []
        for first, (keys, marked) in enumerate(chunks):
            expiry = now - late[keys - number * KEYS]
            cut = cut_frames(
                [ChunkId("t", 0, first)], np.array([KEYS]), stamps=marked, expiry=expiry,
                digests=digests(keys), rows=np.arange(KEYS, dtype=np.uint32), future=None, shards=1,
            )  # fmt: skip
            frames += cut.frames
        batch = route_batch(frames, rules, ShardState.from_bytes(data), store, BatchFacts.at(now * 1_000_000))
        data = batch.state.to_bytes()
        assert batch.stats["bytes"] == sum(map(len, store.values())), (
            "runs in the store that are not in the directory"
        )
        size = len(data) + batch.stats["bytes"]
        yield Kept(size, batch.stats["keys"], batch.stats["runs"], batch.stats["sources"])


def unstamped(n: int) -> Stamps:
    return Stamps(np.zeros(n, np.int64), np.zeros(n, np.int32), np.zeros(n, np.int64), np.zeros(n, np.bool_))


def digests(keys: NDArray[np.int64]) -> NDArray[np.uint64]:
    hashed = b"".join(xxhash.xxh3_128_digest(int(key).to_bytes(8, "big")) for key in keys)
    return np.frombuffer(hashed, ">u8").astype(np.uint64).reshape(-1, 2)
