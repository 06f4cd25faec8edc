"""The lines of an explanation that come from the state, and how expiry keys and buckets are printed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from replayfilter.core.clock.units import UNIT_NS
from replayfilter.core.rules import Rules
from replayfilter.core.stamp import Stamp
from replayfilter.errors import CheckpointError
from replayfilter.service.config.model import Config
from replayfilter.service.runtime.checkpoint import SPARK, local_folder, locked, owned
from replayfilter.service.tools.explain.stored_facts import DedupKey, Facts, facts_of, runs_to_search
from replayfilter.spark.checkpoint_folder import CheckpointFolder
from replayfilter.watermark.times import format_time

LOCK_LIMIT_S = 0.5  # a running service keeps the lock


class Line(NamedTuple):
    """A line of an explanation: what it is about, and a text."""

    about: str
    text: str


def state_lines(
    config: Config, checkpoint: CheckpointFolder, rules: Rules, stamp: Stamp | None, key: DedupKey | None
) -> Iterator[Line]:
    """What the state of a stopped service says now about a record with this stamp and key; starts Spark."""
    try:
        facts = _read_facts(config, checkpoint, rules, stamp, key)
    except CheckpointError as error:
        yield Line("state", f"not read: {error}")
        return
    yield Line("state", f"of now, after the batch of {format_time(facts.time_us)}; earlier ones are gone")
    if stamp is not None:
        yield Line("mark", _mark_text(stamp, facts.mark))
    if rules.clock.has_latest_point and facts.latest is not None:
        text = expiry_text(facts.latest, rules)
        if key is not None:
            behind = facts.latest - key.expiry
            verdict = "expired" if behind >= rules.period else "not expired"
            text += f"; the record is {behind:,} behind, and the period is {rules.period:,}: {verdict}"
        yield Line("latest point", text)
    if key is not None:
        yield Line("bucket", f"{facts.bucket_keys:,} keys in {facts.bucket_runs} runs")
        yield Line("key", _key_text(facts, rules))


def expiry_text(expiry: int, rules: Rules) -> str:
    """An expiry key, and the time that it is where its unit is one of time."""
    if not rules.clock.reads_time or rules.unit not in UNIT_NS:
        return str(expiry)
    return f"{expiry} ({format_time(expiry * UNIT_NS[rules.unit] // 1_000)})"


def bucket_text(key: DedupKey, rules: Rules) -> str:
    """The bucket of a key, and the expiry keys that belong to it."""
    bucket = key.bucket(rules)
    if not rules.clock.has_latest_point:
        return str(bucket)
    first, last = bucket * rules.span, (bucket + 1) * rules.span - 1
    return f"{bucket}: expiry keys {expiry_text(first, rules)} to {expiry_text(last, rules)}"


def _read_facts(
    config: Config, checkpoint: CheckpointFolder, rules: Rules, stamp: Stamp | None, key: DedupKey | None
) -> Facts:
    folder = local_folder(config.service.checkpoint)
    with locked(folder, LOCK_LIMIT_S) if folder else owned(config, checkpoint):
        if not checkpoint.names(f"{SPARK}/commits"):
            raise CheckpointError("no batch is finished")
        from replayfilter.spark.state_reader import read_state

        shards, store = read_state(checkpoint, SPARK, lambda found: runs_to_search(found, rules, key))
    return facts_of(shards, store, rules, stamp, key)


def _mark_text(stamp: Stamp, mark: int | None) -> str:
    source = f"of source {stamp.pid}/{stamp.partition}"
    if mark is None:
        return f"{source}: none, or forgotten after replay.mark_ttl; the record would pass now"
    relation = "at or below it, so it would be a replay now" if stamp.offset <= mark else "above it"
    return f"{source}: {mark}; the record's offset {stamp.offset} is {relation}"


def _key_text(facts: Facts, rules: Rules) -> str:
    where = "remembered" if facts.remembered else "not remembered"
    if facts.newest is not None:
        where += f" with expiry key {expiry_text(facts.newest, rules)}"
        if facts.latest is not None and facts.latest - facts.newest >= rules.period:
            where += ", which is out of the period, so it would be unique now"
    if facts.first:
        where += f"; the first record with it is {facts.first}"
    if rules.searches_all_buckets and not facts.all_buckets and not facts.remembered:
        where += "; only its own bucket was searched"
    return where
