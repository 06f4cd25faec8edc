"""The carried watermark from the records' headers to the state of every shard, without Spark."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock.clocks import Clock
from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.frames import Frame
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.routing import Route, RoutedBatch, route_batch
from replayfilter.core.rules import Rules
from replayfilter.core.stamp import Stamp
from replayfilter.core.state import ShardState
from replayfilter.core.watermark.carried import SERVICE_HEADER, UNNAMED, WATERMARK_HEADER
from replayfilter.core.watermark.watermark_state import WatermarkRules
from replayfilter.formats import KeySpec
from replayfilter.kafka.chunk_reader import InputChunk, RecordHeaders
from replayfilter.spark.decode import decode_chunks
from replayfilter.spark.partitioning import partition_ids
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.rows import FRAME
from tests.support.core_run import MemoryStore

NOW_US = 1_700_000_000_000_000
FACTS = BatchFacts.at(NOW_US)
MINUTE_US, HOUR_US = 60 * 10**6, 3_600 * 10**6
MAX_FUTURE_US = 10 * MINUTE_US


class Event(NamedTuple):
    """A record: its stamp, the time in its value (None: the value is broken), and what it carries."""

    stamp: Stamp | None
    time_us: int | None
    low: int
    service: str | None


def settings_of(clock: Clock, shards: int = 2) -> PipelineSettings:
    unit = "integer" if clock is Clock.ORDERED else "us"
    rules = Rules(
        clock=clock,
        period=HOUR_US,
        span=HOUR_US // 12,
        unit=unit,
        watermark=WatermarkRules(None, partitions={"t": 2}),
        max_jump=100 * HOUR_US if clock is Clock.ORDERED else None,
    )
    return PipelineSettings(
        service="s", checkpoint="c", bootstrap="b:1", topics=("t",), outputs={}, output_pids={},
        shards=shards, lanes=1, keys=KeySpec("json", ("id",), "ts", unit), rules=rules,
        max_future_us=MAX_FUTURE_US,
    )  # fmt: skip


def chunk_of(partition: int, first: int, events: Sequence[Event]) -> InputChunk:
    keys = [event.stamp.to_bytes() if event.stamp is not None else None for event in events]
    values: list[bytes | None] = [
        b"broken" if event.time_us is None else json.dumps({"id": first + n, "ts": event.time_us}).encode()
        for n, event in enumerate(events)
    ]
    headers: list[RecordHeaders | None] = [headers_of(event) for event in events]
    offsets = list(range(first, first + len(events)))
    return InputChunk("t", partition, offsets, [NOW_US // 1_000] * len(events), keys, values, headers)


def headers_of(event: Event) -> RecordHeaders:
    named: RecordHeaders = [(SERVICE_HEADER, event.service.encode())] if event.service is not None else []
    return [(WATERMARK_HEADER, b"%d" % event.low), *named]


class Shards:
    """All shards of a service, from batch to batch."""

    def __init__(self, settings: PipelineSettings) -> None:
        self.settings = settings
        self.states = [ShardState.empty()] * settings.shards
        self.stores = [MemoryStore() for _ in range(settings.shards)]

    def decide(self, *chunks: InputChunk) -> list[RoutedBatch]:
        """Decide a batch; what each shard did. The shards are then as they were after the batch."""
        frames: defaultdict[int, list[Frame]] = defaultdict(list)
        for out in decode_chunks(self.settings, [chunks], FACTS):
            for row in out.to_pylist():
                if row["kind"] == FRAME:
                    frames[row["shard"]].append(Frame.from_bytes(row["body"]))
        ids = partition_ids(self.settings.shards)
        batches = [
            route_batch(frames[shard], self.settings.rules, state, store, FACTS)
            for shard, state, store in zip(ids, self.states, self.stores, strict=True)
        ]
        self.states = [ShardState.from_bytes(batch.state.to_bytes()) for batch in batches]
        return batches

    def copy(self) -> Shards:
        """The same shards, for another attempt."""
        other = Shards(self.settings)
        other.states, other.stores = list(self.states), [MemoryStore(store) for store in self.stores]
        return other


def low_after(*batches: list[Event]) -> list[int]:
    """The watermark after each batch; each is in both input partitions."""
    shards, lows = Shards(settings_of(Clock.WATERMARK)), []
    for number, events in enumerate(batches):
        shards.decide(
            *(chunk_of(part, 100 * number, [moved(each, part) for each in events]) for part in range(2))
        )
        watermark = shards.states[0].watermark
        assert watermark is not None
        lows.append(watermark.low)
    return lows


def moved(event: Event, partition: int) -> Event:
    return event._replace(stamp=event.stamp and event.stamp._replace(partition=partition))


def event(offset: int, low: int, service: str | None = "a", time_us: int | None = NOW_US) -> Event:
    return Event(Stamp(7, 0, offset), time_us, low, service)


def test_one_bad_header_does_not_expire_everything() -> None:
    shards = Shards(settings_of(Clock.WATERMARK))
    bad = [event(0, NOW_US + 100 * HOUR_US)]
    shards.decide(chunk_of(0, 0, bad), chunk_of(1, 0, bad))
    good = [event(offset, NOW_US) for offset in range(1, 21)]
    batches = shards.decide(chunk_of(0, 1, good))
    codes = [code for batch in batches for routes in batch.routes for code in routes.codes.tolist()]
    assert codes == [Route.UNIQUE] * 20


@pytest.mark.parametrize(
    ("hostile", "low"),
    [
        (event(9, NOW_US + MAX_FUTURE_US + 1), NOW_US),
        (event(9, NOW_US + 1, time_us=None), NOW_US),
        (event(0, NOW_US + 1), NOW_US),
        (event(9, NOW_US + 1, time_us=NOW_US + MAX_FUTURE_US + 1), NOW_US),
        (event(9, NOW_US + 1, "not a name"), NOW_US),
        (event(9, NOW_US + 1), NOW_US + 1),
        (event(9, NOW_US - 5, "slow"), NOW_US - 5),
    ],
    ids=["too far ahead", "error", "replay", "future", "bad name", "good", "slower service"],
)
def test_what_counts(hostile: Event, low: int) -> None:
    assert low_after([event(0, NOW_US), hostile]) == [low]


def test_the_slowest_of_several_services_counts() -> None:
    first = [event(0, NOW_US - 50, "a"), event(1, NOW_US - 90, "b")]
    assert low_after(first, [event(2, NOW_US, "a")], [event(3, NOW_US - 10, "b")]) == [
        NOW_US - 90, NOW_US - 90, NOW_US - 10,
    ]  # fmt: skip


class SlowModel:
    """Which watermarks count, one record at a time. ``lows``: by input partition and service."""

    def __init__(self, rules: Rules) -> None:
        self.lows: dict[tuple[InputPartition, str], int] = {}
        self._rules = rules
        self._marks: dict[tuple[int, int], int] = {}
        self._latest = UNKNOWN

    def add_batch(self, events: dict[int, list[Event]]) -> None:
        points = []
        for partition, rows in events.items():
            point = self._latest
            for row in rows:
                if row.time_us is None or self._is_replay(row.stamp):
                    continue
                if self._rules.max_jump is not None:
                    if point != UNKNOWN and row.time_us > point + self._rules.max_jump:
                        continue
                    point = max(point, row.time_us)
                elif row.time_us > NOW_US + MAX_FUTURE_US:
                    continue
                if row.low <= NOW_US + MAX_FUTURE_US:
                    at = ("t", partition), row.service or UNNAMED
                    self.lows[at] = max(row.low, self.lows.get(at, UNKNOWN))
            points.append(point)
        self._latest = max(points)

    def _is_replay(self, stamp: Stamp | None) -> bool:
        if stamp is None:
            return False
        source = stamp.pid, stamp.partition
        if stamp.offset <= self._marks.get(source, -1):
            return True
        self._marks[source] = stamp.offset
        return False


@pytest.mark.parametrize("clock", [Clock.TUPLE, Clock.ORDERED])
@pytest.mark.parametrize("seed", range(15))
def test_every_shard_and_every_attempt_finds_the_same(seed: int, clock: Clock) -> None:
    rng = random.Random(seed)
    settings = settings_of(clock, rng.choice((1, 2, 3)))
    shards, model = Shards(settings), SlowModel(settings.rules)
    for number in range(4):
        events = {part: [random_event(rng, part) for _ in range(rng.randint(1, 40))] for part in range(2)}
        again = shards.copy()
        for attempt in (shards, again):
            attempt.decide(*random_chunks(rng, events, 100 * number))
        model.add_batch(events)
        for state in (*shards.states, *again.states):
            assert state.watermark is not None
            assert state.watermark == shards.states[0].watermark
            known = ((at, *item) for at, each in state.watermark.upstreams.items() for item in each.items())
            assert model.lows == {(at, name): upstream.low for at, name, upstream in known}


def random_event(rng: random.Random, partition: int) -> Event:
    stamp = Stamp(rng.choice((1, 2)), partition, rng.randint(0, 200)) if rng.random() < 0.8 else None
    time_us = rng.choice((None, NOW_US, NOW_US, NOW_US + 2 * MAX_FUTURE_US, NOW_US + 200 * HOUR_US))
    low = NOW_US - rng.randint(0, 20) * MINUTE_US if rng.random() < 0.9 else NOW_US + HOUR_US
    return Event(stamp, time_us, low, rng.choice(("a", "b")))


def random_chunks(rng: random.Random, events: dict[int, list[Event]], first: int) -> list[InputChunk]:
    """The events of each input partition, cut at random."""
    chunks = []
    for partition, rows in events.items():
        inner = sorted(rng.sample(range(1, len(rows)), rng.randint(0, len(rows) - 1)))
        for start, end in pairwise([0, *inner, len(rows)]):
            chunks.append(chunk_of(partition, first + start, rows[start:end]))
    rng.shuffle(chunks)
    return chunks
