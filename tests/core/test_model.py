"""The vectorised core against the reference model, on thousands of random streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from replayfilter.core import batch_clock, buckets, dedup, frames, key_run, routing
from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock import expiry, units
from replayfilter.core.replay import mark_table, marks
from replayfilter.core.rules import Rules
from replayfilter.core.stamp import Stamp, parse_stamps
from replayfilter.core.state import ShardState
from tests.support import core_run
from tests.support.core_comparison import compare, describe, failure_of, routes, shrink
from tests.support.core_run import CoreRun
from tests.support.reference import Model, Position, Record
from tests.support.streams import PROFILES, Batch, Stream, make_stream, recut

SEEDS = 320  # per profile: 3,840 streams in all

# What must happen at least once in 20 streams of a profile, so that the comparison means something.
MUST_HAPPEN = {
    "plain": {
        "UNIQUE",
        "DUPLICATE",
        "EXPIRED",
        "REPLAY",
        "ERROR",
        "gaps",
        "evicted",
        "twice",
        "null UNIQUE",
        "null DUPLICATE",
        "null REPLAY",
        "refreshed",
        "CONFLICT",
    },
    "crowded": {"UNIQUE", "DUPLICATE", "EXPIRED", "REPLAY", "accepted again", "evicted", "refreshed"},
    "replays": {"REPLAY", "spread", "forgotten", "gaps"},
    "edges": {"UNIQUE", "DUPLICATE", "EXPIRED", "accepted again"},
    "extremes": {"UNIQUE", "DUPLICATE", "EXPIRED", "evicted", "refreshed"},
    "times": {"UNIQUE", "DUPLICATE", "EXPIRED", "REPLAY", "FUTURE", "evicted"},
    "system": {"UNIQUE", "DUPLICATE", "EXPIRED", "REPLAY", "FUTURE", "evicted", "refreshed"},
    "none": {"UNIQUE", "DUPLICATE", "CONFLICT", "REPLAY"},
    "periods": {"UNIQUE", "DUPLICATE", "CONFLICT", "EXPIRED", "evicted", "refreshed"},
    "bare": {"UNIQUE", "REPLAY"},
    "ordered": {"UNIQUE", "DUPLICATE", "EXPIRED", "REPLAY", "JUMP", "evicted", "refreshed"},
    "categorical": {"UNIQUE", "DUPLICATE", "CONFLICT", "EXPIRED", "REPLAY", "evicted"},
}


@pytest.mark.parametrize("profile", PROFILES)
def test_core_agrees_with_the_model(profile: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        stream = make_stream(seed, profile)
        try:
            seen += compare(stream)
        except Exception as failure:
            pytest.fail(f"{describe(stream)}\nbefore shrinking: {failure}")
    rare = {what: seen[what] for what in MUST_HAPPEN[profile] if seen[what] < SEEDS / 20}
    assert not rare, f"too rare in the streams of {profile!r}: {rare}"


@pytest.mark.parametrize("profile", ["plain", "crowded", "replays", "times", "ordered", "categorical"])
def test_chunks_and_shards_make_no_difference(profile: str) -> None:
    for seed in range(40):
        stream = make_stream(seed, profile)
        assert core_routes(recut(stream, seed)) == core_routes(stream), (seed, profile)


@pytest.mark.parametrize("profile", ["plain", "crowded", "edges", "extremes", "none"])
def test_batches_make_no_difference_within_one_input_partition(profile: str) -> None:
    """This holds for one input partition, if no mark is forgotten and batch time is not used."""
    for seed in range(60):
        stream = one_partition(make_stream(seed, profile))
        other = recut(stream, seed, batches=True)
        assert model_routes(other) == model_routes(stream), (seed, profile)
        assert core_routes(other) == core_routes(stream), (seed, profile)


@pytest.mark.parametrize("most", [1, 3])
def test_merging_makes_no_difference(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Buckets of many small runs, which otherwise need millions of keys."""
    monkeypatch.setattr(buckets, "MAX_RUN_KEYS", most)
    for seed in range(60):
        compare(make_stream(seed, "crowded"))


@pytest.mark.parametrize("recent", [0, 1, 3])
def test_runs_of_marks_make_no_difference(monkeypatch: pytest.MonkeyPatch, recent: int) -> None:
    """Marks in many small runs, which otherwise need thousands of sources."""
    monkeypatch.setattr(mark_table, "RECENT_MARKS", recent)
    for seed in range(120):
        compare(make_stream(seed, "replays"))


def test_the_plain_filter_agrees_with_the_model() -> None:
    for seed in range(100):
        stream = one_partition(make_stream(seed, "replays"))
        records = [record for record in stream.records() if not record.broken]
        model = Model(stream.rules)
        expected = [d.route != routing.Route.REPLAY for d in model.decide(records, BatchFacts.at(0)).values()]
        blobs = [core_run.blob(record) for record in records]
        single, many = marks.ReplayFilter(), marks.ReplayFilter()
        assert [single.accept(Stamp.from_bytes(blob) if blob else None) for blob in blobs] == expected, seed
        at = Random(seed).randrange(len(blobs) + 1)
        passes = [many.accept_many(parse_stamps(part)).tolist() for part in (blobs[:at], blobs[at:])]
        assert [*passes[0], *passes[1]] == expected, seed
        for side in (single, many):
            assert side.marks == {source: mark.offset for source, mark in model.marks.items()}, seed
            assert (side.gaps, side.unstamped) == (model.gaps, sum(r.source is None for r in records)), seed


# Cases that are too rare in random streams: batches of (key, expiry key), and the routes of the last batch.
# Period 10, span 4, match "window".
RARE = {
    "accepted twice in one batch and bucket": ([[(1, 8), (2, 18), (1, 11)], [(1, 18)]], "D"),
    "in two buckets, the older one made later": (
        [[(9, 12)], [(1, 4)], [(8, 16), (1, 13)], [(1, 16)]], "D"
    ),
    "in two runs of one bucket": ([[(1, 8)], [(3, 8)], [(2, 18), (1, 11)], [(1, 18), (1, 21)]], "DU"),
}  # fmt: skip


@pytest.mark.parametrize("case", RARE)
@pytest.mark.parametrize("merged", [True, False])
def test_rare_cases(monkeypatch: pytest.MonkeyPatch, case: str, merged: bool) -> None:
    if not merged:
        monkeypatch.setattr(buckets, "MAX_RUN_KEYS", 1)
    keys, last = RARE[case]
    numbered = [[(i, *pair) for i, pair in enumerate(batch, 100 * n)] for n, batch in enumerate(keys)]
    rows = [[Record(Position("t", 0, i), None, None, key, at) for i, key, at in batch] for batch in numbered]
    parts = tuple(Batch(BatchFacts.at(0), tuple(records)) for records in rows)
    stream = Stream(0, case, Rules(period=10, span=4), None, 2, "honest", parts)
    expected = ["DUPLICATE" if letter == "D" else "UNIQUE" for letter in last]
    for found in (model_routes(stream), core_routes(stream)):
        assert [found[record.position].name for record in rows[-1]] == expected


def one_partition(stream: Stream) -> Stream:
    """The records of the stream's first input partition, at one batch time, with marks that stay."""
    partition = min((record.position[:2] for record in stream.records()), default=None)
    batches = (
        replace(
            batch,
            facts=BatchFacts.at(0),
            changed={},
            records=tuple(r for r in batch.records if r.position[:2] == partition),
        )
        for batch in stream.batches
    )
    return replace(stream, batches=tuple(batches), rules=replace(stream.rules, mark_ttl_us=0))


def core_routes(stream: Stream) -> dict[Position, routing.Route]:
    core, random = CoreRun.of(stream), Random(stream.seed)
    return {at: route for batch in stream.batches for at, route in core.decide(batch, random).items()}


def model_routes(stream: Stream) -> dict[Position, routing.Route]:
    model = Model(stream.rules, stream.max_future_us)
    decided = (model.decide(batch.records, batch.facts, batch.changed) for batch in stream.batches)
    return {at: route for decisions in decided for at, route in routes(decisions).items()}


# Each of these bugs, put into the core, must make the comparison fail.


def aged_late(latest: Any, keys: Any, period: int) -> Any:
    return expiry.aged(latest, keys, min(period + 1, units.INT64_MAX))


def aged_wrapping(latest: Any, keys: Any, period: int) -> Any:
    return latest - keys >= period


def points_of_the_chunk_alone(latest: Any, keys: Any, counts: Any, ends: Any) -> Any:
    return expiry.latest_points(np.full_like(latest, units.UNKNOWN), keys, counts, ends)


def points_of_the_first_partition(latest: Any, keys: Any, counts: Any, ends: Any) -> Any:
    points, after = expiry.latest_points(latest[:1], keys, counts, ends[-1:])
    return points, np.repeat(after, len(ends))


def late_by_the_last(points: Any, keys: Any) -> Any:
    return expiry.behind(points.max(keepdims=True), keys) if len(keys) else keys.view(np.uint64)


def apart_by_the_last(
    candidates: Any, order: Any, starts: Any, known: Any, found: Any, by: Any, real: Any = dedup._apart
) -> Any:
    return real(
        candidates, order, starts, known, found, np.maximum(by, np.flatnonzero(starts)[np.cumsum(starts) - 1])
    )


def nulls_that_age(self: Any, part: Any, passed: Any, null: Any) -> Any:
    return self.check(replace(part, flags=part.flags & ~np.uint8(frames.NULL)), passed & ~null)


def nulls_that_move_the_clock(
    self: Any, part: Any, passed: Any, null: Any, real: Any = batch_clock.BatchClock._check_with_nulls
) -> Any:
    return real(self, part, passed | null, np.zeros(len(null), np.bool_))


def no_witnesses(sources: Any, chunk: Any, own: Any, rank: Any) -> Any:
    return np.ones(len(own), np.bool_)


def no_witnesses_of_other_partitions(
    sources: Any, chunk: Any, own: Any, rank: Any, real: Any = frames._implied
) -> Any:
    return real(sources, chunk, own, rank) if own.any() else np.ones(len(own), np.bool_)


def every_row_a_repeat(sources: Any, chunk: Any, expiry: Any) -> Any:
    return np.ones(len(expiry), np.bool_)


def jumps_by_all_before(latest: int, keys: Any, counts: Any, max_jump: int) -> Any:
    points, _ = expiry.latest_points(np.array([latest]), keys, counts, np.array([len(keys)]))
    before = np.concatenate([[latest], points])[:-1]
    return counts & (before != units.UNKNOWN) & (keys > before) & (keys - before > max_jump)


def no_replays_in_chunk(sources: Any, offset: Any) -> Any:
    return np.zeros(len(offset), np.bool_)


def run_as_it_comes(parts: list[Any], real: Callable[[list[Any]], Any] = key_run.Run.merged) -> Any:
    return parts[0] if len(parts) == 1 else real(parts)


def evict_early(self: Any, latest: int, real: Any = buckets.Buckets.evict) -> None:
    real(self, latest + 1)


def evict_late(self: Any, latest: int, real: Any = buckets.Buckets.evict) -> None:
    real(self, latest - 1)


def idle_at_once(
    self: Any, mark_time_us: int, ttl_us: int, store: Any, real: Any = mark_table.MarkTable.without_idle
) -> Any:
    return real(self, mark_time_us, ttl_us - 1, store)


def oldest_run_first(self: Any, store: Any, real: Any = mark_table.MarkTable._newest_first) -> Any:
    return reversed(list(real(self, store)))


def mark_time_that_leaps(self: Any, time_us: int) -> Any:
    return replace(self, time_us=time_us, mark_time_us=time_us)


def forgets_while_behind(
    frames: Any, rules: Any, state: Any, store: Any, facts: BatchFacts, real: Any = routing.route_batch
) -> Any:
    return real(frames, rules, state, store, facts._replace(caught_up=True))


def latest_for_ever(rules: Any, latest: int, low: int, believed_us: int) -> int:
    return max(latest, units.time_in_unit(believed_us, rules.unit))


def marks_across_partitions(self: Any, group: Any, real: Any = marks.BatchMarks.replays) -> Any:
    found = real(self, group)
    for source in np.unique(self._source):
        same = self._source == source
        self._mark[same], self._known[same] = self._mark[same].max(), self._known[same].any()
    return found


def upper_halves_only(self: Any, hi: Any, lo: Any, masks: Any) -> Any:
    at = np.searchsorted(self.hi, hi)
    inside = np.flatnonzero(at < len(self.hi))
    hits = inside[self.hi[at[inside]] == hi[inside]]
    return hits, at[hits], 0


def one_salt_for_all(topic: str, partition: int) -> tuple[int, int]:
    return 0, 0


def lenient_threshold(time_us: int, max_future_us: int, unit: str) -> int:
    return units.future_threshold(time_us, max_future_us, unit) + 1


def time_rounded_up(time_us: int, unit: str) -> int:
    return -(-time_us * 1000 // units.UNIT_NS[unit])


def refreshed_by_no_duplicate(
    candidates: Any, order: Any, starts: Any, known: Any, period: int, real: Any = dedup._refreshing
) -> Any:
    found, by, _ = real(candidates, order, starts, known, period)
    return found, by, ~found


def refreshed_within_the_batch_only(
    candidates: Any, order: Any, starts: Any, known: Any, period: int, real: Any = dedup._refreshing
) -> Any:
    found, by, moved = real(candidates, order, starts, known, period)
    return found, by, moved & (by != dedup._REMEMBERED)


def refreshed_and_accepted_at_once(
    candidates: Any, order: Any, starts: Any, known: Any, period: int, real: Any = dedup._refreshing
) -> Any:
    found, _, moved = real(candidates, order, starts, known, period)
    return found, np.arange(len(order)), moved


def content_of_any_name(self: Any, name: str, real: Any = key_run.Run.column) -> Any:
    names = [each for each in self.kept if each.startswith(key_run.CONTENT)]
    return self.kept[names[0]] if name.startswith(key_run.CONTENT) and names else real(self, name)


def content_always_known(self: Any, name: str, real: Any = key_run.Run.column) -> Any:
    return real(self, name) | np.uint32(name not in self.kept) if name != key_run.OFFSET else real(self, name)


def content_of_the_last(
    candidates: Any, order: Any, starts: Any, known: Any, period: int, real: Any = dedup._within_period
) -> Any:
    found, by = real(candidates, order, starts, known, period)
    return found, np.where(starts, by, np.arange(len(order)) - 1)


BUGS: list[tuple[str, Any, str, Callable[..., Any]]] = [
    ("plain", batch_clock, "aged", aged_late),
    ("plain", dedup, "aged", aged_late),
    ("extremes", batch_clock, "aged", aged_wrapping),
    ("plain", batch_clock, "latest_points", points_of_the_chunk_alone),
    ("plain", batch_clock, "latest_points", points_of_the_first_partition),
    ("plain", routing, "behind", late_by_the_last),
    ("times", dedup, "_apart", apart_by_the_last),
    ("plain", batch_clock.BatchClock, "_check_with_nulls", nulls_that_age),
    ("plain", batch_clock.BatchClock, "_check_with_nulls", nulls_that_move_the_clock),
    ("plain", frames, "_implied", no_witnesses),
    ("plain", frames, "_implied", no_witnesses_of_other_partitions),
    ("plain", core_run, "partition_salt", one_salt_for_all),
    ("ordered", frames, "_repeats", every_row_a_repeat),
    ("categorical", frames, "_repeats", every_row_a_repeat),
    ("ordered", batch_clock, "find_jumps", jumps_by_all_before),
    ("replays", frames, "_replays_in_chunk", no_replays_in_chunk),
    ("crowded", key_run.Run, "merged", run_as_it_comes),
    ("plain", buckets.Buckets, "evict", evict_early),
    ("plain", buckets.Buckets, "evict", evict_late),
    ("replays", mark_table.MarkTable, "without_idle", idle_at_once),
    ("replays", marks.BatchMarks, "replays", marks_across_partitions),
    ("replays", ShardState, "at", mark_time_that_leaps),
    ("replays", core_run, "route_batch", forgets_while_behind),
    ("system", batch_clock, "_latest_before", latest_for_ever),
    ("crowded", key_run.Run, "search", upper_halves_only),
    ("crowded", dedup, "_refreshing", refreshed_by_no_duplicate),
    ("crowded", dedup, "_refreshing", refreshed_within_the_batch_only),
    ("crowded", dedup, "_refreshing", refreshed_and_accepted_at_once),
    ("periods", key_run.Run, "column", content_of_any_name),
    ("periods", key_run.Run, "column", content_always_known),
    ("plain", dedup, "_within_period", content_of_the_last),
    ("times", core_run, "future_threshold", lenient_threshold),
    ("system", batch_clock, "time_in_unit", time_rounded_up),
]


@pytest.mark.parametrize(("profile", "owner", "name", "bug"), BUGS, ids=[bug.__name__ for *_, bug in BUGS])
def test_a_bug_in_the_core_is_noticed(
    monkeypatch: pytest.MonkeyPatch, profile: str, owner: Any, name: str, bug: Callable[..., Any]
) -> None:
    monkeypatch.setattr(owner, name, bug)
    for seed in range(SEEDS):
        try:
            compare(make_stream(seed, profile))
        except AssertionError:
            return
    pytest.fail(f"{bug.__name__} was not noticed in {SEEDS} streams of {profile!r}")


def test_a_failing_stream_is_shrunk_to_a_few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_replays_in_chunk", no_replays_in_chunk)
    streams = (make_stream(seed, "replays") for seed in range(SEEDS))
    stream = next(stream for stream in streams if failure_of(stream))
    small = shrink(stream)
    assert isinstance(failure_of(small), AssertionError)
    assert sum(1 for _ in small.records()) <= 4
    assert f"make_stream({stream.seed}, 'replays')" in describe(stream)
