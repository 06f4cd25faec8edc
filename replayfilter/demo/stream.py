"""A realistic dirty stream of orders, and the route that each of its records must take.

This module is a test oracle: it imports neither Spark, nor Kafka, nor any other part of replayfilter. The
expected routes are computed record by record with dicts, so that no error can hide in code shared with the
service.

What the stream simulates: two jobs, ``web`` and ``app``, copy their source topics into ``orders`` and stamp
each record with the partition and offset they read it from. From time to time a job crashes, goes back to its
last checkpoint and writes a range of records again: replays. Senders that wait too long for a response send
the same order again: duplicates, which have stamps of their own. Some phones were offline for hours: expired.
And some records are malformed: errors.

In general a route can depend on where Spark cuts micro-batches, because partitions learn each other's latest
point only at the end of a batch. This stream stays away from such cases: `expected_routes` decides each
record with the smallest and with the largest latest point that any cut could give, and raises if they differ.
"""

from __future__ import annotations

import heapq
import json
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Headers = list[tuple[str, bytes | None]]

STAMP = struct.Struct(">qiq")
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
PERIOD_MS = HOUR_MS
"""How far behind the latest point a record may be; must equal ``dedup.period`` in the demo's config."""
SPAN_MS = 6 * HOUR_MS
"""Event time that a whole stream covers: several periods, so that keys expire during the stream."""
SKEW_MS = 20 * MINUTE_MS
"""How far, in event time, one partition may be read ahead of another without changing any route."""
ROUTES = ("unique", "duplicate", "expired", "error", "replay")
OUTPUTS = ROUTES[:4]


class Record(NamedTuple):
    """One Kafka record as it was published; ``kind`` says what the generator meant it to be."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers
    kind: str


class Expected(NamedTuple):
    """The route that a record must take (one of `ROUTES`), and what its headers must say.

    ``reason`` is set for errors. ``first`` is set for duplicates: the partition and offset of the first
    record with the same key.
    """

    route: str
    reason: str = ""
    first: tuple[int, int] | None = None


class _Draft(NamedTuple):
    """A record that has no offset in ``orders`` yet."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    kind: str


@dataclass
class _Job:
    """An upstream job, which stamps what it copies and goes back to its checkpoint when it crashes."""

    name: str
    pid: int
    next_offset: list[int]  # per partition of the job's source topic
    since_checkpoint: list[_Draft] = field(default_factory=list)

    def write(self, rng: random.Random, source: int, to: int, value: bytes | None, kind: str) -> _Draft:
        """Stamp and remember a record from source partition ``source`` for partition ``to`` of orders."""
        offset = self.next_offset[source]
        # About one offset in thirty is missing, as in a compacted or filtered source topic.
        self.next_offset[source] = offset + (1 if rng.random() > 1 / 30 else rng.randrange(2, 9))
        stamp = STAMP.pack(self.pid, source, offset)
        draft = _Draft(to, stamp, value, _user_headers(rng, self.name), kind)
        self.since_checkpoint.append(draft)
        return draft

    def crash(self) -> list[_Draft]:
        """Return all records since the checkpoint, to be written again unchanged."""
        return [draft._replace(kind=f"again/{draft.kind}") for draft in self.since_checkpoint]


def _user_headers(rng: random.Random, job: str) -> Headers:
    draw = rng.random()
    if draw < 0.7:
        return []
    if draw < 0.9:
        return [("source", job.encode())]
    # Kafka allows repeated names, empty values and null values; all of them must be preserved.
    return [("source", job.encode()), ("hop", b"edge-1"), ("hop", b"edge-2"), ("debug", None), ("note", b"")]


CITIES = ("Kyiv", "Lviv", "Zürich", "São Paulo", "東京", "Oslo", "Porto", "Tromsø")


def _order(rng: random.Random, event_id: str, ts: object, attempt: int = 1) -> bytes:
    text = (
        f'{{"event_id":"{event_id}","ts":{ts},"user":{rng.randrange(40_000)},'
        f'"amount":{rng.randrange(100, 99_999) / 100},"city":"{CITIES[rng.randrange(8)]}",'
        f'"items":[{rng.randrange(900)},{rng.randrange(900)}],"attempt":{attempt}}}'
    )
    return text.encode()


_BROKEN: dict[str, Callable[[bytes], bytes | None]] = {
    "cut short": lambda value: value[: len(value) // 2],
    "proxy's error page": lambda value: b"<html><body><h1>502 Bad Gateway</h1></body></html>",
    "not UTF-8": lambda value: value.replace(b"ord-", b"\xff\xfe-"),
    "empty": lambda value: b"",
    "tombstone": lambda value: None,
    "a list": lambda value: b"[" + value + b"]",
    "no event_id": lambda value: value.replace(b'"event_id":', b'"id":'),
    "no ts": lambda value: value.replace(b'"ts":', b'"time":'),
    "ts null": lambda value: b'{"event_id":"n","ts":null}',
    "ts a text": lambda value: b'{"event_id":"w","ts":"yesterday, at noon"}',
    "ts an object": lambda value: b'{"event_id":"o","ts":{"ms":1700000000000}}',
}


def generate(records: int, *, end_ms: int, seed: int = 1, partitions: int = 4) -> list[Record]:
    """Return ``records`` records in publishing order; the same arguments give the same bytes.

    Event times run from ``end_ms - SPAN_MS`` to ``end_ms``, Unix time in ms. Pass the time of publishing:
    records later than the service's clock are routed to the error topic. Raises ValueError for fewer than
    2,000 records.

    >>> stream = generate(2_000, end_ms=1_700_000_000_000)
    >>> len(stream), stream == generate(2_000, end_ms=1_700_000_000_000)
    (2000, True)
    """
    return list(iter_records(records, end_ms=end_ms, seed=seed, partitions=partitions))


def iter_records(
    records: int, *, end_ms: int, seed: int = 1, partitions: int = 4, crashes: int = 12
) -> Iterator[Record]:
    """Like `generate`, but yields one record at a time. The jobs crash about ``crashes`` times in all."""
    if records < 2_000:
        raise ValueError(f"a stream of {records} records is too short to show anything; use at least 2,000")
    return _Generator(records, end_ms, seed, partitions).run(crashes)


class _Generator:
    """The state of a stream while it is generated; see `generate`."""

    def __init__(self, records: int, end_ms: int, seed: int, partitions: int) -> None:
        self.rng = random.Random(seed)
        self.records, self.end_ms, self.partitions = records, end_ms, partitions
        self.jobs = [self._job("web", partitions), self._job("app", 2 * partitions)]
        # Retries still to be sent: (due ms, number, event_id, ts, partition, attempt).
        self.retries: list[tuple[int, int, str, int, int, int]] = []
        # Orders sent only once so far: (sent ms, event_id, ts, partition).
        self.old: list[tuple[int, str, int, int]] = []
        self.generated = 0
        self.written = [0] * partitions

    def _job(self, name: str, sources: int) -> _Job:
        first_offsets = [self.rng.randrange(10**6) for _ in range(sources)]
        return _Job(name, self.rng.getrandbits(64) - 2**63, first_offsets)

    def run(self, crashes: int) -> Iterator[Record]:
        checkpoint_every, crash_every = self.records // (2 * crashes + 1), self.records // crashes
        next_checkpoint, next_crash, crashed = checkpoint_every, crash_every, 0
        warm_up = min(self.records // 100, 2_000)
        start = self.end_ms - SPAN_MS
        done = 0
        while done < self.records:
            now = start + SPAN_MS * done // self.records
            batch = [self._next(now, warm=done > warm_up)]
            if done >= next_crash:
                batch += self.jobs[crashed % 2].crash()
                crashed += 1
                next_crash += self.rng.randrange(crash_every // 2, crash_every * 3 // 2)
            elif done >= next_checkpoint:
                for job in self.jobs:
                    job.since_checkpoint.clear()
                next_checkpoint = done + checkpoint_every
            for draft in batch[: self.records - done]:
                offset = self.written[draft.partition]
                self.written[draft.partition] = offset + 1
                yield Record(draft.partition, offset, draft.key, draft.value, now, draft.headers, draft.kind)
                done += 1

    def _next(self, now: int, *, warm: bool) -> _Draft:
        if self.retries and self.retries[0][0] <= now:
            return self._retry()
        rng = self.rng
        partition = rng.randrange(self.partitions)
        event_id = f"ord-{self.generated:07d}-{rng.getrandbits(32):08x}"
        self.generated += 1
        ts = now - rng.randrange(5 * MINUTE_MS)
        draw = rng.random()
        some_old = bool(self.old) and self.old[0][0] < now - 3 * PERIOD_MS
        if warm and draw < 0.03:
            if some_old and draw < 0.005:
                _, event_id, ts, _ = self.old.pop(0)
                return self._write(partition, _order(rng, event_id, ts, 2), "late/second copy")
            return self._write(partition, _order(rng, event_id, self._late(now)), "late")
        if draw < 0.05:
            defect = rng.choice(list(_BROKEN))
            return self._write(partition, _BROKEN[defect](_order(rng, event_id, ts)), f"broken/{defect}")
        if draw < 0.053:
            # A clock that runs 14 years ahead, and a sender that writes microseconds.
            future = rng.choice((self.end_ms + 14 * 365 * 24 * HOUR_MS, ts * 1000))
            return self._write(partition, _order(rng, event_id, future), "future")
        if some_old and draw < 0.058:
            _, event_id, _, before = self.old.pop(0)
            return self._write(
                rng.randrange(before, self.partitions), _order(rng, event_id, ts), "id used again"
            )
        if draw < 0.14:
            self._plan_retries(now, event_id, ts, partition)
        elif draw < 0.17:
            self.old.append((now, event_id, ts, partition))
        elif draw < 0.18:
            return self._unstamped(partition, _order(rng, event_id, ts), "unstamped")
        return self._write(partition, _order(rng, event_id, ts), "fresh")

    def _late(self, now: int) -> int:
        """An event time hours ago, or one that a sender wrote in seconds; both are older than the period."""
        if self.rng.random() < 0.1:
            return now // 1000
        return now - 2 * PERIOD_MS - self.rng.randrange(4 * HOUR_MS)

    def _write(self, partition: int, value: bytes | None, kind: str) -> _Draft:
        job = self.rng.choice(self.jobs)
        source = self.rng.randrange(partition, len(job.next_offset), self.partitions)
        return job.write(self.rng, source, partition, value, kind)

    def _plan_retries(self, now: int, event_id: str, ts: int, partition: int) -> None:
        for attempt in range(2, self.rng.choice((3, 3, 3, 5))):
            # A retry may be written to another partition, but only to a higher one and minutes later. Lower
            # partitions are decided first within a batch, so the first copy is the first however batches are
            # cut.
            wanted = self.rng.randrange(partition, self.partitions)
            wait = self.rng.randrange(5_000, 10 * MINUTE_MS) + (0 if wanted == partition else 15 * MINUTE_MS)
            heapq.heappush(self.retries, (now + wait, self.generated, event_id, ts, wanted, attempt))

    def _retry(self) -> _Draft:
        _, _, event_id, ts, partition, attempt = heapq.heappop(self.retries)
        value = _order(self.rng, event_id, ts, attempt)
        if self.rng.random() < 0.05:
            return self._unstamped(partition, value, "retry/unstamped")
        return self._write(partition, value, "retry")

    def _unstamped(self, partition: int, value: bytes, kind: str) -> _Draft:
        """A record from an older tool, which doesn't stamp: with a key of its own, or without a key."""
        key = self.rng.choice((None, f"user-{self.rng.randrange(999)}".encode(), b""))
        return _Draft(partition, key, value, _user_headers(self.rng, "import"), kind)


def expected_routes(stream: Sequence[Record], *, end_ms: int) -> list[Expected]:
    """Return the route of every record, in the stream's order.

    Deliberately slow and simple: one record at a time, dicts, the standard library's JSON. Raises ValueError
    if a route depends on where batches are cut or on when the service runs.
    """
    marks: dict[tuple[int, int], int] = {}
    partition_latest: dict[int, int] = {}
    overall_latest = -(10**18)
    accepted: dict[str, tuple[int, int, int]] = {}  # event_id: (ts, partition, offset)
    routes = []
    for record in stream:
        order = _parse(record.value)
        if isinstance(order, str):
            routes.append(Expected("error", order))
            continue
        if record.key is not None and len(record.key) == STAMP.size:
            pid, source, offset = STAMP.unpack(record.key)
            if offset <= marks.get((pid, source), -1):
                routes.append(Expected("replay"))
                continue
            marks[pid, source] = offset
        ts, event_id = order["ts"], order["event_id"]
        if ts > end_ms:
            if ts < end_ms + 24 * HOUR_MS:
                raise ValueError(f"whether {record!r} is in the future depends on when the service runs")
            routes.append(Expected("error", "future"))
            continue
        lowest = partition_latest[record.partition] = max(ts, partition_latest.get(record.partition, ts))
        overall_latest = max(ts, overall_latest)
        # However batches are cut, the latest point at this record is between `lowest` and `highest`.
        highest = overall_latest + SKEW_MS
        if _certain(lowest - ts >= PERIOD_MS, highest - ts >= PERIOD_MS, record):
            routes.append(Expected("expired"))
            continue
        accepted_ts, partition, offset = accepted.get(event_id, (-(10**18), 0, 0))
        # Lower partitions are decided first within a batch: a copy in one could become the first record.
        _certain(record.partition < partition, False, record)
        if _certain(lowest - accepted_ts < PERIOD_MS, highest - accepted_ts < PERIOD_MS, record):
            routes.append(Expected("duplicate", first=(partition, offset)))
        else:
            accepted[event_id] = (ts, record.partition, record.offset)
            routes.append(Expected("unique"))
    return routes


def _certain(with_lowest: bool, with_highest: bool, record: Record) -> bool:
    if with_lowest != with_highest:
        raise ValueError(f"the route of {record!r} depends on batch cuts")
    return with_lowest


def _parse(value: bytes | None) -> dict[str, Any] | str:
    """Return the order in a record's value, or the error reason if there is none."""
    if not value:
        return "empty"
    try:
        order: Any = json.loads(value)
    except ValueError:
        return "json"
    if not isinstance(order, dict):
        return "not_object"
    if order.get("event_id") is None:
        return "key"
    if order.get("ts") is None:
        return "expiry_missing"
    return order if type(order["ts"]) is int else "expiry_type"
