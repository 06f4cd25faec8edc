"""The cost of extraction: CPU time per record, for typical keys.

    python benchmarks/decode.py [RECORDS]

The shapes take turns, so that a noisy machine disturbs all of them equally. The best round of each is shown.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from typing import Any

import fastavro

from replayfilter.formats import AvroSpec, KeySpec, RecordColumns, build_extractor

BATCH = 4_000  # the size of an Arrow batch in the pipeline
ROUNDS = 15
AVRO: Any = {"type": "record", "name": "Event", "fields": [
    {"name": "id", "type": "string"},
    {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "at", "type": "string"},
    {"name": "user", "type": {"type": "record", "name": "User", "fields": [
        {"name": "id", "type": "long"}, {"name": "name", "type": "string"}]}},
    {"name": "page", "type": "string"},
    {"name": "price", "type": "double"},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
]}  # fmt: skip


def main(records: int) -> None:
    shapes = build_shapes()
    repeats = max(1, records // BATCH)
    best = dict.fromkeys(shapes, float("inf"))
    for _ in range(ROUNDS):
        for name, run in shapes.items():
            started_at = time.process_time()
            for _ in range(repeats):
                run()
            best[name] = min(best[name], time.process_time() - started_at)
    print(f"{'shape':<44}{'us/record':>12}{'records/s':>12}")
    for name, seconds in best.items():
        per_record = seconds / (repeats * BATCH)
        print(f"{name:<44}{per_record * 1e6:>12.2f}{1 / per_record:>12,.0f}")


def build_shapes() -> dict[str, Callable[[], object]]:
    events = build_events()
    values = [json.dumps(event).encode() for event in events]
    good = RecordColumns(
        values=values,
        keys=[event["id"].encode() for event in events],
        timestamps_ms=[event["ts"] for event in events],
        headers=[[("trace", b"x" * 16), ("id", event["id"].encode())] for event in events],
    )
    broken = RecordColumns([value[:-9] if i % 100 == 0 else value for i, value in enumerate(values)])
    cut = RecordColumns([value.replace(b'"/cart"', rb'"\ud83d"') for value in values])
    specs = {
        "text key, ts": (("id",), "ts", "ms", "json", good),
        "text key, ts; 1% broken": (("id",), "ts", "ms", "json", broken),
        "text key, ts; all with a lone surrogate": (("id",), "ts", "ms", "json", cut),
        "text key, @timestamp": (("id",), "@timestamp", "ms", "json", good),
        "text key, ISO 8601": (("id",), "at", "iso8601", "json", good),
        "nested integer key, ts": (("user.id",), "ts", "ms", "json", good),
        "three fields, two of them nested, ts": (("id", "user.id", "user.name"), "ts", "ms", "json", good),
        "object of two members as key, ts": (("user",), "ts", "ms", "json", good),
        "header as key, @timestamp": (("@header:id",), "@timestamp", "ms", "raw", good),
        "record key as key, @timestamp": (("@key",), "@timestamp", "ms", "raw", good),
        "whole value as key, no expiry": (("@value",), None, "ms", "raw", good),
    }
    shapes: dict[str, Callable[[], object]] = {}
    for name, (key, expiry, unit, kind, batch) in specs.items():
        extractor = build_extractor(KeySpec(kind, key, expiry, unit))
        shapes[name] = partial(extractor, batch)
    shapes |= avro_shapes(events)
    sizes = [len(value) for value in values]
    average = sum(sizes) / len(sizes)
    print(f"batches of {BATCH:,} records, {average:.0f} bytes of JSON per record, best of {ROUNDS} rounds")
    return shapes


def avro_shapes(events: list[dict[str, Any]]) -> dict[str, Callable[[], object]]:
    """The same events in Avro: read by the extractor, and by fastavro in two other ways."""
    whole = fastavro.parse_schema(AVRO)
    fields = [field for field in AVRO["fields"] if field["name"] in ("id", "ts")]
    needed = fastavro.parse_schema({**AVRO, "fields": fields})
    values = []
    for event in events:
        out = BytesIO()
        fastavro.schemaless_writer(out, whole, event)
        values.append(out.getvalue())

    def read(reader: Any) -> None:
        for value in values:
            fastavro.schemaless_reader(BytesIO(value), whole, reader)

    avro = AvroSpec("plain", schemas=(json.dumps(AVRO),))
    return {
        "Avro: text key, ts": partial(
            build_extractor(KeySpec("avro", ("id",), "ts", "ms", avro)), RecordColumns(values)
        ),
        "Avro: nested integer key, ts": partial(
            build_extractor(KeySpec("avro", ("user.id",), "ts", "ms", avro)), RecordColumns(values)
        ),
        "Avro: fastavro, all fields, no keys": partial(read, None),
        "Avro: fastavro, reader's schema of two fields": partial(read, needed),
    }


def build_events() -> list[dict[str, Any]]:
    chance = random.Random(1)
    start = 1_714_564_800_000
    return [
        {
            "id": f"{chance.getrandbits(128):032x}",
            "ts": start + i,
            "at": datetime.fromtimestamp((start + i) / 1000, UTC).isoformat(timespec="milliseconds"),
            "user": {"id": chance.randrange(1_000_000), "name": f"user {i}"},
            "page": "/cart",
            "price": 12.75,
            "tags": ["new", "sale"],
        }
        for i in range(BATCH)
    ]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40_000)
