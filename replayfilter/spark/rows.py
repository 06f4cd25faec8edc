"""Rows of frames, as they go through the exchanges of the plan, and the payload that one may carry."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

# In the order in which a lane wants them.
STATS, ROUTES, FINGERPRINT, PAYLOAD = range(4)

_FIELDS: dict[str, tuple[str, pa.DataType]] = {
    "kind": ("INT", pa.int32()),
    "shard": ("INT", pa.int32()),  # an id of identity.partition_ids, like lane
    "lane": ("INT", pa.int32()),
    "topic": ("STRING", pa.string()),
    "partition": ("INT", pa.int32()),
    "first": ("BIGINT", pa.int64()),  # with topic and partition the run's name: its first input offset
    "batch_time": ("BIGINT", pa.int64()),  # microseconds since the epoch, the same for the whole batch
    "body": ("BINARY", pa.binary()),
}
COLUMNS = list(_FIELDS)
SCHEMA = ", ".join(f"{name} {kind} NOT NULL" for name, (kind, _) in _FIELDS.items())
ARROW_SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, (_, kind) in _FIELDS.items()])
_COUNTS = b"counts"


class FrameRows:
    """Rows on their way out of mapInArrow; bodies are written one behind the other, and so never copied."""

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
        """The rows."""
        ends = pa.py_buffer(np.array(self._ends, np.int32))
        bodies = pa.Array.from_buffers(pa.binary(), len(self), [None, ends, self._bodies.getvalue()])
        return pa.RecordBatch.from_pydict({**self._columns, "body": bodies}, schema=ARROW_SCHEMA)


@dataclass(frozen=True, slots=True)
class Payload:
    """The records of one run.

    ``records`` has n rows: ``value`` binary, ``offset`` int64, ``timestamp`` int64 (ms, -1 for none),
    ``route`` uint8 (0 where the shards decide); where needed ``key`` binary, ``headers``
    list<struct<key, value>>, ``reason`` and ``message`` string. ``counts`` of spark/counts.py that decode
    knows.
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
