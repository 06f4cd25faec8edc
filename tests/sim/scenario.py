"""What a seed means: the service's settings, the jobs that feed it, and the faults, each at a named point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.sim.service_model import INPUT, NAME, OUTPUTS, Tables

# All points of the protocol at which a process may die, by who comes there.
LANE_POINTS = (
    "init: before", "init: after", "begin", "read offsets: before", "read offsets: after", "produce: before",
    "produce: after", "send offsets: before", "send offsets: after", "commit: before", "commit: after",
    "abort: before", "abort: after", "lane counted",
)  # fmt: skip
DRIVER_POINTS = (
    "start", "identity written", "decisions written", "join: before", "join: after", "list offsets: before",
    "list offsets: after", "offsets: before", "offsets: after", "read: before", "read: after", "decoded",
    "state: before", "state: after", "waiting for lanes", "commits: before", "commits: after",
    "metadata: before", "metadata: after", "heartbeat", "describe group: before", "describe group: after",
)  # fmt: skip
POINTS = LANE_POINTS + DRIVER_POINTS
SELDOM = {
    "start", "identity written", "decisions written", "join: before", "join: after", "heartbeat",
    "describe group: before", "describe group: after", "abort: before", "abort: after",
}  # fmt: skip
# What can happen there, and how often.
KINDS = {
    "kill": 10, "kill worker": 8, "pause": 14, "cut": 6, "brokers away": 2, "freeze": 5, "downtime": 2,
    "clock": 2, "change config": 3, "change shards": 1, "rival": 4, "overtake": 3, "lose checkpoint": 1,
    "more input partitions": 1, "more output partitions": 1, "retention": 1, "crash a program": 10,
}  # fmt: skip
# Most seeds mix everything; others have more of what belongs together.
THEMES: dict[str, dict[str, int]] = {
    "two services": {"rival": 3, "overtake": 6, "pause": 3, "freeze": 3, "kill": 2},
    "restarts": {"kill": 8, "kill worker": 3, "cut": 2},
    "clocks": {"clock": 5, "kill": 3, "downtime": 1},
    "downtimes": {"downtime": 4, "crash a program": 6, "kill": 2},
}
LONG_S = (0.1, 3.0, 50.0, 400.0)
OVERTAKEN_S = (10.0, 80.0, 150.0, 250.0)
DOWNTIMES_S = (600.0, 3 * 3600.0, 3 * 86_400.0, 9 * 86_400.0)
SKEWS_S = (-3 * 3600.0, -30.0, 1800.0, 5 * 3600.0, 40 * 86_400.0)


@dataclass(frozen=True)
class Fault:
    """``kind`` happens when ``point`` is reached for the ``nth`` time. ``amount`` 0-3: how long, or which."""

    point: str
    nth: int
    kind: str
    amount: int

    def __str__(self) -> str:
        return f"{self.kind} ({self.amount}) at point {self.point!r}, time {self.nth}"


@dataclass(frozen=True)
class SourceRecord:
    """A record of an upstream job's source, and what the job makes of it."""

    partition: int
    offset: int
    value: bytes


@dataclass(frozen=True)
class Scenario:
    """Everything that a seed decides, except the order of events. ``jobs``: the records of each job."""

    seed: int
    tables: Tables
    input_partitions: int
    output_partitions: int
    jobs: tuple[tuple[SourceRecord, ...], ...]
    transactional: tuple[bool, ...]
    faults: tuple[Fault, ...]

    def with_faults(self, faults: tuple[Fault, ...]) -> Scenario:
        """The same with other faults."""
        return replace(self, faults=faults)

    def with_records(self, share: float) -> Scenario:
        """The same with only the first records of each job."""
        return replace(self, jobs=tuple(job[: int(len(job) * share)] for job in self.jobs))


def make_scenario(seed: int, epoch_ms: int) -> Scenario:
    """The scenario of a seed."""
    random = Random(f"{seed}/scenario")
    jobs = tuple(_job(random, number, epoch_ms) for number in range(random.randint(1, 2)))
    theme = random.choice(list(THEMES)) if random.random() < 0.5 else ""
    kinds = THEMES.get(theme, KINDS)
    faults = [_fault(random, kinds) for _ in range(random.choice((1, 2, 3, 4, 6, 8, 12, 16)))]
    return Scenario(
        seed,
        _tables(random, "system" if theme == "clocks" else "tuple", seed),
        random.randint(1, 4),
        random.randint(1, 3),
        jobs,
        tuple(random.random() < 0.4 for _ in jobs),
        tuple(faults),
    )


def _fault(random: Random, kinds: dict[str, int]) -> Fault:
    kind = random.choices(list(kinds), list(kinds.values()))[0]
    points = LANE_POINTS if kind == "kill worker" or random.random() < 0.6 else DRIVER_POINTS
    point = random.choice(points)
    often = 1.0 if point in SELDOM else random.choice((0.12, 0.6))
    return Fault(point, 1 + min(int(random.expovariate(often)), 60), kind, random.randrange(4))


def _tables(random: Random, clock: str, seed: int) -> Tables:
    dedup: dict[str, Any] = {
        "key": ["k"], "expiry_key": "t", "unit": "ms", "clock": clock,
        "period": "60s" if clock == "system" else random.choice(PERIODS),
        "match": random.choice(("window", "bucket")),
        "remember_first": random.random() < 0.3,
    }  # fmt: skip
    dedup["refresh"] = dedup["match"] == "window" and seed % 3 == 0
    dedup["conflict"], dedup["conflict_fields"] = "topic" if seed % 2 else "off", ["c"]
    if random.random() < 0.5:
        dedup["bucket_span"] = "3s"
    return {
        "service": {
            "name": NAME, "shards": random.randint(1, 3), "batch_records": random.choice((8, 15, 40)),
            "interval": random.choice(("0s", "1s")),
        },
        "kafka": {"bootstrap": "sim:9092"},
        "input": {"topics": [INPUT], "format": "json", "stamp": "key"},
        "replay": {"mark_ttl": random.choice(("1h", "2h", "48h"))},
        "dedup": dedup,
        "output": dict(OUTPUTS),
    }  # fmt: skip


PERIODS = ("5s", "10s", "60s", "1h")


def _job(random: Random, job: int, epoch_ms: int) -> tuple[SourceRecord, ...]:
    """The records of a job: keys that come again, times around now, a few broken or in the future."""
    partitions = random.randint(1, 3)
    offsets = [random.choice((0, 70)) for _ in range(partitions)]
    records = []
    for number in range(random.choice((6, 20, 40))):
        at = random.randrange(partitions)
        time_ms = epoch_ms + number * 500 + random.choice((0, 0, -300, -4_000, -9_000, -70_000))
        if random.random() < 0.03:
            time_ms += 3_600_000
        identity = f"{job}/{at}/{offsets[at]}"
        value = f'{{"id": "{identity}", "k": {random.randrange(12)}, "t": {time_ms}, "c": {number % 2}}}'
        if random.random() < 0.04:
            value = f"broken {identity}"
        records.append(SourceRecord(at, offsets[at], value.encode()))
        offsets[at] += 1 if random.random() < 0.9 else 3
    return tuple(records)
