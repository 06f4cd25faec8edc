"""Random streams, small and full of edge cases. The same seed always gives the same stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import xxhash

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock.clocks import Clock
from replayfilter.core.clock.units import INT64_MAX, INT64_MIN
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.key_run import CONTENT
from replayfilter.core.rules import Match, OnNull, Rules, Scope
from tests.support.reference import UNIT_NS, Position, Record, Source

ORDERS = ("ordered", "categorical")  # profiles in which the order of the expiry keys matters
PROFILES = (
    "plain", "crowded", "replays", "edges", "extremes", "times", "system", "none", "periods", "bare", *ORDERS,
)  # fmt: skip
EPOCH_US = 1_700_000_000_000_000  # batch time of the first batch
PARTITIONS = (("a", 0), ("a", 2), ("a", 10), ("b", 0))  # as numbers 2 comes before 10, as text after it
SOURCES = tuple(Source(pid, partition) for pid in (-1, 0, INT64_MAX, INT64_MIN) for partition in (0, 5))
HUGE = 2**62
NULL_KEYS = 1_000  # keys from here on are those of null values
DAY_US = 24 * 3600 * 10**6
# Whether conflicts are looked for, and what changes that in a stream of the profile "periods". Not back: what
# is still known then depends on which runs were merged.
CONTENT_CHANGES = (("", f"{CONTENT}a"), (f"{CONTENT}a", ""), (f"{CONTENT}a", f"{CONTENT}b"), ("", ""))


@dataclass(frozen=True)
class Batch:
    """Records in any order; in each input partition a new chunk starts at each position in ``cuts``."""

    facts: BatchFacts
    records: tuple[Record, ...]
    cuts: frozenset[Position] = frozenset()
    changed: Mapping[str, Any] = field(
        default_factory=dict
    )  # settings of the rules that are others from this batch on


@dataclass(frozen=True)
class Stream:
    """A stream, and the rules to decide it by. ``digest_kind``: see :func:`digest`."""

    seed: int
    profile: str
    rules: Rules
    max_future_us: int | None
    shards: int
    digest_kind: str
    batches: tuple[Batch, ...]

    def records(self) -> Iterator[Record]:
        """All records, batch by batch."""
        for batch in self.batches:
            yield from batch.records


def digest(kind: str, key: int) -> tuple[int, int]:
    """The digest (hi, lo) of a key: a real hash, or one that collides in one half."""
    honest = xxhash.xxh3_128_intdigest(key.to_bytes(8, "big"))
    if kind == "same_hi":  # neighbours in a sorted run, and one word in a Bloom filter
        return 0xFEDCBA9876543210, honest & INT64_MAX
    if kind == "near":  # equal for the Bloom filter, different in the last bits
        return 7, (1 << 63) + key
    if kind == "same_lo":  # one shard, one Bloom mask
        return honest >> 64, 0x0123456789ABCDEF
    if kind == "ends":
        return (0, 2**64 - 1)[key & 1], (0, 1, 2**64 - 2, 2**64 - 1)[(key >> 1) & 3] ^ (key >> 3 << 4)
    return honest >> 64, honest & (2**64 - 1)


def make_stream(seed: int, profile: str) -> Stream:
    """The stream of this seed. The profile makes some things certain and leaves others to chance."""
    return _Maker(Random(f"{profile}/{seed}"), seed, profile).make()


def recut(stream: Stream, seed: int, *, batches: bool = False) -> Stream:
    """The same records in other chunks and shards; with ``batches``, in other batches too.

    Other batches make sense only for one input partition, and if all batches have the same time.
    """
    random = Random(f"recut {seed}")
    parts = list(stream.batches)
    if batches:
        records = list(stream.records())
        ends = sorted(random.randrange(len(records) + 1) for _ in range(random.randrange(8)))
        starts = [0, *ends]
        parts = [
            Batch(stream.batches[0].facts, tuple(records[a:b]))
            for a, b in zip(starts, [*ends, len(records)], strict=True)
        ]
    parts = [replace(part, cuts=_random_cuts(random, part.records)) for part in parts]
    return replace(stream, batches=tuple(parts), shards=random.randint(1, 4))


def _random_cuts(random: Random, records: Iterable[Record]) -> frozenset[Position]:
    share = random.choice((0.0, 0.1, 0.4, 1.0))
    return frozenset(record.position for record in records if random.random() < share)


@dataclass
class _Maker:
    random: Random
    seed: int
    profile: str
    partitions: list[InputPartition] = field(default_factory=list)
    offsets: dict[InputPartition, int] = field(default_factory=dict)  # next input offset
    history: dict[Source, list[Record]] = field(default_factory=dict)
    every: list[Record] = field(default_factory=list)
    batches: int = 0  # made so far

    def make(self) -> Stream:
        random, profile = self.random, self.profile
        self.partitions = random.sample(PARTITIONS, random.randint(1, len(PARTITIONS)))
        self.offsets = {partition: random.choice((0, 0, 977)) for partition in self.partitions}
        if profile == "replays" or random.random() < 0.3:  # a source may be in any partition
            self.sources = dict.fromkeys(self.partitions, SOURCES[:3])
        else:
            self.sources = {part: SOURCES[2 * i : 2 * i + 2] for i, part in enumerate(self.partitions)}
        self.keys = random.choice((2, 3, 8) if profile == "crowded" else (3, 12, 40))
        rules = self.make_rules()
        content = CONTENT_CHANGES[self.seed % 4][0] if rules.dedup else ""
        self.rules = replace(rules, refresh=self.can_refresh(rules), content=content)
        self.max_future_us = self.make_max_future()
        self.front = self.first_front()  # about the largest expiry key so far
        batches = tuple(self.make_batches())
        kind = random.choice(("same_hi", "near", "same_lo", "ends") if profile == "crowded" else ("honest",))
        shards = random.randint(1, 4)
        return Stream(self.seed, profile, self.rules, self.max_future_us, shards, kind, batches)

    def make_rules(self) -> Rules:
        random, profile = self.random, self.profile
        period = random.choice((1, 5, 10, 10, 17, 30, 30, 60))
        span = random.choice((1, 2, 3, 4, 7, 10, 12, 100))
        if profile == "crowded":  # few keys, slow time: each is accepted again and again
            period, span = random.choice((4, 6, 10)), random.choice((2, 3, 4, 7))
        if profile == "edges":
            period = random.choice((0, 1, 2, 10, HUGE, INT64_MAX))
        if profile == "extremes":
            period, span = random.choice((10, HUGE, INT64_MAX)), random.choice((3, 2**32, 2**32 + 1, HUGE))
        clock = Clock(profile) if profile in ("system", "none", *ORDERS) else Clock.TUPLE
        if profile == "categorical":
            period = random.choice((0, 1, 1, 2, 4))
        units = ("s", "ms", "us", "ns", "iso8601")
        self.unit = random.choice(units) if profile in ("times", "system") else "ms"
        self.tick_us = max(1, max(1, min(period, 10**6) // 3) * UNIT_NS[self.unit] // 1000)
        ttl = random.choice((2**60, 2**60, 0, self.tick_us, 2 * self.tick_us, 2 * self.tick_us - 1))
        if profile == "plain":
            ttl = 2**60
        if profile == "replays":
            ttl = random.choice((2**60, 0, self.tick_us, 2 * self.tick_us - 1, 4 * self.tick_us))
        on_null = [OnNull.ERROR, OnNull.ERROR, OnNull.UNIQUE]
        on_null += [OnNull.KEY] * (clock is not Clock.CATEGORICAL)
        return Rules(
            replay=profile != "bare" or random.random() < 0.7,
            mark_ttl_us=ttl,
            dedup=profile != "bare" or random.random() < 0.3,
            clock=clock,
            period=period,
            span=span,
            match=random.choice((Match.WINDOW, Match.BUCKET)),
            unit=self.unit,
            max_jump=random.choice((None, 0, 1, 8, 25)) if profile == "ordered" else None,
            remember_first=random.random() < 0.3,
            scope=Scope.PARTITION if self.seed % 3 == 0 else Scope.INPUT,
            on_null=random.choice(on_null),
        )

    def can_refresh(self, rules: Rules) -> bool:
        """Whether the stream's duplicates may start the period again. Not by chance, as the scope."""
        return rules.keeps_ages and self.seed % 5 in (1, 3)

    def make_max_future(self) -> int | None:
        if self.profile == "times" or (self.profile == "system" and self.random.random() < 0.7):
            return self.random.choice((0, self.tick_us, 5 * self.tick_us + 1))
        return None

    def first_front(self) -> int:
        if self.profile in ("times", "system"):
            return EPOCH_US * 1000 // UNIT_NS[self.unit]
        if self.profile == "extremes":
            return self.random.choice((INT64_MIN, INT64_MIN + 1000, -5, INT64_MAX - 200, INT64_MAX))
        return self.random.choice((0, -40, 1000, 10**15))

    def make_batches(self) -> Iterator[Batch]:
        random = self.random
        time_us = EPOCH_US + random.choice((0, 1, 999_999))  # not always a whole number of units
        for _ in range(random.randint(4, 10) if self.profile == "crowded" else random.randint(1, 7)):
            if random.random() < 0.3:
                self.add_partition()
            records = self.make_records(time_us)
            facts = BatchFacts(time_us, self.believed(time_us), random.random() < 0.7)
            yield Batch(facts, tuple(records), _random_cuts(random, records), self.make_changes())
            self.batches += 1
            steps = (-1, 0, 1, 2) if self.profile == "times" else (-2, 0, 1, 1, 2, 2, 3, 9)
            time_us += self.tick_us * random.choice(steps)  # a host's clock may be set back
            if self.profile in ("system", "replays") and random.random() < 0.2:
                time_us += random.choice((-DAY_US, DAY_US))  # a downtime, or a clock that is wrong
            if self.profile in ("times", "system"):
                self.front = max(self.front, time_us * 1000 // UNIT_NS[self.unit])

    def add_partition(self) -> None:
        """An input partition that is there from the next batch on."""
        new = [partition for partition in PARTITIONS if partition not in self.sources]
        if new and self.profile != "periods":
            partition = self.random.choice(new)
            self.partitions.append(partition)
            self.offsets[partition] = 0
            free = SOURCES[2 * len(self.sources) :][:2]
            shared = next(iter(self.sources.values()))
            self.sources[partition] = shared if self.profile == "replays" else free

    def believed(self, time_us: int) -> int:
        if self.profile == "system" and self.random.random() < 0.3:
            return time_us - self.random.choice((self.tick_us, DAY_US))
        return time_us

    def make_changes(self) -> Mapping[str, Any]:
        """Settings that are changed between two batches."""
        random = self.random
        if self.profile == "periods":
            period = random.choice((None, 3, 10, 29, 90))
            changed: dict[str, Any] = {} if period is None else {"period": period}
            if self.can_refresh(self.rules):
                changed["refresh"] = random.random() < 0.6
            if self.batches == 3:
                changed["content"] = CONTENT_CHANGES[self.seed % 4][1]
            return changed
        if self.profile == "replays" and random.random() < 0.2:
            ttl = random.choice((0, self.tick_us, 4 * self.tick_us, DAY_US))
            return {"mark_ttl_us": ttl, "replay": random.random() < 0.8}
        return {}

    def make_records(self, time_us: int) -> list[Record]:
        random, records = self.random, list[Record]()
        for _ in range(random.choice((0, 1, 3, 8, 12, 20))):
            partition = random.choice(self.partitions)
            kind = random.random()
            if kind < 0.2 and self.every:
                made = self.make_replays(partition, time_us)
            elif kind < 0.4 and self.every:
                made = [self.make_duplicate(partition, time_us)]
            else:
                source, stamped = self.next_stamp(partition) if random.random() < 0.85 else (None, None)
                key, expiry = self.random_key(), self.random_expiry(time_us)
                made = [self.record(partition, source, stamped, key, expiry)]
            records += made
        return records

    def make_replays(self, partition: InputPartition, time_us: int) -> list[Record]:
        """A range that a source writes again: the same records or, against the rules, other content."""
        random = self.random
        known = [source for source in self.sources[partition] if source in self.history]
        if not known:
            return []
        again = self.history[random.choice(known)]
        start = random.randrange(len(again))
        changed = random.random() < 0.3
        made = []
        for old in again[start : start + random.randint(1, 6)]:
            key = self.random_key() if changed else old.key
            expiry = self.random_expiry(time_us) if changed else old.expiry
            made.append(self.record(partition, old.source, old.stamped, key, expiry))
        return made

    def make_duplicate(self, partition: InputPartition, time_us: int) -> Record:
        """A record that its sender sends again: a new stamp, the same key, the same time or another."""
        old = self.random.choice(self.every[-20:])
        source, stamped = self.next_stamp(partition)
        expiry = old.expiry if self.random.random() < 0.5 else self.random_expiry(time_us)
        return self.record(partition, source, stamped, old.key, expiry)

    def record(
        self, partition: InputPartition, source: Source | None, stamped: int | None, key: int, expiry: int
    ) -> Record:
        random = self.random
        offset = self.offsets[partition]
        self.offsets[partition] += 1 if random.random() < 0.9 else random.randint(2, 300)
        content = 1 + (self.seed + 7919 * len(self.every)) % 11 % 3  # often, but not always the same
        position, broken = Position(*partition, offset), random.random() < 0.04
        made = Record(position, source, stamped, key, expiry, broken, content)
        if not made.broken and self.rules.on_null is not OnNull.ERROR and random.random() < 0.15:
            made = replace(made, key=NULL_KEYS + key % NULL_KEYS, expiry=0, null=True)
        if source is not None:
            self.history.setdefault(source, []).append(made)
        self.every.append(made)
        return made

    def next_stamp(self, partition: InputPartition) -> tuple[Source, int]:
        random = self.random
        source = random.choice(self.sources[partition])
        if random.random() < 0.02 and self.profile in ("extremes", "replays"):
            return source, random.choice((INT64_MIN, -1, INT64_MAX - 1, INT64_MAX))
        stamped = (old.stamped for old in self.history.get(source, []) if old.stamped is not None)
        last = max(stamped, default=-1)
        return source, min(INT64_MAX, last + (1 if random.random() < 0.9 else random.randint(2, 9)))

    def random_key(self) -> int:
        return self.random.randrange(self.keys)

    def random_expiry(self, time_us: int) -> int:
        """An expiry key near the front, more often on an edge than pure chance would have it."""
        random, rules = self.random, self.rules
        if rules.clock is Clock.CATEGORICAL:
            self.front += random.random() < 0.3
            return (max(0, self.front - random.choice((0, 0, 0, 1, 2, 3, 7))) * 7919 + 13) % 1009 - 500
        period = min(rules.period, 10**6)
        kind = random.random()
        if kind < 0.4:
            steps = (0, 1, 1, 2) if self.profile == "crowded" else (0, 0, 1, 2, max(1, period // 4), period)
            self.front += random.choice(steps)
            value = self.front
        elif kind < 0.6:
            value = self.front - random.randint(0, 2 * period)
        elif kind < 0.75:
            value = self.front // rules.span * rules.span - rules.span * random.randrange(3)
            value += random.choice((-1, 0, 1))
        elif kind < 0.85:
            value = self.front - period + random.choice((-1, 0, 1))
        elif kind < 0.92 and self.every:
            value = random.choice(self.every).expiry
        elif self.max_future_us is not None:
            limit = (time_us + self.max_future_us) * 1000 // UNIT_NS[rules.unit]
            value = limit + random.choice((-1, 0, 1, 1000))
        elif self.profile == "ordered":
            value = self.front + random.choice((1, 9, 26, 40, 1000))
        elif self.profile == "extremes":
            value = random.choice((INT64_MIN, INT64_MIN + 1, -1, 0, INT64_MAX - 1, INT64_MAX))
        else:
            value = self.front
        return max(INT64_MIN, min(INT64_MAX, value))
