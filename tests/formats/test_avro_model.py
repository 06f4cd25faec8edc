"""Avro extraction compared with the values that were written: random schemas, values and damage."""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from io import BytesIO
from itertools import count
from typing import Any

import fastavro
import fastavro._read_py
from hypothesis import given
from hypothesis import strategies as st

from replayfilter.core.digest import MISSING, digest_key
from replayfilter.formats import AvroSpec, Extraction, KeySpec, RecordColumns, build_extractor

LONG = st.integers(-(2**63), 2**63 - 1)
INT = st.integers(-(2**31), 2**31 - 1)
NS = {"date": 86_400 * 10**9, "timestamp-millis": 10**6, "timestamp-micros": 10**3, "timestamp-nanos": 1}
SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(), "boolean": st.booleans(), "int": INT, "long": LONG, "bytes": st.binary(max_size=5),
    "double": st.floats(), "string": st.text(st.characters(codec="utf-8"), max_size=5),
    "float": st.floats(width=32),
}  # fmt: skip
LOGICAL = [
    ("int", "date"),
    ("long", "timestamp-millis"),
    ("long", "timestamp-micros"),
    ("long", "timestamp-nanos"),
]
PATHS = ("a", "b.a", "b.a.b", "c")


@st.composite
def typed_values(draw: st.DrawFn, names: Any, depth: int) -> tuple[Any, Any, Any]:
    """A type, a value to write, and the value that a key must contain."""
    kinds = ["simple", "simple", "logical", "decimal", "enum", "fixed"]
    match draw(st.sampled_from(kinds + (["array", "map", "union", "record", "record"] if depth else []))):
        case "simple":
            kind = draw(st.sampled_from(list(SIMPLE)))
            value = draw(SIMPLE[kind])
            return kind, value, value
        case "logical":
            kind, logical = draw(st.sampled_from(LOGICAL))
            value = draw(SIMPLE[kind])
            return {"type": kind, "logicalType": logical}, value, value * NS[logical]
        case "decimal":
            scale = draw(st.integers(0, 4))
            value = draw(st.binary(min_size=1, max_size=8))
            number = Decimal(int.from_bytes(value, signed=True)) / 10**scale
            return {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": scale}, value, number
        case "enum":
            value = draw(st.sampled_from(["A", "B"]))
            return {"type": "enum", "name": f"N{next(names)}", "symbols": ["A", "B"]}, value, value
        case "fixed":
            size = draw(st.integers(0, 4))
            value = draw(st.binary(min_size=size, max_size=size))
            return {"type": "fixed", "name": f"N{next(names)}", "size": size}, value, value
        case "union":
            kind, value, key = draw(typed_values(names, 0))
            return (["null", kind], value, key) if kind != "null" else (["int", "null"], value, key)
        case "array":
            kind, value, key = draw(typed_values(names, depth - 1))
            # Items must take at least one byte, or the schema is refused.
            items: Any = kind
            if kind == "null":
                items, value, key = "int", 1, 1
            elif isinstance(kind, dict) and kind["type"] in ("fixed", "record"):
                items = ["null", kind]
            times = draw(st.integers(0, 3))
            return {"type": "array", "items": items}, [value] * times, [key] * times
        case "map":
            kind, value, key = draw(typed_values(names, depth - 1))
            keys = draw(st.lists(st.sampled_from("ab"), unique=True))
            return {"type": "map", "values": kind}, dict.fromkeys(keys, value), dict.fromkeys(keys, key)
    return draw(records(names, depth - 1))


@st.composite
def records(draw: st.DrawFn, names: Any, depth: int) -> tuple[Any, Any, Any]:
    fields = draw(st.lists(st.sampled_from("abcd"), unique=True))
    inner = {name: draw(typed_values(names, depth)) for name in fields}
    schema = {
        "type": "record",
        "name": f"N{next(names)}",
        "fields": [{"name": name, "type": inner[name][0]} for name in fields],
    }
    return schema, {n: inner[n][1] for n in fields}, {n: inner[n][2] for n in fields}


documents = st.deferred(lambda: records(count(), 2))


def without_logical(schema: Any) -> Any:
    """The schema without logical types: fastavro then writes plain numbers and bytes."""
    if isinstance(schema, dict):
        return {key: without_logical(value) for key, value in schema.items() if key != "logicalType"}
    return [without_logical(item) for item in schema] if isinstance(schema, list) else schema


def look_up(item: Any, path: str) -> Any:
    for name in path.split("."):
        item = item.get(name, MISSING) if isinstance(item, dict) else MISSING
    return item


def extracted(schema: Any, value: bytes) -> Extraction:
    spec = AvroSpec("plain", schemas=(json.dumps(schema),))
    return build_extractor(KeySpec("avro", PATHS, None, "ms", spec))(RecordColumns([value]))


@given(documents)
def test_the_key_is_the_written_value(document: tuple[Any, Any, Any]) -> None:
    schema, value, key = document
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(without_logical(schema)), value)
    result = extracted(schema, out.getvalue())
    parts = [look_up(key, path) for path in PATHS]
    if not out.getvalue():
        assert result.errors[0].reason == "empty"
    elif all(part is None or part is MISSING for part in parts):
        assert result.errors[0].reason == "key"
    else:
        assert result.errors == []
        assert struct.pack(">QQ", *result.digests[0].tolist()) == digest_key(parts)


@given(documents, st.data())
def test_damage_is_an_error_or_another_value(document: tuple[Any, Any, Any], data: st.DataObject) -> None:
    schema, value, _ = document
    out = BytesIO()
    plain = fastavro.parse_schema(without_logical(schema))
    fastavro.schemaless_writer(out, plain, value)
    whole = out.getvalue()
    at = data.draw(st.integers(0, len(whole)))
    damaged = whole[:at] + data.draw(st.binary(max_size=3)) + whole[data.draw(st.integers(at, len(whole))) :]
    result = extracted(schema, damaged)  # does not raise
    stream = BytesIO(damaged)
    try:
        fastavro._read_py.schemaless_reader(stream, plain, None)
    except (EOFError, IndexError, ValueError):
        return  # the extractor checks skipped fields less strictly
    reasons = [error.reason.value for error in result.errors]
    if damaged and stream.tell() == len(damaged):
        assert "avro" not in reasons
    else:
        assert reasons in (["avro"], ["empty"])
