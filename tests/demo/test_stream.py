"""The demo's stream and its expected routes; no Spark and no Kafka."""

from __future__ import annotations

import json
import random
from collections import Counter

import numpy as np
import pytest
import xxhash

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock.units import future_threshold
from replayfilter.core.frames import ChunkId, cut_frames
from replayfilter.core.routing import Route, route_batch
from replayfilter.core.rules import Rules
from replayfilter.core.stamp import parse_stamps
from replayfilter.core.state import ShardState
from replayfilter.demo.stream import (
    PERIOD_MS,
    ROUTES,
    STAMP,
    Record,
    expected_routes,
    generate,
)
from tests.support.core_run import MemoryStore

END_MS = 1_760_000_000_000


def test_a_stream_is_seeded() -> None:
    stream = generate(6_000, end_ms=END_MS)
    assert generate(6_000, end_ms=END_MS) == stream
    assert generate(6_000, end_ms=END_MS, seed=2) != stream
    assert len(stream) == 6_000


def test_every_kind_of_record_has_its_route() -> None:
    stream = generate(6_000, end_ms=END_MS)
    expected = expected_routes(stream, end_ms=END_MS)
    meant = {"fresh": "unique", "unstamped": "unique", "id used again": "unique", "retry": "duplicate"}
    meant |= {"late": "expired", "broken": "error", "future": "error"}
    for record, (route, *_) in zip(stream, expected, strict=True):
        again = record.kind.startswith("again/")
        kind = record.kind.removeprefix("again/").split("/")[0]
        # A broken record doesn't advance the mark, so the copy from a crashed job is an error too.
        assert route == ("replay" if again and kind != "broken" else meant[kind]), record
    assert {route for route, *_ in expected} == set(ROUTES)


@pytest.mark.parametrize("seed", range(5))
def test_offsets_are_consecutive_and_a_source_has_one_partition(seed: int) -> None:
    offsets: Counter[int] = Counter()
    for record in generate(3_000, end_ms=END_MS, seed=seed):
        assert record.offset == offsets[record.partition]
        offsets[record.partition] += 1
        if record.key is not None and len(record.key) == 20:
            assert STAMP.unpack(record.key)[1] % 4 == record.partition
    assert set(offsets) == {0, 1, 2, 3}


def test_a_stream_whose_routes_depend_on_batch_cuts_is_refused() -> None:
    def order(partition: int, offset: int, event_id: str, ts: int) -> Record:
        value = f'{{"event_id":"{event_id}","ts":{ts}}}'.encode()
        return Record(partition, offset, None, value, ts, [], "fresh")

    # Expired only if partition 0's record is in an earlier batch.
    edge = [order(0, 0, "a", END_MS), order(1, 0, "b", END_MS - PERIOD_MS)]
    with pytest.raises(ValueError, match="depends on batch cuts"):
        expected_routes(edge, end_ms=END_MS)
    backwards = [order(1, 0, "a", END_MS), order(0, 0, "a", END_MS)]
    with pytest.raises(ValueError, match="depends on batch cuts"):
        expected_routes(backwards, end_ms=END_MS)
    with pytest.raises(ValueError, match="when the service runs"):
        expected_routes([order(0, 0, "a", END_MS + 1)], end_ms=END_MS)
    far_apart = [
        order(0, 0, "a", END_MS - 3 * PERIOD_MS),
        order(0, 1, "b", END_MS),
        order(0, 2, "a", END_MS),
    ]
    assert [route for route, *_ in expected_routes(far_apart, end_ms=END_MS)] == ["unique"] * 3


def core_routes(batches: list[list[tuple[Record, bool]]]) -> dict[tuple[int, int], str]:
    """Return the routes that the core decides; each record comes with whether it can be decoded."""
    routes: dict[tuple[int, int], str] = {}
    state, store = ShardState.empty(), MemoryStore()
    for batch in batches:
        frames = []
        for partition in range(4):
            rows = [record for record, good in batch if good and record.partition == partition]
            if not rows:
                continue
            orders = [json.loads(record.value or b"") for record in rows]
            digests = [
                divmod(xxhash.xxh3_128_intdigest(order["event_id"].encode()), 2**64) for order in orders
            ]
            expiry = np.array([order["ts"] for order in orders], np.int64)
            cut = cut_frames(
                [ChunkId("orders", partition, rows[0].offset)],
                np.array([len(rows)]),
                stamps=parse_stamps([record.key for record in rows]),
                expiry=expiry,
                digests=np.array(digests, np.uint64),
                rows=np.array([record.offset for record in rows], np.uint32),
                future=expiry > future_threshold(END_MS * 1000, 600_000_000, "ms"),
                shards=1,
            )
            frames += cut.frames
            routes |= {(partition, rows[row].offset): "replay" for row in cut.replays.tolist()}
        decided = route_batch(frames, Rules(), state, store, BatchFacts.at(END_MS * 1000))
        state = decided.state
        for part in decided.routes:
            for row, code in zip(part.rows, part.codes, strict=True):
                route = Route(code).name.lower()
                routes[part.partition, int(row)] = "error" if route == "future" else route
    return routes


@pytest.mark.parametrize("batches", [1, 2, 7, 60])
@pytest.mark.parametrize("proportional", [True, False])
def test_the_core_decides_the_same_wherever_batches_are_cut(batches: int, proportional: bool) -> None:
    """``proportional``: cut as Spark divides a backlog, the same share of each partition. Else by arrival."""
    stream = generate(20_000, end_ms=END_MS, seed=batches)
    expected = expected_routes(stream, end_ms=END_MS)
    rng = random.Random(batches)
    sizes = Counter(record.partition for record in stream)
    cuts = sorted(rng.random() for _ in range(batches - 1))
    parts: list[list[tuple[Record, bool]]] = [[] for _ in range(batches)]
    for number, (record, (route, reason, _)) in enumerate(zip(stream, expected, strict=True)):
        at = record.offset / sizes[record.partition] if proportional else number / len(stream)
        good = route != "error" or reason == "future"
        parts[sum(at >= cut for cut in cuts)].append((record, good))
    decided = core_routes(parts)
    for record, (route, *_) in zip(stream, expected, strict=True):
        assert decided.get((record.partition, record.offset), "error") == route, record
