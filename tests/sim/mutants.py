"""Mutants: the real source with one expression replaced. The simulator must find each of them.

A mutant is applied while its module is imported, in a process of its own. So everything that uses the module
gets it, and no file is changed.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

from tests.support.paths import ROOT


class Mutant(NamedTuple):
    """``old``, which the module has once, is replaced by ``new``. ``seeds``: within so many it is found."""

    name: str
    breaks: str
    module: str
    old: str
    new: str
    seeds: int = 400


_LANES, _MODEL = "replayfilter.kafka.lanes", "tests.sim.spark_model"

MUTANTS = (
    # -- the protocol of a lane ------------------------------------------------------------------------
    Mutant(
        "no fence", "two attempts own a lane at once", "replayfilter.kafka.standbys",
        'f"{self._service}-{lane}"', 'f"{self._service}-{lane}-{time.monotonic()}"',
    ),
    Mutant(
        "offsets read before init", "another attempt may commit in between", _LANES,
        "_Owner(self._take_over(lane, stats), {})",
        "_Owner(committed=self.committed(partitions, stats, STEP_LIMIT_S), "
        "producer=self._take_over(lane, stats))",
    ),
    Mutant(
        "offsets of a fenced owner are kept", "they are older than what the next owner delivered", _LANES,
        "_Owner(self._take_over(lane, stats), {})",
        "_Owner(self._take_over(lane, stats), owner.committed if owner else {})",
    ),
    Mutant(
        "offsets outside the transaction", "records without their offsets, or the reverse", _LANES,
        "send_offsets(owner.producer, ahead, self._lanes.membership, self.stats, text)\n            with",
        "self._lanes.offsets._consumer.commit(offsets=[__import__('confluent_kafka').TopicPartition(*at, end)"
        " for at, end in ahead.items()], asynchronous=False)\n            with",
    ),
    Mutant(
        "no offsets are committed", "nobody knows what was delivered", _LANES,
        "send_offsets(owner.producer, ahead, self._lanes.membership, self.stats, text)\n            with",
        "send_offsets(owner.producer, {}, self._lanes.membership, self.stats, text)\n            with",
    ),
    Mutant(
        "delivered records are written again", "the committed offsets are not looked at", _LANES,
        "first = bisect_left(chunk.offsets, self.committed(partition))", "first = 0",
    ),
    Mutant(
        "one record too many is left out", "the committed offset is the next one, not the last", _LANES,
        "first = bisect_left(chunk.offsets, self.committed(partition))",
        "first = __import__('bisect').bisect_right(chunk.offsets, self.committed(partition))",
    ),
    Mutant(
        "a failed commit counts as done", "a batch is finished that was not delivered", _LANES,
        "if isinstance(problem, ServiceReplaced) or not self._was_delivered(next_offsets):",
        "if isinstance(problem, ServiceReplaced):",
    ),
    Mutant(
        "pending offsets are ignored", "another service's commit may still take effect",
        "replayfilter.kafka.offsets",
        '"read_committed" if stable else "read_uncommitted"', '"read_uncommitted"',
    ),
    Mutant(
        "the membership is not checked", "a service that was replaced still delivers", _LANES,
        "send_offsets(owner.producer, ahead, self._lanes.membership, self.stats, text)\n            with",
        "send_offsets(owner.producer, ahead, self._lanes.offsets.metadata, self.stats, text)\n"
        "            with",
    ),
    Mutant(
        "routes by order instead of by row", "the rows of several shards are mixed up",
        "replayfilter.spark.deliver",
        "codes[part.rows] = part.codes", "codes[np.flatnonzero(codes == 0)[: len(part.rows)]] = part.codes",
    ),
    Mutant(
        "payloads in any order", "an exchange brings rows in any order", _MODEL,
        "sorted(rows, key=lambda row: (row[0], row[3]))", "sorted(rows, key=lambda row: row[0])",
    ),
    # -- starts and joins ------------------------------------------------------------------------------
    Mutant(
        "a pending commit is not waited for", "a group is called set back right after a delivery",
        "replayfilter.service.runtime.preflight",
        "_ranges_behind(_settled(config, cluster, seemingly), progress.end)",
        "_ranges_behind(committed, progress.end)",
    ),
    Mutant(
        "a driver takes itself for another service", "it ends after it has joined again",
        "replayfilter.spark.first_offsets",
        "membership.ask()  # raises, unless it was this service that has joined again", "raise",
    ),
    # -- the batch and its state -----------------------------------------------------------------------
    Mutant(
        "commit log before delivery", "a batch is finished that was not delivered", _MODEL,
        "        self._deliver(rows)\n        log.write(\"commits\", batch, \"v1\\n{}\")\n",
        "        log.write(\"commits\", batch, \"v1\\n{}\")\n        self._deliver(rows)\n",
    ),
    Mutant(
        "no offset log", "a second attempt of a batch has other records", _MODEL,
        'if batch == log.last("commits"):', 'if batch >= (batch := log.last("commits")):',
    ),
    Mutant(
        "state of an unfinished batch used", "the batch finds its own keys and marks", _MODEL,
        "self._checkpoint.state.get((shard, batch), (None, {}))",
        "self._checkpoint.state.get((shard, batch + 1)) or "
        "self._checkpoint.state.get((shard, batch), (None, {}))",
    ),
    Mutant(
        "batch time from the worker's clock", "attempts see different times", "replayfilter.spark.source",
        "facts = batch.facts or BatchFacts.at(self._settings.last_time_us)._replace(caught_up=False)",
        "facts = BatchFacts.at(time.time_ns() // 1000)",
    ),
    Mutant(
        "a begun batch is decided by the new config", "lanes and state disagree",
        "replayfilter.service.runtime.decisions", "return begun_with, True", "return wanted, False",
    ),
    Mutant(
        "shards changed on a live checkpoint", "keys are searched for in another shard",
        "replayfilter.service.runtime.checkpoint",
        '    "shards": "service.shards",\n    "lanes": "service.shards",\n', "",
    ),
    Mutant(
        "lost checkpoint not noticed", "keys and marks are forgotten without a word",
        "replayfilter.service.runtime.preflight",
        "elif delivered and not from_committed:", "elif False:",
    ),
    Mutant(
        "a new partition begins at its end", "its first records are never read", "replayfilter.spark.source",
        "earliest = cluster.beginning_offsets(new)", "earliest = cluster.end_offsets(new)",
    ),
    Mutant(
        "a jump of the clock is believed at once", "one wrong clock expires records",
        "replayfilter.spark.source",
        "believed = believed_time(now, self._last.time_us, passed_us)", "believed = now",
    ),
    # -- the core --------------------------------------------------------------------------------------
    Mutant(
        "rounds not in order", "what a chunk decides no longer depends on those before it",
        "replayfilter.core.part_groups",
        "sorted(self._groups.items(), key=lambda item: item[0][0])", "list(self._groups.items())[::-1]",
    ),
    Mutant(
        "witnesses left out", "a shard doesn't see how other shards' records move the clock",
        "replayfilter.core.frames",
        "own | ~implied | ((flags & (FIRST | JUMP)) != 0) | carriers", "own | carriers",
    ),
    Mutant(
        "a replay of the mark itself passes", "the last record before a crash is delivered twice",
        "replayfilter.core.replay.marks",
        "replay = known & (offset <= mark)", "replay = known & (offset < mark)",
    ),
    Mutant(
        "marks advance early", "a shard's marks have the batch already", "replayfilter.core.routing",
        "state = state.at(facts.time_us)",
        "state = state.at(facts.time_us)\n"
        "    early = BatchMarks(parts, partial(state.marks.find, store=store), state.mark_time_us)\n"
        "    [early.replays(group) for group in parts.groups()]\n"
        "    state = replace(state, marks=state.marks.with_changed(early.result(), early.before, store))",
    ),
    Mutant(
        "mark ttl by the clock", "a downtime makes every source idle", "replayfilter.core.state",
        "step = min(max(0, time_us - self.time_us), CLOCK_STEP_US)", "step = max(0, time_us - self.time_us)",
        1500,
    ),
    Mutant(
        "marks forgotten while behind", "a source that is still to be read is taken for idle",
        "replayfilter.core.routing", "if facts.caught_up:", "if True:", 1500,
    ),
    Mutant(
        "bucket evicted one too early", "keys are forgotten within their period", "replayfilter.core.buckets",
        "(bucket + 1) * self.rules.span - 1 <= latest", "bucket * self.rules.span - 1 <= latest",
    ),
    Mutant(
        "run named without its content", "the cache gives another attempt's run", "replayfilter.core.buckets",
        "xxhash.xxh3_128_hexdigest(data)", "xxhash.xxh3_128_hexdigest(bytes(len(run.hi)))",
    ),
    Mutant(
        "latest point travels within a batch", "partitions that are read together see each other",
        "replayfilter.core.batch_clock", "before = self._points[group.inputs]",
        "before = np.full(len(group.inputs), self.latest)",
    ),
    Mutant(
        "expired one unit late", "a record of exactly the period passes", "replayfilter.core.clock.expiry",
        "(expiry <= latest - np.int64(period))", "(expiry < latest - np.int64(period))",
    ),
    Mutant(
        "duplicates in one batch not found", "only remembered keys count", "replayfilter.core.dedup",
        "found = ~starts", "found = np.zeros(len(starts), np.bool_)",
    ),
    Mutant(
        "refreshed within a batch only", "the new time of a key is not remembered", "replayfilter.core.dedup",
        "return found, by, moved", "return found, by, ~found",
    ),
    Mutant(
        "conflicts not found", "a record is compared with itself", "replayfilter.core.dedup",
        "np.where(earlier, known.kept[name][group], column[order[by]])", "column[order]",
    ),
    Mutant(
        "what is not known conflicts", "for keys remembered before there is no digest",
        "replayfilter.core.routing", "both_known = (content != 0) & (first[name] != 0)",
        "both_known = content != 0", 1500,
    ),
    # -- what readers rely on --------------------------------------------------------------------------
    Mutant(
        "output partition by offset", "an input partition's records are in several",
        "replayfilter.spark.deliver",
        "(partitions % self._partitions[codes])", "(offsets % self._partitions[codes])",
    ),
    Mutant(
        "one pid for all outputs", "a reader of two outputs drops records", "replayfilter.spark.partitioning",
        "service, output.id, str(output.partitions)", "service, str(output.partitions)",
    ),
    Mutant(
        "one pid for all partition counts", "a reader drops records after more partitions",
        "replayfilter.spark.partitioning", "output.id, str(output.partitions)", "output.id", 1500,
    ),
    Mutant(
        "a source's records in several partitions", "the order that marks rely on is gone",
        "replayfilter.client.producer", "number = source_partition % self.partitions",
        "number = source_offset % self.partitions",
    ),
    Mutant(
        "a job's checkpoint before its records", "records that were never written count as written",
        "replayfilter.client.producer",
        "left = self._call(self._producer.flush, min(step, FLUSH_STEP_S))", "left = 0",
    ),
    Mutant(
        "a reader's marks are not saved", "it has none after a restart", "replayfilter.client.consumer",
        "text = state.text(_hour())", 'text = ""',
    ),
    Mutant(
        "a reader commits an offset too many", "it leaves out a record after a restart",
        "replayfilter.client.consumer",
        "state.position = int(message.offset() or 0) + 1", "state.position = int(message.offset() or 0) + 2",
    ),
    Mutant(
        "a reader keeps the record at its mark", "the last record before a crash is handled twice",
        "replayfilter.core.replay.marks", "if stamp.offset <= mark:", "if stamp.offset < mark:",
    ),
)  # fmt: skip


def applied(mutant: Mutant) -> str:
    """The mutated source. Raises ValueError unless it has the text to replace exactly once."""
    source = (ROOT / (mutant.module.replace(".", "/") + ".py")).read_text("utf-8")
    found = source.count(mutant.old)
    if found != 1:
        raise ValueError(
            f"mutant {mutant.name!r}: {mutant.module} has {mutant.old!r} {found} times, not once"
        )
    return source.replace(mutant.old, mutant.new)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType | None:
        return compile(self._source, self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant, self._source = mutant, applied(mutant)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._mutant.module:
            return None
        file = str(Path(ROOT, *name.split(".")).with_suffix(".py"))
        return importlib.util.spec_from_loader(name, _Loader(name, file, self._source))


def install(name: str) -> Mutant:
    """Make this process a mutant's; before its module is imported."""
    mutant = next(each for each in MUTANTS if each.name == name)
    assert mutant.module not in sys.modules, f"{mutant.module} is imported already"
    sys.meta_path.insert(0, _Finder(mutant))
    return mutant
