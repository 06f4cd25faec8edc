"""The rows that the plan's exchanges carry between decode, route and deliver, and what their bodies hold."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.columns import Columns, pack, unpack
from replayfilter.core.routing import FirstSeen, Routes

# What a row's body is. A lane sorts its rows by this: routes must come before the payloads they are for.
REPORT, ROUTES, FRAME, PAYLOAD = range(4)

_FIELDS: dict[str, tuple[str, pa.DataType]] = {
    "kind": ("INT", pa.int32()),
    "shard": ("INT", pa.int32()),  # an id of partitioning.partition_ids, as is lane
    "lane": ("INT", pa.int32()),
    "topic": ("STRING", pa.string()),
    "partition": ("INT", pa.int32()),
    "first": ("BIGINT", pa.int64()),  # with topic and partition a ChunkId
    "facts": ("STRING", pa.string()),  # see facts_to_text; the same in the whole batch
    "body": ("BINARY", pa.binary()),
}
COLUMNS = list(_FIELDS)
SCHEMA = ", ".join(f"{name} {kind} NOT NULL" for name, (kind, _) in _FIELDS.items())
ARROW_SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, (_, kind) in _FIELDS.items()])
_COUNTS = b"counts"


def facts_to_text(facts: BatchFacts) -> str:
    """The facts of a batch as a row's column."""
    return json.dumps(facts)


def facts_from_text(text: str) -> BatchFacts:
    """Read what ``facts_to_text`` wrote."""
    return BatchFacts(*json.loads(text))


class ChunkId(NamedTuple):
    """Identifies a chunk within a batch: its input partition and first offset."""

    topic: str
    partition: int
    first: int


class RowBuilder:
    """Builds a batch of rows for mapInArrow. All bodies go into one buffer, so none is copied again."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS[:-1]}
        self._bodies = pa.BufferOutputStream()
        self._ends = [0]

    def __len__(self) -> int:
        return len(self._ends) - 1

    def add(self, body: bytes | Payload, *values: Any) -> None:
        """Add a row: its body, and the other values in the order of ``COLUMNS``."""
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)
        if isinstance(body, Payload):
            body.write_to(self._bodies)
        else:
            self._bodies.write(body)
        self._ends.append(self._bodies.tell())

    def to_batch(self) -> pa.RecordBatch:
        """The rows added so far."""
        ends = pa.py_buffer(np.array(self._ends, np.int32))
        bodies = pa.Array.from_buffers(pa.binary(), len(self), [None, ends, self._bodies.getvalue()])
        return pa.RecordBatch.from_pydict({**self._columns, "body": bodies}, schema=ARROW_SCHEMA)


@dataclass(frozen=True, slots=True)
class Payload:
    """The records of one chunk.

    ``records`` has n rows: ``value`` binary, ``offset`` int64, ``timestamp`` int64 (ms, -1 for none),
    ``route`` uint8 (0 if the shards decide). Where needed it also has ``key`` binary, ``headers``
    list<struct<key, value>>, ``reason`` and ``message`` string. ``counts``: what decode counted, by the names
    in spark/counts.py.
    """

    records: pa.RecordBatch
    counts: dict[str, int]

    def write_to(self, sink: pa.NativeFile) -> None:
        """Write the payload as an Arrow stream of one batch."""
        records = self.records.replace_schema_metadata({_COUNTS: json.dumps(self.counts)})
        with pa.ipc.new_stream(sink, records.schema) as stream:
            stream.write_batch(records)

    @classmethod
    def from_buffer(cls, data: pa.Buffer) -> Payload:
        """Read a payload; its columns are views of ``data``."""
        with pa.ipc.open_stream(data) as stream:
            records = stream.read_next_batch()
        return cls(records, json.loads(records.schema.metadata[_COUNTS]))


def routes_to_bytes(routes: Routes) -> bytes:
    """What a shard decided of a chunk, as a row's body; the row's columns say which chunk."""
    columns: Columns = {"rows": routes.rows, "codes": routes.codes}
    seen = routes.first_seen
    if seen is None:
        return pack(columns)
    columns |= {"repeats": seen.rows, "input_index": seen.input_index, "input_offset": seen.input_offset}
    return pack(columns, {"partitions": seen.partitions})


def routes_from_bytes(chunk: ChunkId, data: bytes) -> Routes:
    """Read what ``routes_to_bytes`` wrote."""
    columns, meta = unpack(data)
    seen = None
    if "repeats" in columns:
        partitions = tuple((topic, partition) for topic, partition in meta["partitions"])
        seen = FirstSeen(columns["repeats"], columns["input_index"], columns["input_offset"], partitions)
    return Routes(*chunk, columns["rows"], columns["codes"], seen)


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What a shard reports of a batch, besides routes.

    ``counts``: by the names in spark/counts.py. ``watermark_us``: the low watermark before the batch, which
    every output record carries; the same in every shard, UNKNOWN if there is none. ``laggards``: see LAGGARDS
    in spark/counts.py.
    """

    counts: dict[str, int]
    watermark_us: int
    laggards: str = ""

    def to_bytes(self) -> bytes:
        """The report as a row's body."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> ShardReport:
        """Read what ``to_bytes`` wrote."""
        return cls(**json.loads(data))
