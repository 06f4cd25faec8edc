"""The demo's stream and its check of the output topics; neither needs Spark or Kafka.

A check that can't fail proves nothing: most of these tests give `compare` topics that are wrong in one way.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import xxhash

from replayfilter.core.clock.expiry import Rules, future_threshold
from replayfilter.core.frames import cut_frames
from replayfilter.core.key_run import prepare
from replayfilter.core.routing import Route, ShardState, route_batch
from replayfilter.core.stamp import parse_stamps
from replayfilter.demo.check import Found, Verdict, compare
from replayfilter.demo.stream import (
    OUTPUTS,
    PERIOD_MS,
    ROUTES,
    STAMP,
    Record,
    expected_routes,
    generate,
)

END_MS = 1_760_000_000_000
STREAM = generate(6_000, end_ms=END_MS)
EXPECTED = expected_routes(STREAM, end_ms=END_MS)
Outputs = dict[str, list[Found]]


def perfect_outputs() -> Outputs:
    outputs: Outputs = {route: [] for route in OUTPUTS}
    for record, (route, reason, first) in zip(STREAM, EXPECTED, strict=True):
        if route == "replay":
            continue
        headers = list(record.headers)
        if route == "error":
            headers += [("rf-reason", reason.encode()), ("rf-message", b"..."), ("rf-stage", b"decode")]
        if first:
            headers += [("rf-first", b"orders/%d/%d" % first)]
        key = STAMP.pack(42, record.partition, record.offset)
        outputs[route].append(Found(record.partition, key, record.value, record.timestamp_ms, headers))
    return outputs


def judge(outputs: Outputs, pid: int | None = None) -> dict[str, Verdict]:
    return compare(STREAM, EXPECTED, outputs, pid=pid)


def problems(outputs: Outputs) -> str:
    return "\n".join(problem for verdict in judge(outputs).values() for problem in verdict.problems)


def test_stream_is_seeded_and_every_kind_meets_its_route() -> None:
    assert generate(6_000, end_ms=END_MS) == STREAM
    assert generate(6_000, end_ms=END_MS, seed=2) != STREAM
    assert len(STREAM) == 6_000
    meant = {"fresh": "unique", "unstamped": "unique", "id used again": "unique", "retry": "duplicate"}
    meant |= {"late": "expired", "broken": "error", "future": "error"}
    for record, (route, *_) in zip(STREAM, EXPECTED, strict=True):
        again = record.kind.startswith("again/")
        kind = record.kind.removeprefix("again/").split("/")[0]
        # A broken record leaves no mark, so its copy from a crashed job is an error once more.
        assert route == ("replay" if again and kind != "broken" else meant[kind]), record
    assert {route for route, *_ in EXPECTED} == set(ROUTES)


@pytest.mark.parametrize("seed", range(5))
def test_offsets_count_up_and_sources_keep_to_their_partition(seed: int) -> None:
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


class MemoryRuns(dict[str, bytes]):
    """A store of the core's runs."""

    def read(self, name: str) -> bytes:
        return self[name]

    def write(self, name: str, data: bytes) -> None:
        self[name] = prepare(data)

    def drop(self, name: str) -> None:
        self.pop(name, None)


def core_routes(batches: list[list[tuple[Record, bool]]]) -> dict[tuple[int, int], str]:
    """What the service's core answers for batches of (record, is fault-free)."""
    routes: dict[tuple[int, int], str] = {}
    state, store = ShardState.empty(), MemoryRuns()
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
                "orders",
                partition,
                rows[0].offset,
                stamps=parse_stamps([record.key for record in rows]),
                expiry=expiry,
                digests=np.array(digests, np.uint64),
                rows=np.array([record.offset for record in rows], np.uint32),
                future=expiry > future_threshold(END_MS * 1000, 600_000_000, "ms"),
                shards=1,
            )
            frames += cut.frames
            routes |= {(partition, int(row)): "replay" for row in cut.replays}
        decided = route_batch(frames, Rules(), state, store, END_MS * 1000)
        state = decided.state
        for part in decided.routes:
            for row, code in zip(part.rows, part.codes, strict=True):
                route = Route(code).name.lower()
                routes[part.partition, int(row)] = "error" if route == "future" else route
    return routes


@pytest.mark.parametrize("batches", [1, 2, 7, 60])
@pytest.mark.parametrize("proportional", [True, False])
def test_the_core_agrees_whatever_the_cuts(batches: int, proportional: bool) -> None:
    """Cut as Spark shares a backlog (equal parts of each partition), and as records arrive."""
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


def test_right_topics_pass() -> None:
    verdicts = judge(perfect_outputs(), pid=42)
    assert all(verdict.ok for verdict in verdicts.values())
    assert sum(verdict.expected for verdict in verdicts.values()) == len(STREAM)


def lose(outputs: Outputs) -> None:
    del outputs["unique"][100]


def twice(outputs: Outputs) -> None:
    outputs["duplicate"].insert(11, outputs["duplicate"][10])


def swap(outputs: Outputs) -> None:
    rows = [i for i, row in enumerate(outputs["unique"]) if row.partition == 2]
    a, b = rows[5], rows[6]
    outputs["unique"][a], outputs["unique"][b] = outputs["unique"][b], outputs["unique"][a]


def other_topic(outputs: Outputs) -> None:
    outputs["unique"].append(outputs["expired"].pop())


def leak_replay(outputs: Outputs) -> None:
    at = next(i for i, (route, *_) in enumerate(EXPECTED) if route == "replay")
    record = STREAM[at]
    key = STAMP.pack(42, record.partition, record.offset)
    row = Found(record.partition, key, record.value, record.timestamp_ms, record.headers)
    ahead = [STAMP.unpack(out.key or b"")[1:] < (row.partition, record.offset) for out in outputs["unique"]]
    outputs["unique"].insert(len(ahead) - ahead[::-1].index(True), row)


def change(route: str, at: int = 3, **fields: object) -> Callable[[Outputs], None]:
    def change(outputs: Outputs) -> None:
        outputs[route][at] = outputs[route][at]._replace(**fields)

    return change


WITH_HEADERS = next(i for i, row in enumerate(perfect_outputs()["unique"]) if len(row.headers) == 5)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lose, "is in no topic"),
        (twice, "came out twice"),
        (swap, "stands behind"),
        (other_topic, "is in unique and should be expired"),
        (leak_replay, "is in unique and should be replay"),
        (change("unique", value=b"{}"), "has the value"),
        (change("error", value=b"changed"), "has the value"),
        (change("unique", timestamp_ms=0), "has the timestamp"),
        (change("unique", partition=9), "came out in partition 9"),
        (change("unique", key=b"user-1"), "is no stamp"),
        (change("unique", key=STAMP.pack(42, 0, 10**9)), "was never published"),
        (change("unique", key=STAMP.pack(43, 0, 0)), "is stamped with pid"),
        (change("unique", at=WITH_HEADERS, headers=[]), "has the headers"),
        (change("unique", at=WITH_HEADERS, headers=[("extra", b"1")]), "has the headers"),
        (
            lambda outputs: outputs["unique"][WITH_HEADERS].headers.reverse(),
            "has the headers",
        ),
        (lambda outputs: outputs["unique"][3].headers.append(("rf-reason", b"x")), "has the added headers"),
        (lambda outputs: outputs["error"][3].headers.pop(), "has the added headers"),
        (lambda outputs: outputs["error"].clear(), "is in no topic"),
        (lambda outputs: outputs.pop("expired"), "is in no topic"),
    ],
)
def test_a_wrong_topic_is_seen(spoil: Callable[[Outputs], None], said: str) -> None:
    outputs = perfect_outputs()
    spoil(outputs)
    assert not all(verdict.ok for verdict in judge(outputs).values())
    assert said in problems(outputs)


def test_a_wrong_reason_is_seen() -> None:
    outputs = perfect_outputs()
    row = outputs["error"][0]
    row.headers[-3] = ("rf-reason", b"other")
    assert "has the reason b'other'" in problems(outputs)


def test_a_wrong_origin_is_seen() -> None:
    outputs = perfect_outputs()
    outputs["duplicate"][7].headers[-1] = ("rf-first", b"orders/0/999999")
    assert "and repeats" in problems(outputs)


def test_a_pid_of_another_service_is_seen() -> None:
    assert not judge(perfect_outputs(), pid=43)["unique"].ok
