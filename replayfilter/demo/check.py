"""Compares the service's output topics with the stream that was published, record by record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from replayfilter.demo.stream import ROUTES, STAMP, Expected, Headers, Record


class Found(NamedTuple):
    """One Kafka record as it was read from an output topic."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers


@dataclass
class Verdict:
    """How one route came out: ``wrong`` counts the faults, ``problems`` says the first few in words."""

    route: str
    expected: int = 0
    found: int = 0
    wrong: int = 0
    problems: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        return self.wrong == 0 and self.expected == self.found

    def blame(self, problem: str) -> None:
        self.wrong += 1
        if len(self.problems) < 5:
            self.problems.append(problem)


def compare(
    stream: Sequence[Record],
    routes: Sequence[Expected],
    outputs: Mapping[str, Iterable[Found]],
    *,
    pid: int | None = None,
) -> dict[str, Verdict]:
    """Compare each record of the output topics with what was published; one verdict for each of `ROUTES`.

    ``outputs`` maps route names to the records of that topic, each partition's in its order. Each record's
    key must be a stamp of the service (``pid``, if given), input partition and input offset. The record that
    it names must have that route, stand on its own partition number, behind all earlier ones and only once,
    and carry the published value, timestamp and headers. A record that no topic has counts against the route
    it should have taken, one that stands where it should not against the topic it stands in.
    """
    verdicts = {route: Verdict(route) for route in ROUTES}
    place = {}
    for record, expected in zip(stream, routes, strict=True):
        verdicts[expected.route].expected += 1
        verdicts[expected.route].kinds[record.kind] += 1
        place[record.partition, record.offset] = (record, expected)
    seen: set[tuple[int, int]] = set()
    pids: set[int] = set() if pid is None else {pid}
    for route, found in outputs.items():
        last: dict[int, int] = {}
        verdict = verdicts[route]
        for row in found:
            verdict.found += 1
            if row.key is None or len(row.key) != STAMP.size:
                verdict.blame(
                    f"a record in partition {row.partition} has the key {row.key!r}, which is no stamp"
                )
                continue
            stamp_pid, partition, offset = STAMP.unpack(row.key)
            where = f"input {partition}@{offset}"
            if (partition, offset) not in place:
                verdict.blame(f"{where} was never published")
                continue
            record, expected = place[partition, offset]
            if not pids:
                pids.add(stamp_pid)
            for problem in _differences(record, expected, route, row):
                verdict.blame(f"{where} {problem}")
            if stamp_pid not in pids:
                verdict.blame(f"{where} is stamped with pid {stamp_pid}, others with {pids}")
            if (partition, offset) in seen:
                verdict.blame(f"{where} came out twice")
            if offset <= last.get(partition, -1):
                verdict.blame(f"{where} stands behind offset {last[partition]} of its partition")
            seen.add((partition, offset))
            last[partition] = offset
    for at, (record, expected) in place.items():
        if at not in seen and expected.route != "replay":
            verdicts[expected.route].blame(f"input {at[0]}@{at[1]} ({record.kind}) is in no topic")
    # Replays go nowhere: each one that came out is already blamed on the topic it came out of.
    verdicts["replay"].found = verdicts["replay"].expected - sum(
        1 for at in seen if place[at][1].route == "replay"
    )
    return verdicts


def _differences(record: Record, expected: Expected, route: str, row: Found) -> Iterable[str]:
    if expected.route != route:
        yield f"({record.kind}) is in {route} and should be {expected.route}"
    if row.partition != record.partition:
        yield f"came out in partition {row.partition}"
    if row.value != record.value:
        yield f"has the value {row.value!r} and was published with {record.value!r}"
    if row.timestamp_ms != record.timestamp_ms:
        yield f"has the timestamp {row.timestamp_ms} and was published with {record.timestamp_ms}"
    kept = row.headers[: len(record.headers)]
    added = row.headers[len(record.headers) :]
    if kept != record.headers:
        yield f"has the headers {row.headers} and was published with {record.headers}"
    allowed = {"error": {"rf-reason", "rf-message", "rf-stage"}, "duplicate": {"rf-first"}}.get(route, set())
    names = {name for name, _ in added}
    if not names <= allowed or (route == "error" and names != allowed):
        yield f"has the added headers {added}"
    elif route == "error" and dict(added)["rf-reason"] != expected.reason.encode():
        reason = dict(added)["rf-reason"]
        yield f"({record.kind}) has the reason {reason!r} and should have {expected.reason!r}"
    elif expected.first and added and not (added[0][1] or b"").endswith(b"/%d/%d" % expected.first):
        yield f"({record.kind}) has {added[0]} and repeats {expected.first[0]}@{expected.first[1]}"
