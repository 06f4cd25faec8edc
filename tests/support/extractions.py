"""What tests read from an extraction, and Avro values to extract from."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import fastavro

from replayfilter.formats import AvroSpec, Extraction, KeySpec, RecordColumns, RecordError, build_extractor


def digests(extraction: Extraction) -> list[bytes]:
    """The digest of each row, as bytes."""
    return [struct.pack(">QQ", *pair) for pair in extraction.digests.tolist()]


def reasons(extraction: Extraction) -> list[tuple[int, str]]:
    """The row and the reason of each error."""
    return [(error.row, error.reason.value) for error in extraction.errors]


def record_schema(**fields: Any) -> dict[str, Any]:
    """The schema of a record named E."""
    return {"type": "record", "name": "E", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def logical(type_: str, logical_type: str, /, **more: Any) -> dict[str, Any]:
    """A logical type."""
    return {"type": type_, "logicalType": logical_type, **more}


def encoded(schema: Any, value: Any, **named: Any) -> bytes:
    """A value in Avro's binary encoding, without prefix. ``named``: types that the schema refers to."""
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, named_schemas=dict(named)), value)
    return out.getvalue()


def confluent(schema: Any, value: Any, id_: int, **named: Any) -> bytes:
    """A value in Confluent's wire format: a zero byte, the schema's id, the value."""
    return struct.pack(">xi", id_) + encoded(schema, value, **named)


def extract_plain(
    schema: Any,
    values: Sequence[bytes | None],
    key: tuple[str, ...] = ("id",),
    expiry: str | None = None,
    unit: str = "ms",
) -> Extraction:
    """Extract values without prefix, all written with ``schema``."""
    spec = AvroSpec("plain", schemas=(json.dumps(schema),))
    return build_extractor(KeySpec("avro", key, expiry, unit, spec))(RecordColumns(values))


def plain_error(schema: Any, value: bytes | None, **more: Any) -> RecordError:
    """The error of a single value that can't be used."""
    (error,) = extract_plain(schema, [value], **more).errors
    return error
