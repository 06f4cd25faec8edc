"""The core's hot paths as functions to be called again and again, each with how many records it handles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from confluent_kafka import Producer

from benchmarks.orders import PID, value_of
from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.digest import digest_keys
from replayfilter.core.frames import ChunkId, Frame, cut_frames
from replayfilter.core.routing import Route, route_batch
from replayfilter.core.rules import Rules
from replayfilter.core.stamp import stamp_packer, stamps_from_wire
from replayfilter.core.state import ShardState
from replayfilter.formats import KeySpec, RecordColumns, build_extractor
from replayfilter.kafka.chunk import Chunk
from replayfilter.kafka.chunk_reader import InputChunk
from replayfilter.kafka.lanes import Delivery, Lanes, _Owner
from replayfilter.kafka.transactions import LaneStats
from replayfilter.spark.decode import decode_chunks
from replayfilter.spark.pipeline_settings import Output, PipelineSettings
from tests.support.core_run import MemoryStore

CHUNK = 4_000  # records, as the service reads them
NOW_MS = 1_764_000_000_000
RULES = Rules(period=3_600_000, span=300_000)
KEYS = KeySpec("json", ("event_id",), "ts", "ms")
TOPIC, SHARDS = "orders", 2
VALID = np.ones(CHUNK, np.bool_)


class HotPath(NamedTuple):
    """A function that handles ``records`` records in one call."""

    records: int
    run: Callable[[], object]


def hot_paths() -> dict[str, HotPath]:
    """All hot paths by name, with their input made."""
    values: list[bytes | None] = [value_of(row, NOW_MS + row, NOW_MS * 1_000) for row in range(CHUNK)]
    ids = [f"order-{row:012d}" for row in range(CHUNK)]
    stamps = _stamps(0)
    chunk = InputChunk(TOPIC, 0, list(range(CHUNK)), [NOW_MS] * CHUNK, [*stamps], values, None)
    produce = partial(_produce, _producer(), Lanes("localhost:9", "guard"), stamps, values)
    return {
        "decode: a whole chunk": HotPath(CHUNK, partial(_decode, chunk)),
        "decode: JSON to keys": HotPath(CHUNK, partial(build_extractor(KEYS), RecordColumns(values))),
        "decode: digests": HotPath(CHUNK, partial(digest_keys, [ids])),
        "frames: cut, to bytes and back": HotPath(CHUNK, partial(_frames, 0, b"".join(stamps))),
        "route: large batch, half of it known": _routing(chunks=50),
        "route: small batch, half of it known": _routing(chunks=1),
        "deliver: produce": HotPath(CHUNK, produce),
    }


def _stamps(first: int) -> list[bytes]:
    pack = stamp_packer()
    return [pack(PID, 0, first + row) for row in range(CHUNK)]


def _decode(chunk: InputChunk) -> None:
    settings = PipelineSettings(
        service="guard", checkpoint="guard", bootstrap="localhost:9", topics=(TOPIC,), keys=KEYS, rules=RULES,
        outputs={Route.UNIQUE: Output("unique", 4)}, output_pids={"unique": {TOPIC: 1}},
        shards=SHARDS, lanes=SHARDS,
    )  # fmt: skip
    for _ in decode_chunks(settings, [[chunk]], BatchFacts.at(NOW_MS * 1_000 + 10**9)):
        pass


def _frames(first: int, stamps: bytes) -> list[Frame]:
    """The frames of one chunk, as shards get them; ``first``: the number of its first key."""
    numbers = np.arange(first, first + CHUNK, dtype=np.uint64)
    # evenly spread, like the digests of real keys
    digests = np.stack([numbers * np.uint64(0x9E3779B97F4A7C15), numbers * np.uint64(0xC2B2AE3D27D4EB4F)], 1)
    cut = cut_frames(
        [ChunkId(TOPIC, 0, first)], np.array([CHUNK]), stamps=stamps_from_wire(stamps, VALID),
        expiry=NOW_MS + numbers.astype(np.int64), digests=digests, rows=np.arange(CHUNK, dtype=np.uint32),
        future=None, shards=SHARDS,
    )  # fmt: skip
    return [Frame.from_bytes(frame.to_bytes()) for frame in cut.frames]


def _routing(chunks: int) -> HotPath:
    """A batch of one shard, half of whose keys were in the batch before it."""
    store, facts, records = MemoryStore(), BatchFacts.at(NOW_MS * 1_000), chunks * CHUNK
    before, batch = (
        [_frames(at + shift // 2, b"".join(_stamps(at + shift)))[0] for at in range(0, records, CHUNK)]
        for shift in (0, records)
    )
    state = route_batch(before, RULES, ShardState.empty(), store, facts).state

    def run() -> None:
        route_batch(batch, RULES, state, MemoryStore(store), facts)

    return HotPath(sum(len(frame.hi) for frame in batch), run)


def _producer() -> Producer:
    """A producer without a broker: what it is given is dropped again."""
    return Producer(
        {"bootstrap.servers": "localhost:9", "log_level": 0, "queue.buffering.max.messages": 10 * CHUNK}
    )


def _produce(producer: Producer, lanes: Lanes, keys: list[bytes], values: list[bytes | None]) -> None:
    partition = TOPIC, 0
    delivery = Delivery(lanes, 0, _Owner(producer, {partition: 0}), LaneStats(), begun=True)
    delivery.write(
        Chunk(partition, range(CHUNK), ["unique"] * CHUNK, [0] * CHUNK, keys, values, [NOW_MS] * CHUNK)
    )
    producer.purge()
    producer.poll(0)
