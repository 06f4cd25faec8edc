"""Compares the vectorised core with the reference model, and shrinks a stream by which they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from random import Random

from hypothesis import find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from replayfilter.core.clock.clocks import Clock
from replayfilter.core.clock.periods import PERIODS_US
from replayfilter.core.replay.marks import Marks
from replayfilter.core.routing import Route
from tests.support.core_run import CoreRun, Remembered, newest_of, salted
from tests.support.reference import UNIT_NS, Decision, Key, Model, Position
from tests.support.streams import Stream, digest


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
        lengths = _lengths(expected.values(), model)
        counted = sum((Counter(_counted_lengths(shard)) for shard in core.stats), Counter())
        assert counted == lengths, f"batch {number}: lengths {counted}, model {lengths}"
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
    seen["refreshed"] += model.refreshed
    seen["spread"] += sum(len(mark.partitions) > 1 for mark in model.marks.values())
    return seen


def _counted_lengths(stats: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in stats.items() if name.startswith(("late_", "apart_"))}


def _lengths(decisions: Iterable[Decision], model: Model) -> Counter[str]:
    """What a batch counts of how late records are, and duplicates apart, by the bounds of the buckets."""
    lengths: Counter[str] = Counter()
    unit_ns = UNIT_NS.get(model.rules.unit)
    if unit_ns is None or not model.rules.dedup or not model.rules.clock.has_latest_point:
        return lengths
    for decision in decisions:
        route = {Route.CONFLICT: "duplicate"}.get(decision.route, decision.route.name.lower())
        for name, length in ((f"late_{route}", decision.age), ("apart", decision.apart)):
            if length is not None:
                bucket = sum(length * unit_ns >= period * 1_000 for period in PERIODS_US)
                lengths[f"{name}_{bucket}"] += 1
    return lengths


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


def _remembered(core: CoreRun, model: Model) -> set[Remembered]:
    newest: dict[tuple[Key, int | None], int] = {}
    clock = core.rules.clock
    for key, expiries in model.accepted.items():
        for expiry in expiries:
            bucket = expiry // core.rules.span if clock.expires else None
            if clock is Clock.CATEGORICAL:
                bucket = expiry
            newest[key, bucket] = max(expiry, newest.get((key, bucket), expiry))
    aged = core.rules.keeps_ages
    kept = {
        (*salted(digest(core.digest_kind, key), within), bucket, expiry if aged else None)
        for ((key, within), bucket), expiry in newest.items()
    }
    return newest_of(kept) if core.may_have_moved else kept


def _marks(marks: Marks) -> dict[tuple[int, int], tuple[int, int, int, bool]]:
    columns = (marks.pid, marks.partition, marks.mark, marks.seen, marks.gaps, marks.spread)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    found = {(pid, partition): tuple(rest) for pid, partition, *rest in rows}
    assert len(found) == len(rows), "a source has two marks"
    return found


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
