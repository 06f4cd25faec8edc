"""``replayfilter verify``: is each input record in exactly one output, unchanged, in its order?

It looks at what Kafka holds, not at the service's state: input records that were delivered (below the
group's committed offsets) and are still there, against the records of all output topics. What is in no
output must be a replay; that is found out anew, by :class:`ReplayFilter`, from the stamps of the input.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import gcd
from pathlib import Path
from typing import cast

import numpy as np
import xxhash
from confluent_kafka import Message
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from replayfilter.core.replay.marks import ReplayFilter
from replayfilter.core.stamp import STAMP_BYTES, STAMP_HEADER, Stamp
from replayfilter.errors import BrokerError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.chunk import FIRST_MS, Headers, InputPartition
from replayfilter.kafka.client_settings import Settings, client_settings
from replayfilter.kafka.reader import Range, RangeReader, partition_of
from replayfilter.service.config.model import Config
from replayfilter.service.runtime.checkpoint import CheckpointFolder, local_folder, spark_progress
from replayfilter.spark.partitioning import output_pid

EXAMPLES = 3  # of each fault

FAULTS = {
    "lost": "in no output, and no replay",
    "twice": "in the outputs more than once",
    "changed": "with another value or timestamp than in the input",
    "misplaced": "in another partition than input partition % count",
    "disordered": "behind a later record of the same input partition",
    "unknown": "stamped for an input record that there is not",
    "foreign": "without a stamp of this service",
}


@dataclass(slots=True)
class Ledger:
    """One input partition: what was read of it, and what the outputs have of it.

    ``offsets`` ascend; ``digests`` are of value and timestamp. ``delivered`` counts by route.
    ``replays``: in no output, and found to be one; ``untold``: in no output, and its source's earlier records
    are no longer in the topic; ``let_by``: in an output though it looks like a replay (marks that were
    forgotten, or lost with a checkpoint).
    """

    first: int = 0
    offsets: array[int] = field(default_factory=lambda: array("q"))
    digests: array[int] = field(default_factory=lambda: array("Q"))
    stamps: list[bytes | None] = field(default_factory=list)
    seen: array[int] = field(default_factory=lambda: array("q"))  # offsets, one for each output record
    seen_digests: array[int] = field(default_factory=lambda: array("Q"))
    unmarked: set[int] = field(default_factory=set)  # errors of decode, which leave no mark
    delivered: Counter[str] = field(default_factory=Counter)
    replays: int = 0
    untold: int = 0
    let_by: int = 0


@dataclass(slots=True)
class Verdict:
    """All partitions, and the faults found: how many of each, and a few examples."""

    ledgers: dict[InputPartition, Ledger]
    faults: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether no fault was found."""
        return not self.faults

    def add(self, fault: str, example: str, count: int = 1) -> None:
        """Count a fault."""
        self.faults[fault] += count
        examples = self.examples.setdefault(fault, [])
        if len(examples) < EXAMPLES:
            examples.append(example)


def verify(config: Config, console: Console) -> bool:
    """Check and print a table; whether all is right. Raises BrokerError if topics can't be read."""
    verdict = Verifier(config).check()
    console.print(table_of(verdict, list(config.output_topics())))
    for fault, count in verdict.faults.items():
        some = ", ".join(verdict.examples[fault])
        console.print(f"[red]{fault}[/red]: {count:,} records {FAULTS[fault]}: {some}", highlight=False)
    let_by = sum(ledger.let_by for ledger in verdict.ledgers.values())
    if let_by:
        console.print(
            f"{let_by:,} records look like replays and were let by: right only if their marks had been "
            "forgotten (replay.mark_ttl) or were lost with a checkpoint",
            highlight=False,
        )
    if config.output.key == "preserve":
        console.print('With output.key = "preserve" records are told apart by content: order is not checked.')
    console.print("Every input record is in exactly one output." if verdict.ok else "Not all is right.")
    return verdict.ok


class Verifier:
    """Reads input and outputs once each; holds about 140 bytes a record while it works."""

    def __init__(self, config: Config) -> None:
        self.config = config
        options = config.client_options()
        self._settings: Settings = client_settings(config.kafka.bootstrap, options)
        self._cluster = Cluster(config.kafka.bootstrap, options)
        self._topics = self._cluster.topics([*config.input.topics, *config.output_topics().values()])
        missing = {*config.input.topics, *config.output_topics().values()} - self._topics.keys()
        if missing:
            raise BrokerError(f"there is no topic {', '.join(sorted(missing))}; correct the config")
        self._sources = self._partitions(config.input.topics)
        ids = {topic: self._topics[topic].id for topic in config.input.topics}
        self._pids = {output_pid(self._cluster.id, id_, config.service.name): t for t, id_ in ids.items()}

    def check(self) -> Verdict:
        """Read all and compare."""
        done = self._cluster.committed(self.config.service.name, self._sources)
        starts = self._starts()
        verdict = Verdict({source: Ledger(starts[source]) for source in self._sources})
        ranges = {source: (starts[source], done.get(source, 0)) for source in self._sources}
        stamps = self.config.input.stamp if self.config.replay.enabled else "none"
        for message in self._read(ranges):
            ledger = verdict.ledgers[partition_of(message)]
            ledger.offsets.append(int(message.offset() or 0))
            ledger.digests.append(_digest(message))
            ledger.stamps.append(_stamp(message, stamps))
        compare = self._by_content if self.config.output.key == "preserve" else self._by_stamp
        compare(verdict, done)
        return verdict

    def _starts(self) -> dict[InputPartition, int]:
        """Where to begin: at the first record there is, or where a service that began at the end began."""
        begins = self._cluster.begins(self._sources)
        folder = local_folder(self.config.service.checkpoint)
        if self.config.input.starting == "latest" and folder is not None:
            progress = spark_progress(CheckpointFolder(Path(folder)))
            first = progress.start if progress else {}
            return {(t, p): max(begin, first.get(t, {}).get(p, begin)) for (t, p), begin in begins.items()}
        return begins

    def _outputs(self) -> Iterable[tuple[str, Message]]:
        """Each record of each output, with its key in the config."""
        for path, topic in self.config.output_topics().items():
            sources = self._partitions([topic])
            begins, ends = self._cluster.begins(sources), self._cluster.ends(sources)
            for message in self._read({at: (begins[at], ends[at]) for at in sources}):
                yield path, message

    def _read(self, ranges: dict[InputPartition, Range]) -> Iterator[Message]:
        with RangeReader(self._settings, "replayfilter-verify") as reader:
            yield from reader.read(ranges)

    def _partitions(self, topics: Iterable[str]) -> list[InputPartition]:
        return [(topic, number) for topic in topics for number in range(self._topics[topic].partitions)]

    # ---- by the service's own stamps -----------------------------------------------------------------

    def _by_stamp(self, verdict: Verdict, done: dict[InputPartition, int]) -> None:
        last: dict[tuple[str, int, InputPartition], int] = {}
        for path, message in self._outputs():
            topic, partition = partition_of(message)
            where = f"{topic}-{partition} offset {message.offset()}"
            stamp = Stamp.from_bytes(message.key())
            if stamp is None or stamp.pid not in self._pids:
                verdict.add("foreign", where)
                continue
            source = self._pids[stamp.pid], stamp.partition
            ledger = verdict.ledgers.get(source)
            if ledger is None:
                verdict.add("unknown", where)
                continue
            if not ledger.first <= stamp.offset < done.get(source, 0):
                continue  # no longer in the input, or delivered since we asked
            if stamp.partition % self._topics[topic].partitions != partition:
                verdict.add("misplaced", where)
            if last.get((topic, partition, source), -1) > stamp.offset:
                verdict.add("disordered", where)
            last[topic, partition, source] = stamp.offset
            ledger.delivered[path] += 1
            ledger.seen.append(stamp.offset)
            ledger.seen_digests.append(_digest(message))
            if path == "output.error" and ("rf-stage", b"decode") in (message.headers() or ()):
                ledger.unmarked.add(stamp.offset)
        for source, ledger in verdict.ledgers.items():
            _match(verdict, source, ledger)
        _explain_missing(verdict, self.config.replay.enabled)

    # ---- by content, where keys are the users' own ---------------------------------------------------

    def _by_content(self, verdict: Verdict, done: dict[InputPartition, int]) -> None:
        """Input and outputs as bags of records, by groups of partitions that meet in the same ones."""
        outputs = self.config.output_topics().values()
        groups = gcd(*(self._topics[topic].partitions for topic in outputs))
        left: dict[int, Counter[int]] = {number: Counter() for number in range(groups)}
        counted: dict[int, Ledger] = {}
        for (_, partition), ledger in verdict.ledgers.items():
            left[partition % groups].update(ledger.digests)
            counted.setdefault(partition % groups, ledger)
        for path, message in self._outputs():
            topic, partition = partition_of(message)
            bag, digest = left[partition % groups], _digest(message)
            bag[digest] -= 1
            if bag[digest] < 0:
                verdict.add("unknown", f"{topic}-{partition} offset {message.offset()}")
            counted[partition % groups].delivered[path] += 1
        for source, ledger in verdict.ledgers.items():
            bag = left[source[1] % groups]
            for offset, digest in zip(ledger.offsets, ledger.digests, strict=True):
                if bag[digest] <= 0:
                    ledger.seen.append(offset)
                else:
                    bag[digest] -= 1
        _explain_missing(verdict, self.config.replay.enabled)


def _match(verdict: Verdict, source: InputPartition, ledger: Ledger) -> None:
    """Each output record against the input record that its stamp names."""
    if not ledger.seen:
        return
    seen, digests = np.array(ledger.seen, np.int64), np.array(ledger.seen_digests, np.uint64)
    offsets, known = np.array(ledger.offsets, np.int64), np.array(ledger.digests, np.uint64)
    values, counts = np.unique(seen, return_counts=True)
    _report(verdict, "twice", source, values[counts > 1])
    there = np.isin(seen, offsets)
    _report(verdict, "unknown", source, seen[~there])
    at = np.searchsorted(offsets, seen[there])
    _report(verdict, "changed", source, seen[there][known[at] != digests[there]])


def _report(verdict: Verdict, fault: str, source: InputPartition, offsets: NDArray[np.int64]) -> None:
    for offset in offsets.tolist():
        verdict.add(fault, f"{source[0]}-{source[1]} offset {offset}")


def _explain_missing(verdict: Verdict, filters: bool) -> None:
    """What is in no output must be a replay: at or below the mark of its source, as the input tells it."""
    everywhere: dict[tuple[int, int], int] = {}
    unexplained: list[tuple[InputPartition, int, Stamp | None, bool]] = []
    for source, ledger in verdict.ledgers.items():
        keep, there = ReplayFilter(), np.isin(np.array(ledger.offsets), np.array(ledger.seen)).tolist()
        for offset, wire, delivered in zip(ledger.offsets, ledger.stamps, there, strict=True):
            stamp = Stamp.from_bytes(wire)
            marked = stamp is not None and (stamp.pid, stamp.partition) in keep.marks
            passes = not filters or offset in ledger.unmarked or keep.accept(stamp)
            if delivered:
                ledger.let_by += not passes
            elif not passes:
                ledger.replays += 1
            else:
                unexplained.append((source, offset, stamp, marked))
        for name, mark in keep.marks.items():
            everywhere[name] = max(mark, everywhere.get(name, mark))
    for source, offset, stamp, marked in unexplained:
        ledger = verdict.ledgers[source]
        if stamp is not None and not marked and (ledger.first > 0 or _elsewhere(stamp, everywhere)):
            ledger.untold += 1
        else:
            verdict.add("lost", f"{source[0]}-{source[1]} offset {offset}")


def _elsewhere(stamp: Stamp, marks: dict[tuple[int, int], int]) -> bool:
    """Whether the source went on beyond this record: then it may have come in another partition before."""
    return marks.get((stamp.pid, stamp.partition), stamp.offset) > stamp.offset


def table_of(verdict: Verdict, paths: list[str]) -> Table:
    """A row for each input partition, and the sum."""
    table = Table(box=None, pad_edge=False, show_footer=True)
    rows = []
    for ledger in verdict.ledgers.values():
        found = [ledger.delivered[path] for path in paths]
        rows.append([len(ledger.offsets), *found, ledger.replays, ledger.untold])
    sums = [sum(column) for column in zip(*rows, strict=True)] if rows else []
    table.add_column("partition", "all")
    heads = ["input", *(path.split(".")[1] if path != "replay.topic" else path for path in paths)]
    for head, total in zip([*heads, "replays dropped", "can't be told"], sums, strict=False):
        table.add_column(head, f"{total:,}", justify="right")
    for (topic, partition), row in zip(verdict.ledgers, rows, strict=True):
        table.add_row(f"{topic}-{partition}", *(f"{number:,}" for number in row))
    return table


def _digest(message: Message) -> int:
    """Of value and timestamp; null and empty differ. The time 0 is written as 1 ms: see kafka/runs.py."""
    value = message.value()
    stamp = (message.timestamp()[1] or FIRST_MS).to_bytes(8, "big", signed=True)
    return xxhash.xxh3_64_intdigest(stamp + (b"\1" + value if value is not None else b"\0"))


def _stamp(message: Message, where: str) -> bytes | None:
    """The 20 bytes of a stamp, if it has one."""
    if where == "none":
        return None
    found = message.key()
    if where == "header":
        headers = cast("Headers", message.headers() or [])
        found = cast("bytes | None", next((v for name, v in reversed(headers) if name == STAMP_HEADER), None))
    return found if found is not None and len(found) == STAMP_BYTES else None
