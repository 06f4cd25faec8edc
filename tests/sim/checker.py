"""The judge: compares what a read_committed reader sees in the output topics with what the input was.

It knows the topics, the records, the batches' ends in the offset log, and the slow reference model
(tests/support/reference.py). It knows nothing of lanes, shards, frames or transactions.
"""

from __future__ import annotations

import json
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from replayfilter.core.input_partition import InputPartition
from replayfilter.core.routing import Route
from tests.sim.programs import Reader
from tests.sim.service_model import INPUT, OUTPUTS, Batch, Operator
from tests.sim.world import Simulation
from tests.support.reference import HOUR_US, Decision, Model, Position, Record, Source

TOPIC_OF = {
    Route.UNIQUE: OUTPUTS["unique"], Route.DUPLICATE: OUTPUTS["duplicate"], Route.EXPIRED: OUTPUTS["expired"],
    Route.CONFLICT: OUTPUTS["conflict"], Route.ERROR: OUTPUTS["error"], Route.FUTURE: OUTPUTS["error"],
    Route.REPLAY: None,
}  # fmt: skip
_STAMP = struct.Struct(">qiq")


def check(sim: Simulation, operator: Operator, reader: Reader, injected: Any) -> str | None:
    """What is wrong, None if nothing is."""
    problems = Problems()
    seen = injected.seen
    given = {(log.at, offset): record for log in sim.broker.topics[INPUT] for offset, record in _all(log)}
    delivered = _delivered(sim, problems)
    decisions = _decisions(operator, given)
    complete = not operator.gave_up
    if operator.gave_up and not _was_right_to_give_up(operator, seen):
        problems.add("it gave up without a cause", operator.gave_up[0])
    for at, record in given.items():
        own = decisions.get(at, [])
        wanted = {TOPIC_OF[each.route] for each in own}
        found = delivered.get(at, [])
        if len(found) > 1:
            problems.add("twice", f"{at} {record.value!r}: in {found}")
        elif found and found[0] not in wanted:
            why = [each.why for each in own]
            problems.add("misrouted", f"{at} {record.value!r}: in {found[0]}, expected {wanted}: {why}")
        elif not found and None not in wanted and (complete and at[1] >= sim.broker.log(at[0]).start):
            problems.add("lost", f"{at} {record.value!r}: expected in {wanted or 'any output'}")
    for at in delivered.keys() - given.keys():
        problems.add("aborted", f"{at} in {delivered[at]}: no read_committed reader sees such a record")
    written = {record.value for record in given.values()}
    for wanted_value in (each.value for job in injected.scenario.jobs for each in job):
        if wanted_value not in written:
            problems.add("never written", f"{wanted_value!r} is not in the input")
    for era in (era for deployment in operator.deployments for era in deployment.eras):
        _check_clock(era, problems)
    _check_sources(given, delivered, reader, seen, complete, problems)
    injected.seen.update(route.name for each in decisions.values() for route in {d.route for d in each})
    injected.seen["records"] += len(given)
    return str(problems) if problems else None


class Problems(list[str]):
    """What was found, each kind with its first example."""

    def add(self, kind: str, example: str) -> None:
        """Note a problem."""
        self.append(f"{kind}: {example}")

    def __str__(self) -> str:
        kinds = Counter(each.split(":")[0] for each in self)
        counts = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
        return counts + "\n  " + "\n  ".join(self[:6])


def _all(log: Any) -> Iterator[tuple[int, Any]]:
    """Everything that could ever be read of a log, also what retention has deleted."""
    for offset, (record, transaction) in enumerate(log.entries):
        if record and (transaction is None or transaction.outcome):
            yield offset, record


def _delivered(sim: Simulation, problems: Problems) -> dict[tuple[InputPartition, int], list[str]]:
    """By input partition and offset, the output topics; records out of order are problems."""
    found: dict[tuple[InputPartition, int], list[str]] = defaultdict(list)
    marks: dict[tuple[int, int], int] = {}
    for topic in OUTPUTS.values():
        for log in sim.broker.topics[topic]:
            offsets: dict[int, list[int]] = defaultdict(list)
            for _, record in log.committed():
                pid, partition, offset = _STAMP.unpack(record.key or b"")
                found[(INPUT, partition), offset].append(topic)
                offsets[partition].append(offset)
                if offset <= marks.get((pid, partition), -1):
                    problems.add("a replay for readers", f"{topic} {(pid, partition, offset)}")
                marks[pid, partition] = offset
            for partition, own in offsets.items():
                wrong = [pair for pair in pairwise(own) if pair[0] >= pair[1]]
                if wrong:
                    problems.add("out of order", f"{topic}-{log.at[1]}, input partition {partition}: {wrong}")
    return found


def _decisions(operator: Operator, given: Any) -> dict[tuple[InputPartition, int], list[Decision]]:
    """What the reference model decides of each record, for each checkpoint that had it in a batch."""
    found: dict[tuple[InputPartition, int], list[Decision]] = defaultdict(list)
    for deployment in operator.deployments:
        for era in deployment.eras:
            model: Model | None = None
            for _, batch in sorted(era.items()):
                if model is None:
                    model = Model(batch.rules, batch.max_future_us)
                model.max_future_us = batch.max_future_us
                model.rules = replace(batch.rules)
                records = list(_records(batch, given))
                for position, decision in model.decide(records, batch.facts).items():
                    found[(position.topic, position.partition), position.offset].append(decision)
    return found


def _records(batch: Batch, given: Any) -> Iterator[Record]:
    for at, end in batch.ends.items():
        for offset in range(batch.starts[at], end):
            record = given.get((at, offset))
            if record is not None:
                yield _record(Position(*at, offset), record)


def _record(position: Position, record: Any) -> Record:
    pid, partition, offset = _STAMP.unpack(record.key)
    try:
        fields = json.loads(record.value)
    except ValueError:
        return Record(position, Source(pid, partition), offset, 0, 0, broken=True)
    content = fields["c"] + 1
    return Record(position, Source(pid, partition), offset, fields["k"], fields["t"], content=content)


def _check_sources(
    given: Any, delivered: Any, reader: Reader, seen: Counter[str], complete: bool, problems: Problems
) -> None:
    """Without batches and model: each source record is delivered once, whatever the jobs wrote again.

    The same holds for what the reader handled. Not where marks are rightly forgotten, or where a source has
    moved to another partition.
    """
    if seen.keys() & {"more input partitions", "retention"}:
        return
    handled = Counter(reader.handled)
    copies: dict[tuple[int, ...], list[tuple[int, bytes]]] = defaultdict(list)
    for at, record in given.items():
        copies[_STAMP.unpack(record.key)].append((len(delivered.get(at, ())), record.value))
    forgets = seen.keys() & {"downtime", "lose checkpoint", "rival", "overtake", "clock"}
    for stamp, written in copies.items():
        count, value = sum(count for count, _ in written), written[0][1]
        if count != 1 and complete and not forgets and not value.startswith(b"broken"):
            problems.add("source record", f"{stamp} is in the outputs {count} times")
        if handled[value] != 1 and not seen["downtime"]:
            problems.add("reader", f"{value!r} was handled {handled[value]} times")


def _check_clock(era: dict[int, Batch], problems: Problems) -> None:
    """The first batch after the clock has jumped ahead must not believe it."""
    for (_, last), (number, batch) in pairwise(sorted(era.items())):
        passed_us = batch.began_us - last.began_us
        jumped = batch.facts.time_us - last.facts.time_us > passed_us + 2 * HOUR_US
        if jumped and batch.facts.believed_us == batch.facts.time_us:
            problems.add("believed at once", f"batch {number}: {batch.facts}, after {last.facts}")


def _was_right_to_give_up(operator: Operator, seen: Counter[str]) -> bool:
    """Whether each reason to give up has its cause among the faults."""
    for text in operator.gave_up:
        expired = "no committed offset" in text and seen["downtime"]
        deleted = "deleted them by retention" in text and seen["retention"]
        if not (expired or deleted):
            return False
    return True
