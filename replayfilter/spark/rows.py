"""The rows that the plan's exchanges carry between decode, route and deliver, and what their bodies hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.columns import Columns, pack, unpack
from replayfilter.core.frames import ChunkId, Frame
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.routing import FirstSeen, Routes

# What a row's body is. A lane sorts its rows by this: routes must come before the payloads they are for.
REPORT, ROUTES, FRAME, PAYLOAD = range(4)

_FIELDS: dict[str, tuple[str, pa.DataType]] = {
    "kind": ("INT", pa.int32()),
    "shard": ("INT", pa.int32()),  # an id of partitioning.partition_ids, as is lane
    "lane": ("INT", pa.int32()),
    "sequence": ("INT", pa.int32()),  # a payload's number in its task: a lane writes payloads in this order
    "facts": ("STRING", pa.string()),  # see facts_to_text; the same in the whole batch
    "body": ("BINARY", pa.binary()),
}
COLUMNS = list(_FIELDS)
SCHEMA = ", ".join(f"{name} {kind} NOT NULL" for name, (kind, _) in _FIELDS.items())
ARROW_SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, (_, kind) in _FIELDS.items()])
_META = b"replayfilter"


def facts_to_text(facts: BatchFacts) -> str:
    """The facts of a batch as a row's column."""
    return json.dumps(facts)


def facts_from_text(text: str) -> BatchFacts:
    """Read what ``facts_to_text`` wrote."""
    time_us, believed_us, caught_up, upstream = json.loads(text)
    return BatchFacts(time_us, believed_us, caught_up, tuple((service, low) for service, low in upstream))


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
    """The records of some chunks of one lane.

    ``chunks``: the c chunks, and ``ends``, of length c: where the rows of each end. ``records`` has n rows:
    ``value`` binary, ``offset`` int64, ``timestamp`` int64 (ms, -1 for none), ``route`` uint8 (0 if the
    shards decide). Where needed it also has ``key`` binary, ``headers`` list<struct<key, value>>, ``reason``
    and ``message`` string. ``counts``: what decode counted, by the names in spark/counts.py.
    """

    chunks: tuple[ChunkId, ...]
    ends: tuple[int, ...]
    records: pa.RecordBatch
    counts: dict[str, int]

    @property
    def input_partitions(self) -> list[InputPartition]:
        """The chunks' input partitions; each has one chunk."""
        return [(chunk.topic, chunk.partition) for chunk in self.chunks]

    def write_to(self, sink: pa.NativeFile) -> None:
        """Write the payload as an Arrow stream of one batch."""
        meta = {"chunks": self.chunks, "ends": self.ends, "counts": self.counts}
        records = self.records.replace_schema_metadata({_META: json.dumps(meta)})
        with pa.ipc.new_stream(sink, records.schema) as stream:
            stream.write_batch(records)

    @classmethod
    def from_buffer(cls, data: pa.Buffer) -> Payload:
        """Read a payload; its columns are views of ``data``."""
        with pa.ipc.open_stream(data) as stream:
            records = stream.read_next_batch()
        meta = json.loads(records.schema.metadata[_META])
        chunks = tuple(ChunkId(*chunk) for chunk in meta["chunks"])
        return cls(chunks, tuple(meta["ends"]), records, meta["counts"])


def routes_to_bytes(routes: Sequence[Routes]) -> bytes:
    """What a shard decided of some chunks, as a row's body."""
    columns: Columns = {
        "ends": _ends([each.rows for each in routes]),
        "rows": _joined([each.rows for each in routes], np.uint32),
        "codes": _joined([each.codes for each in routes], np.uint8),
    }
    meta: dict[str, Any] = {"chunks": [(each.topic, each.partition, each.first) for each in routes]}
    seen = [each.first_seen for each in routes if each.first_seen is not None]
    if seen:
        columns |= {
            "repeat_ends": _ends([each.rows for each in seen]),
            "repeats": _joined([each.rows for each in seen], np.uint32),
            "input_index": _joined([each.input_index for each in seen], np.uint32),
            "input_offset": _joined([each.input_offset for each in seen], np.int64),
        }
        meta["partitions"] = seen[0].partitions
    if any(each.late is not None for each in routes):
        late = [np.zeros(0, np.uint64) if each.late is None else each.late for each in routes]
        columns |= {"late_ends": _ends(late), "late": _joined(late, np.uint64)}
    return pack(columns, meta)


def routes_from_bytes(data: bytes) -> list[Routes]:
    """Read what ``routes_to_bytes`` wrote."""
    columns, meta = unpack(data)
    chunks = [ChunkId(*chunk) for chunk in meta["chunks"]]
    firsts: list[FirstSeen | None] = [None] * len(chunks)
    if "repeats" in columns:
        partitions = tuple((topic, partition) for topic, partition in meta["partitions"])
        cut = [
            _cut(columns[name], columns["repeat_ends"]) for name in ("repeats", "input_index", "input_offset")
        ]
        firsts = [FirstSeen(rows, index, at, partitions) for rows, index, at in zip(*cut, strict=True)]
    late: list[NDArray[np.uint64] | None] = [None] * len(chunks)
    if "late" in columns:
        late = [part if len(part) else None for part in _cut(columns["late"], columns["late_ends"])]
    rows, codes = _cut(columns["rows"], columns["ends"]), _cut(columns["codes"], columns["ends"])
    return [
        Routes(*chunk, rows_of, codes_of, first, late_of)
        for chunk, rows_of, codes_of, first, late_of in zip(chunks, rows, codes, firsts, late, strict=True)
    ]


def empty_frames(shards: Sequence[int], lane: int, facts: BatchFacts) -> pa.RecordBatch:
    """A frame without records for each shard, so that all of them learn the facts of the batch."""
    rows, body = RowBuilder(), Frame.empty().to_bytes()
    for shard in shards:
        rows.add(body, FRAME, shard, lane, 0, facts_to_text(facts))
    return rows.to_batch()


def _ends(parts: list[NDArray[Any]]) -> NDArray[np.int64]:
    return np.cumsum([len(part) for part in parts], dtype=np.int64)


def _joined(parts: list[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _cut(column: NDArray[Any], ends: NDArray[np.int64]) -> list[NDArray[Any]]:
    """The parts of a joined column."""
    return np.split(column, ends[:-1])


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
