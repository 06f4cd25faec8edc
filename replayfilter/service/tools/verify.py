"""``replayfilter verify``: checks that each input record is in exactly one output, unchanged and in order.

It compares what Kafka holds, and doesn't read the service's state: all input records that are below the
group's committed offsets and still in the topic are compared with the records of all output topics. An input
record that is in no output must be a replay. Whether it is one is decided again here, by
:class:`~replayfilter.core.replay.marks.ReplayFilter`, from the stamps of the input.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from math import gcd
from typing import cast

import numpy as np
import xxhash
from confluent_kafka import Message
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from replayfilter.core.input_partition import InputPartition
from replayfilter.core.replay.marks import ReplayFilter
from replayfilter.core.stamp import STAMP_BYTES, STAMP_HEADER, Stamp, last_header
from replayfilter.errors import BrokerError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.chunk import FIRST_MS
from replayfilter.kafka.chunk_reader import RecordHeaders
from replayfilter.kafka.client_settings import Settings, client_settings
from replayfilter.kafka.offsets import FIRST
from replayfilter.kafka.reader import Range, RangeReader, partition_of
from replayfilter.service.config.model import Config
from replayfilter.service.runtime.checkpoint import open_checkpoint, spark_progress
from replayfilter.service.tools.own_stamps import own_pids

EXAMPLES_KEPT = 3  # per kind of error


class RecordError(StrEnum):
    """What can be wrong with a delivered record."""

    LOST = "lost"
    TWICE = "twice"
    CHANGED = "changed"
    MISPLACED = "misplaced"
    DISORDERED = "disordered"
    UNKNOWN = "unknown"
    FOREIGN = "foreign"


EXPLANATIONS = {
    RecordError.LOST: "are in no output and are not replays",
    RecordError.TWICE: "are in the outputs more than once",
    RecordError.CHANGED: "have another value or timestamp than in the input",
    RecordError.MISPLACED: "are in the wrong partition: it must be input partition % count",
    RecordError.DISORDERED: "come after a later record of the same input partition",
    RecordError.UNKNOWN: "name an input record that does not exist",
    RecordError.FOREIGN: "have no stamp of this service for this topic",
}


@dataclass(slots=True)
class PartitionReport:
    """One input partition: the records read from it, and those that the outputs hold of it.

    ``begin`` is the first offset compared. ``offsets``, ``digests`` (of value and timestamp) and ``stamps``
    have an item per input record, in input order. ``delivered_offsets`` and ``delivered_digests`` have an
    item per output record, in any order.
    """

    begin: int = 0
    offsets: array[int] = field(default_factory=lambda: array("q"))
    digests: array[int] = field(default_factory=lambda: array("Q"))
    stamps: list[bytes | None] = field(default_factory=list)
    delivered_offsets: array[int] = field(default_factory=lambda: array("q"))
    delivered_digests: array[int] = field(default_factory=lambda: array("Q"))
    delivered: Counter[str] = field(default_factory=Counter)
    """Output records, by the output's key in the config."""
    decode_errors: set[int] = field(default_factory=set)
    """Offsets of the records that decode routed to error: they don't advance marks."""
    replays: int = 0
    """Records in no output that are replays."""
    undecidable: int = 0
    """Records in no output that may be replays of records that are no longer in the topic."""
    passed_replays: int = 0
    """Records in an output although they look like replays: their marks were forgotten or lost."""


@dataclass(slots=True)
class Report:
    """The result of a verification: the input partitions, and the errors with a few examples of each kind."""

    partitions: dict[InputPartition, PartitionReport]
    errors: Counter[RecordError] = field(default_factory=Counter)
    examples: dict[RecordError, list[str]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether no error was found."""
        return not self.errors

    def add_error(self, error: RecordError, example: str) -> None:
        """Count an error, and keep the example if it is among the first of its kind."""
        self.errors[error] += 1
        examples = self.examples.setdefault(error, [])
        if len(examples) < EXAMPLES_KEPT:
            examples.append(example)


def verify(config: Config, console: Console) -> bool:
    """Compare outputs with inputs and print the result; True if all records are right.

    Raises BrokerError if a topic is missing or can't be read.
    """
    report = Verifier(config).check()
    console.print(as_table(report, list(config.output_topics())))
    for error, count in report.errors.items():
        examples = ", ".join(report.examples[error])
        console.print(
            f"[red]{error}[/red]: {count:,} records {EXPLANATIONS[error]}: {examples}", highlight=False
        )
    passed_replays = sum(partition.passed_replays for partition in report.partitions.values())
    if passed_replays:
        console.print(
            f"{passed_replays:,} records look like replays but were delivered. This is right only if their "
            "marks had been forgotten (replay.mark_ttl) or were lost with a checkpoint.",
            highlight=False,
        )
    if config.output.stamp == "none":
        console.print('With output.stamp = "none", records are matched by content: order is not checked.')
    if report.ok:
        console.print("Every input record is in exactly one output.")
    else:
        console.print("Verification failed.", style="bold red")
    return report.ok


class Verifier:
    """Reads the input and the outputs once each; needs about 140 bytes of memory per record."""

    def __init__(self, config: Config) -> None:
        self.config = config
        options = config.client_options()
        self._settings: Settings = client_settings(config.kafka.bootstrap, options)
        self._cluster = Cluster(config.kafka.bootstrap, options)
        self._topics = self._cluster.topics([*config.input.topics, *config.output_topics().values()])
        missing = {*config.input.topics, *config.output_topics().values()} - self._topics.keys()
        if missing:
            raise BrokerError(f"there is no topic {', '.join(sorted(missing))}; correct the config")
        self._input = self._partitions(config.input.topics)
        outputs = config.output_topics().values()
        self._pids = own_pids(
            self._cluster.id, config.service.name, self._topics, config.input.topics, outputs
        )

    def check(self) -> Report:
        """Read and compare everything."""
        entries = self._cluster.committed_entries(self.config.service.name, self._input)
        committed = {at: entry.offset for at, entry in entries.items() if entry.metadata != FIRST}
        begins = self._begins()
        report = Report({partition: PartitionReport(begins[partition]) for partition in self._input})
        ranges = {partition: (begins[partition], committed.get(partition, 0)) for partition in self._input}
        stamps = self.config.input.stamp if self.config.replay.enabled else "none"
        for message in self._read(ranges):
            partition = report.partitions[partition_of(message)]
            partition.offsets.append(int(message.offset() or 0))
            partition.digests.append(_digest(message))
            partition.stamps.append(_stamp(message, stamps))
        compare = self._compare_contents if self.config.output.stamp == "none" else self._compare_stamps
        compare(report, committed)
        return report

    def _begins(self) -> dict[InputPartition, int]:
        """The first offset to compare: the first in the topic, or the service's first if it began later."""
        begins = self._cluster.beginning_offsets(self._input)
        if self.config.input.starting == "latest":
            progress = spark_progress(open_checkpoint(self.config))
            first = progress.start if progress else {}
            return {partition: max(begin, first.get(partition, begin)) for partition, begin in begins.items()}
        return begins

    def _outputs(self) -> Iterator[tuple[str, Message]]:
        """Yield each record of each output topic, with the topic's key in the config."""
        for key, topic in self.config.output_topics().items():
            partitions = self._partitions([topic])
            begins, ends = self._cluster.beginning_offsets(partitions), self._cluster.end_offsets(partitions)
            for message in self._read({each: (begins[each], ends[each]) for each in partitions}):
                yield key, message

    def _read(self, ranges: dict[InputPartition, Range]) -> Iterator[Message]:
        with RangeReader(self._settings, "replayfilter-verify") as reader:
            yield from reader.read(ranges)

    def _partitions(self, topics: Iterable[str]) -> list[InputPartition]:
        return [(topic, number) for topic in topics for number in range(self._topics[topic].partitions)]

    # ---- match by the service's own stamps -----------------------------------------------------------

    def _compare_stamps(self, report: Report, committed: dict[InputPartition, int]) -> None:
        last: dict[tuple[InputPartition, InputPartition], int] = {}
        for key, message in self._outputs():
            topic, number = output_partition = partition_of(message)
            where = f"{topic}-{number} offset {message.offset()}"
            stamp = Stamp.from_bytes(_stamp(message, self.config.output.stamp))
            written = self._pids.get(stamp.pid) if stamp else None
            if stamp is None or written is None or written.output_topic not in (None, topic):
                report.add_error(RecordError.FOREIGN, where)
                continue
            input_partition = written.input_topic, stamp.partition
            partition = report.partitions.get(input_partition)
            if partition is None:
                report.add_error(RecordError.UNKNOWN, where)
                continue
            if not partition.begin <= stamp.offset < committed.get(input_partition, 0):
                continue  # no longer in the input, or delivered after the committed offsets were read
            now = self._topics[topic].partitions
            counts = [written.partitions] if written.partitions else range(1, now + 1)
            if all(stamp.partition % count != number for count in counts):
                report.add_error(RecordError.MISPLACED, where)
            if last.get((output_partition, input_partition), -1) > stamp.offset:
                report.add_error(RecordError.DISORDERED, where)
            last[output_partition, input_partition] = stamp.offset
            partition.delivered[key] += 1
            partition.delivered_offsets.append(stamp.offset)
            partition.delivered_digests.append(_digest(message))
            if key == "output.error" and ("rf-stage", b"decode") in (message.headers() or ()):
                partition.decode_errors.add(stamp.offset)
        for input_partition, partition in report.partitions.items():
            _match(report, input_partition, partition)
        _explain_missing(report, self.config.replay.enabled)

    # ---- output.stamp = "none": match by content -----------------------------------------------------

    def _compare_contents(self, report: Report, _: dict[InputPartition, int]) -> None:
        """Compare counts of equal records, by groups of partitions.

        Input partitions with the same number modulo the group count are in the same group, and so are the
        output partitions that they are delivered to, whatever the topic's partition count. When a topic had
        fewer partitions, a record may have gone to one of another group.
        """
        outputs = self.config.output_topics().values()
        groups = gcd(*(self._topics[topic].partitions for topic in outputs))
        unmatched: defaultdict[int, Counter[int]] = defaultdict(Counter)
        strays: list[tuple[int, str]] = []
        first_of_group: dict[int, PartitionReport] = {}  # counts the deliveries of the whole group
        for (_topic, number), partition in report.partitions.items():
            unmatched[number % groups].update(partition.digests)
            first_of_group.setdefault(number % groups, partition)
        for key, message in self._outputs():
            topic, number = partition_of(message)
            counts, digest = unmatched[number % groups], _digest(message)
            if counts[digest] > 0:
                counts[digest] -= 1
            else:
                strays.append((digest, f"{topic}-{number} offset {message.offset()}"))
            if (first := first_of_group.get(number % groups)) is not None:
                first.delivered[key] += 1
        for digest, where in strays:
            elsewhere = next((counts for counts in unmatched.values() if counts[digest] > 0), None)
            if elsewhere is None:
                report.add_error(RecordError.UNKNOWN, where)
            else:
                elsewhere[digest] -= 1
        for (_topic, number), partition in report.partitions.items():
            counts = unmatched[number % groups]
            for offset, digest in zip(partition.offsets, partition.digests, strict=True):
                if counts[digest] <= 0:
                    partition.delivered_offsets.append(offset)
                else:
                    counts[digest] -= 1
        _explain_missing(report, self.config.replay.enabled)


def _match(report: Report, input_partition: InputPartition, partition: PartitionReport) -> None:
    """Compare each output record with the input record that its stamp names."""
    if not partition.delivered_offsets:
        return
    delivered = np.array(partition.delivered_offsets, np.int64)
    digests = np.array(partition.delivered_digests, np.uint64)
    offsets, input_digests = np.array(partition.offsets, np.int64), np.array(partition.digests, np.uint64)
    values, counts = np.unique(delivered, return_counts=True)
    _add_errors(report, RecordError.TWICE, input_partition, values[counts > 1])
    exists = np.isin(delivered, offsets)
    _add_errors(report, RecordError.UNKNOWN, input_partition, delivered[~exists])
    index = np.searchsorted(offsets, delivered[exists])
    changed = input_digests[index] != digests[exists]
    _add_errors(report, RecordError.CHANGED, input_partition, delivered[exists][changed])


def _add_errors(
    report: Report, error: RecordError, input_partition: InputPartition, offsets: NDArray[np.int64]
) -> None:
    for offset in offsets.tolist():
        report.add_error(error, f"{input_partition[0]}-{input_partition[1]} offset {offset}")


def _explain_missing(report: Report, replays_filtered: bool) -> None:
    """Count the input records in no output: each must be a replay, else it is lost.

    Marks are computed from the input alone. When the beginning of a partition is no longer in the topic, or a
    source wrote to several partitions, the first record of a source there may be a replay of one that can't
    be seen: such records count as undecidable.
    """
    highest_marks: dict[tuple[int, int], int] = {}  # over all partitions
    unexplained: list[tuple[InputPartition, int, Stamp | None, bool]] = []
    for input_partition, partition in report.partitions.items():
        replay_filter = ReplayFilter()
        is_delivered = np.isin(np.array(partition.offsets), np.array(partition.delivered_offsets)).tolist()
        for offset, wire, delivered in zip(partition.offsets, partition.stamps, is_delivered, strict=True):
            stamp = Stamp.from_bytes(wire)
            has_mark = stamp is not None and (stamp.pid, stamp.partition) in replay_filter.marks
            accepted = (
                not replays_filtered or offset in partition.decode_errors or replay_filter.accept(stamp)
            )
            if delivered:
                partition.passed_replays += not accepted
            elif not accepted:
                partition.replays += 1
            else:
                unexplained.append((input_partition, offset, stamp, has_mark))
        for source, mark in replay_filter.marks.items():
            highest_marks[source] = max(mark, highest_marks.get(source, mark))
    for input_partition, offset, stamp, has_mark in unexplained:
        partition = report.partitions[input_partition]
        if stamp is not None and not has_mark and (partition.begin > 0 or _below(stamp, highest_marks)):
            partition.undecidable += 1
        else:
            topic, number = input_partition
            report.add_error(RecordError.LOST, f"{topic}-{number} offset {offset}")


def _below(stamp: Stamp, marks: dict[tuple[int, int], int]) -> bool:
    """Whether the stamp is below its source's mark, which then comes from another partition."""
    return marks.get((stamp.pid, stamp.partition), stamp.offset) > stamp.offset


def as_table(report: Report, outputs: list[str]) -> Table:
    """Return a table with a row per input partition and the sums; ``outputs`` are keys of the config."""
    table = Table(box=None, pad_edge=False, show_footer=True)
    rows = []
    for partition in report.partitions.values():
        delivered = [partition.delivered[key] for key in outputs]
        rows.append([len(partition.offsets), *delivered, partition.replays, partition.undecidable])
    sums = [sum(column) for column in zip(*rows, strict=True)] if rows else []
    table.add_column("partition", "all", overflow="fold")
    heads = ["input", *(key.split(".")[1] if key != "replay.topic" else key for key in outputs)]
    for head, total in zip([*heads, "replays dropped", "undecidable"], sums, strict=False):
        table.add_column(head, f"{total:,}", justify="right")
    for (topic, number), row in zip(report.partitions, rows, strict=True):
        table.add_row(f"{topic}-{number}", *(f"{count:,}" for count in row))
    return table


def _digest(message: Message) -> int:
    """Return a digest of value and timestamp. Null and empty values differ.

    A timestamp of 0 ms counts as 1 ms, because the service writes it so: see ``kafka/chunk.py``.
    """
    value = message.value()
    stamp = (message.timestamp()[1] or FIRST_MS).to_bytes(8, "big", signed=True)
    return xxhash.xxh3_64_intdigest(stamp + (b"\1" + value if value is not None else b"\0"))


def _stamp(message: Message, where: str) -> bytes | None:
    """Return the 20 bytes of the message's stamp, None if it has none."""
    if where == "none":
        return None
    found = message.key()
    if where == "header":
        found = last_header(cast("RecordHeaders | None", message.headers()), STAMP_HEADER)
    return found if found is not None and len(found) == STAMP_BYTES else None
