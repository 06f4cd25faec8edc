"""Everything that reads bytes from outside, each as a function that takes bytes and must not raise."""

from __future__ import annotations

import base64
import contextlib
import json
import struct
import tomllib
from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro
import fastavro._read_py
import numpy as np
from google.protobuf.message import DecodeError

from replayfilter.core.columns import pack, unpack
from replayfilter.core.digest import digest_keys
from replayfilter.core.period_study import PeriodStudy
from replayfilter.core.stamp import STAMP_BYTES, Stamp, parse_stamps
from replayfilter.formats import (
    AvroSpec,
    Extractor,
    KeySpec,
    ProtobufSpec,
    RecordColumns,
    build_extractor,
    debezium,
)
from replayfilter.formats.avro.shape import shape_of
from replayfilter.formats.definition import Definition, SchemaError
from replayfilter.formats.detect import protobuf_names
from replayfilter.formats.fields import parse_field
from replayfilter.formats.protobuf.message_reader import ProtobufReader, look_up
from replayfilter.service.tools.advised_config import config_text
from replayfilter.service.tools.topic_sample import look
from tests.support.paths import ROOT


def split(data: bytes) -> list[bytes | None]:
    """Split the input into values: a byte gives the length of each, in units of 4; 255 means null."""
    values: list[bytes | None] = []
    while data:
        size, data = data[0], data[1:]
        if size == 255:
            values.append(None)
        else:
            values.append(data[: size * 4])
            data = data[size * 4 :]
    return values


def extract(extractor: Extractor, columns: RecordColumns) -> None:
    """Extract a batch: the result has the right shape, and a record gives the same result on its own."""
    result = extractor(columns)
    n = len(columns.values)
    assert result.expiry.shape == (n,)
    assert result.expiry.dtype == np.int64
    assert result.digests.shape == (n, 2)
    rows = [error.row for error in result.errors]
    assert rows == sorted(set(rows))
    assert all(error.message.isprintable() and len(error.message) < 1_000 for error in result.errors)
    for row in rows:
        assert result.expiry[row] == 0
        assert not result.digests[row].any()
        assert result.contents is None or not result.contents[row]
    if n > 1:
        row = n // 2
        only = slice(row, row + 1)
        single = extractor(
            RecordColumns(
                columns.values[only], columns.keys[only], columns.timestamps_ms[only], columns.headers[only]
            )
        )
        assert single.expiry[0] == result.expiry[row]
        assert single.digests[0].tolist() == result.digests[row].tolist()
        if result.contents is not None and single.contents is not None:
            assert single.contents[0] == result.contents[row]


# ---- formats ----------------------------------------------------------------------------------------------

JSON = [
    build_extractor(
        KeySpec(
            "json", ("id", "user.id", "user"), "ts", unit, on_null=on_null, content=("user", "a", "@value")
        )
    )
    for unit, on_null in (("ms", "error"), ("iso8601", "unique"), ("integer", "key"))
]


def json_values(data: bytes) -> None:
    """JSON values."""
    values = split(data)
    extract(JSON[len(data) % 3], RecordColumns(values, values[::-1]))


RAW = [
    build_extractor(KeySpec("raw", ("@value", "@key", "@header:h"), expiry, unit))
    for expiry, unit in (("@timestamp", "ns"), ("@header:h", "s"), ("@header:h", "iso8601"))
]


def raw_values(data: bytes) -> None:
    """Opaque values, keys and headers, and timestamps of any size."""
    values = split(data)
    n = len(values)
    times = np.frombuffer((data + bytes(8 * n))[: 8 * n], np.int64)
    headers = [[("h", value)] if value and len(value) % 2 else None for value in values]
    extract(RAW[n % 3], RecordColumns(values, values[::-1], times, headers))


DESCRIPTORS = base64.b64encode((ROOT / "tests" / "vectors" / "order.desc").read_bytes()).decode()
PROTOBUF = [
    build_extractor(
        KeySpec(
            "protobuf",
            key,
            expiry,
            "ms",
            protobuf=ProtobufSpec(encoding, DESCRIPTORS, "shop.Order"),
            content=("lines", "user"),
        )
    )
    for encoding in ("plain", "confluent")
    for key, expiry in ((("id", "kind", "lines", "first"), "at"), (("sizes", "user", "first.sku"), "ts"))
]


def protobuf_values(data: bytes) -> None:
    """Protobuf messages, with and without Confluent's prefix; the next value may be in the header for it."""
    values = split(data)
    headers = [
        [("__value_schema_id", bytes([1]) * 17 + value)] if value and row % 3 == 0 else None
        for row, value in enumerate([*values[1:], *values[:1]])
    ]
    extract(PROTOBUF[len(data) % 4], RecordColumns(values, headers=headers))


PROTOBUF_FIELDS = [parse_field(name) for name in ("id", "user.id", "user", "ts")]
REGISTERED = ProtobufReader(PROTOBUF_FIELDS, ProtobufSpec("confluent", registry="http://127.0.0.1:1"))


def protobuf_schemas(data: bytes) -> None:
    """Invalid and strange .proto files as a registry gives them: size, descriptor, value."""
    size, rest = int.from_bytes(data[:2]), data[2:]
    definition = Definition(base64.b64encode(rest[:size]).decode(), type="PROTOBUF")
    problem = ""
    try:
        types = REGISTERED.types_of(definition)
        protobuf_names(definition)
    except SchemaError as error:
        problem, types = str(error), {}
    assert problem.isprintable()
    for plan in types.values():
        with contextlib.suppress(DecodeError):
            message = plan.parse(rest[size:])
            digest_keys([[look_up(message, column)] for column in plan.columns])


CLOUDEVENTS = [
    build_extractor(KeySpec("cloudevents", ("source", "id", "subject"), expiry, unit, content=("sequence",)))
    for expiry, unit in (("time", "iso8601"), ("sequence", "integer"))
]
CONTENT_TYPES = [b"application/cloudevents+json", b"Application/CloudEvents+JSON;x", b"text/plain", None]
ATTRIBUTES = ("ce_source", "ce_id", "ce_subject", "ce_time", "ce_sequence")


def cloud_events(data: bytes) -> None:
    """CloudEvents: the value of each in turn is the event or a header, with and without a content type."""
    values = split(data)
    headers: list[list[tuple[str, bytes | None]] | None] = []
    for row, value in enumerate(values):
        own = [(name, values[(row - at) % len(values)]) for at, name in enumerate(ATTRIBUTES)]
        content_type = (value or b"")[:40] if row % 5 == 4 else CONTENT_TYPES[row % 5]
        headers.append([*own, ("content-type", content_type)] if row % 7 else None)
    extract(CLOUDEVENTS[len(data) % 2], RecordColumns(values, headers=headers))


DEBEZIUM = [
    build_extractor(KeySpec("debezium", key, expiry, "ms", on_null="unique"))
    for key, expiry in ((debezium.KEY, debezium.EXPIRY_KEY), (("source.pos", "payload.op"), "ts_ms"))
]


def change_events(data: bytes) -> None:
    """Debezium's change events, with and without schemas; a record without a key may pass."""
    values = split(data)
    extract(DEBEZIUM[len(data) % 2], RecordColumns(values, values[::-1]))


INNER = {
    "type": "record", "name": "In",
    "fields": [{"name": "id", "type": "long"}, {"name": "b", "type": "boolean"}],
}  # fmt: skip
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
UUID = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
SCHEMAS: list[dict[str, Any]] = [
    {"id": "string", "ts": MILLIS},
    {
        "x": ["null", "string", "double"],
        "user": ["null", INNER],
        "ts": {"type": "int", "logicalType": "date"},
    },
    {
        "a": {"type": "array", "items": ["null", INNER]},
        "user": {"type": "map", "values": "In"},
        "ts": "double",
    },
    {"id": DECIMAL, "user": UUID, "e": ENUM, "ts": ["null", DECIMAL | {"precision": 30, "scale": 0}]},
    {"next": ["null", "Top"], "id": {"type": "map", "values": ["int", "Top"]}, "ts": "long"},
]
TEXTS = [
    json.dumps(
        {"type": "record", "name": "Top", "fields": [{"name": n, "type": t} for n, t in fields.items()]}
    )
    for fields in SCHEMAS
]
PARSED = [fastavro.parse_schema(json.loads(text)) for text in TEXTS]
AVRO = [
    build_extractor(
        KeySpec(
            "avro",
            ("id", "user.id", "user"),
            "ts",
            "us",
            AvroSpec("plain", schemas=(text,)),
            content=("user", "ts"),
        )
    )
    for text in TEXTS
]


def avro_values(data: bytes) -> None:
    """Avro values, with schemas of all types. A value that fastavro's own decoder reads must be readable."""
    if not data:
        return
    number = data[0] % len(AVRO)
    values = split(data[1:])
    extract(AVRO[number], RecordColumns(values))
    for value in values[:1]:
        if not value:
            continue
        stream = BytesIO(value)
        with contextlib.suppress(
            EOFError, IndexError, ValueError, ArithmeticError, RecursionError, struct.error
        ):
            fastavro._read_py.schemaless_reader(stream, PARSED[number], None)
            unreadable = [
                error for error in AVRO[number](RecordColumns([value])).errors if error.reason == "avro"
            ]
            assert bool(unreadable) == (stream.tell() < len(value)), (unreadable, stream.tell())


SINGLE = build_extractor(
    KeySpec("avro", ("id",), None, "ms", AvroSpec("single-object", schemas=tuple(TEXTS[:1])))
)


def avro_prefixes(data: bytes) -> None:
    """Avro values, most of them with a wrong prefix."""
    extract(SINGLE, RecordColumns(split(data)))


def avro_schemas(data: bytes) -> None:
    """Invalid and strange schemas; the bytes after the first newline are a value to read with them."""
    text, _, value = data.partition(b"\n")
    with contextlib.suppress(SchemaError, UnicodeDecodeError):
        shape = shape_of(Definition(text.decode()), {"id": {}})
        with contextlib.suppress(
            EOFError, IndexError, ValueError, ArithmeticError, RecursionError, struct.error
        ):
            shape.read(BytesIO(value))


# ---- advice -----------------------------------------------------------------------------------------------


def samples(data: bytes) -> None:
    """Samples of a topic: whatever the records are, a format, fields, a key and an expiry key are found."""
    values = split(data)
    if not values:
        return
    n = len(values)
    names = [(value or b"")[:20].decode("latin-1") for value in values]
    headers = [
        [(names[-1 - row], value), ("ce_id", value)] if row % 3 else None for row, value in enumerate(values)
    ]
    times = np.frombuffer((data + bytes(8 * n))[: 8 * n], np.int64)
    columns = RecordColumns(values, values[::-1], times.tolist(), headers)
    finding = look(columns, (), "", None, 1_714_556_700_000)
    on_null = "unique" if finding.has_nulls else "error"
    spec = KeySpec(
        finding.detected.format, finding.key, finding.time.field, finding.time.unit, on_null=on_null
    )
    extract(build_extractor(spec), columns)
    options = {names[0]: names[-1]}
    choice = PeriodStudy("ms", 0).result().choices[0]
    text = config_text(
        finding, choice, topic="t", bootstrap="b", options=options, registry="", registry_options={}
    )
    assert tomllib.loads(text)["dedup"]["key"] == list(finding.key)


# ---- stamps and frames ------------------------------------------------------------------------------------


def stamps(data: bytes) -> None:
    """Keys that may be stamps: parsed one by one and all at once they give the same."""
    values = split(data)
    many = parse_stamps(values)
    for row, value in enumerate(values):
        one = None if value is None else Stamp.from_bytes(value)
        assert (one is not None) == bool(many.valid[row]) == (value is not None and len(value) == STAMP_BYTES)
        if one is not None:
            assert one.to_bytes() == value
            assert one == Stamp(int(many.pids[row]), int(many.partitions[row]), int(many.offsets[row]))


def columns(data: bytes) -> None:
    """Column blocks (frames, runs and state): either they can be read, or they raise ValueError."""
    with contextlib.suppress(ValueError):
        found, meta = unpack(data)
        again, same = unpack(pack(found, meta))
        assert json.dumps(same) == json.dumps(meta)
        assert {name: column.tobytes() for name, column in again.items()} == {
            name: column.tobytes() for name, column in found.items()
        }


TARGETS: dict[str, Callable[[bytes], None]] = {
    "json": json_values,
    "raw": raw_values,
    "cloudevents": cloud_events,
    "debezium": change_events,
    "protobuf": protobuf_values,
    "protobuf-schema": protobuf_schemas,
    "avro": avro_values,
    "avro-prefix": avro_prefixes,
    "avro-schema": avro_schemas,
    "samples": samples,
    "stamps": stamps,
    "columns": columns,
}
