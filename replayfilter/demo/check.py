"""Compares the service's output topics with the stream that was published, record by record.

This module is a test oracle, like `stream`, and imports no other part of replayfilter than that. The
end-to-end tests, the compose tests and ``replayfilter demo`` use `compare` to decide whether the service
delivered the right records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from replayfilter.demo.stream import ROUTES, STAMP, Expected, Headers, Record

PROBLEMS_KEPT = 5  # per route
PLACE = {f"__connect.errors.{name}" for name in ("topic", "partition", "offset")}
ADDED = {  # headers by route; rf-first only if the service remembers first records
    "error": {"rf-reason", "rf-message", "rf-stage", "__connect.errors.exception.message"} | PLACE,
    "expired": {"rf-late-by"} | PLACE,
    "duplicate": {"rf-first"},
}


class ConsumerRecord(NamedTuple):
    """One Kafka record as a consumer received it."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers


@dataclass
class Verdict:
    """The result for one route: ``wrong`` counts its problems, ``problems`` describes the first few.

    ``expected`` and ``found`` count records; ``kinds`` counts the expected ones by ``Record.kind``.
    """

    route: str
    expected: int = 0
    found: int = 0
    wrong: int = 0
    problems: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        """Whether exactly the expected records were found, without any problem."""
        return self.wrong == 0 and self.expected == self.found

    def add_problem(self, problem: str) -> None:
        """Count a problem, and keep its description if it is among the first."""
        self.wrong += 1
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(problem)


def compare(
    stream: Sequence[Record],
    routes: Sequence[Expected],
    outputs: Mapping[str, Iterable[ConsumerRecord]],
) -> dict[str, Verdict]:
    """Compare each record of the output topics with what was published; one verdict for each of `ROUTES`.

    ``outputs`` maps route names to the records of their topics, ordered within each partition.

    The key of each output record must be a stamp with the pid of its topic, which no other topic has, the
    input partition and the input offset. For the input record at that position, the output record must

    - be in the topic of its expected route and in the partition with the same number as its input partition,
    - come after all output records with a lower input offset, and be there only once,
    - have the published value, timestamp and headers, plus the headers that its route adds.

    An input record that is in no topic is a problem of the route that it should have taken; a wrong output
    record is a problem of the topic in which it was found.
    """
    verdicts = {route: Verdict(route) for route in ROUTES}
    published = {}
    for record, expected in zip(stream, routes, strict=True):
        verdicts[expected.route].expected += 1
        verdicts[expected.route].kinds[record.kind] += 1
        published[record.partition, record.offset] = (record, expected)
    seen: set[tuple[int, int]] = set()
    pids: dict[str, int] = {}  # of each topic, and which topic has a pid: no two have the same
    owners: dict[int, str] = {}
    for route, found in outputs.items():
        last: dict[int, int] = {}
        verdict = verdicts[route]
        for row in found:
            verdict.found += 1
            if row.key is None or len(row.key) != STAMP.size:
                verdict.add_problem(
                    f"a record in partition {row.partition} has the key {row.key!r}, which is no stamp"
                )
                continue
            stamp_pid, partition, offset = STAMP.unpack(row.key)
            where = f"input {partition}@{offset}"
            if (partition, offset) not in published:
                verdict.add_problem(f"{where} was never published")
                continue
            record, expected = published[partition, offset]
            for problem in _differences(record, expected, route, row):
                verdict.add_problem(f"{where} {problem}")
            if (pids.setdefault(route, stamp_pid), owners.setdefault(stamp_pid, route)) != (stamp_pid, route):
                verdict.add_problem(f"{where} is stamped with pid {stamp_pid}, the topics with {pids}")
            if (partition, offset) in seen:
                verdict.add_problem(f"{where} was delivered twice")
            if offset <= last.get(partition, -1):
                verdict.add_problem(f"{where} comes after offset {last[partition]} of the same partition")
            seen.add((partition, offset))
            last[partition] = offset
    for position, (record, expected) in published.items():
        if position not in seen and expected.route != "replay":
            where = f"input {position[0]}@{position[1]}"
            verdicts[expected.route].add_problem(f"{where} ({record.kind}) is in no topic")
    # Replays are dropped. A replay that was delivered is already counted as a problem of the topic it is in.
    verdicts["replay"].found = verdicts["replay"].expected - sum(
        1 for position in seen if published[position][1].route == "replay"
    )
    return verdicts


def _differences(record: Record, expected: Expected, route: str, row: ConsumerRecord) -> Iterable[str]:
    if expected.route != route:
        yield f"({record.kind}) is in {route} and should be in {expected.route}"
    if row.partition != record.partition:
        yield f"is in partition {row.partition}"
    if row.value != record.value:
        yield f"has the value {row.value!r} but was published with {record.value!r}"
    if row.timestamp_ms != record.timestamp_ms:
        yield f"has the timestamp {row.timestamp_ms} but was published with {record.timestamp_ms}"
    kept = row.headers[: len(record.headers)]
    added = row.headers[len(record.headers) :]
    if kept != record.headers:
        yield f"has the headers {row.headers} but was published with {record.headers}"
    names = {name for name, _ in added}
    if not names <= ADDED.get(route, set()) or (route != "duplicate" and names != ADDED.get(route, set())):
        yield f"has the added headers {added}"
    elif names > PLACE and _place(dict(added)) != (record.partition, record.offset):
        yield f"names another place in the input: {added}"
    elif route == "error" and dict(added)["rf-reason"] != expected.reason.encode():
        reason = dict(added)["rf-reason"]
        yield f"({record.kind}) has the reason {reason!r} and should have {expected.reason!r}"
    elif expected.first and added and not (added[0][1] or b"").endswith(b"/%d/%d" % expected.first):
        first = f"{expected.first[0]}@{expected.first[1]}"
        yield f"({record.kind}) has {added[0]} but the first record is {first}"


def _place(headers: Mapping[str, bytes | None]) -> tuple[int, ...]:
    """The input partition and offset that a record's headers name."""
    return tuple(int(headers[f"__connect.errors.{name}"] or b"-1") for name in ("partition", "offset"))
