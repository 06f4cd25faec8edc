"""Reduces a writer's schema to the fields that are needed, so that fastavro decodes values faster.

The reduced schema, called a *shape*, has the same wire format as the original. A field that is not needed
gets the cheapest type with the same bytes: text is not decoded, dates and decimals are not built. A needed
field keeps its type, and logical types are read in a form that dedup keys and expiry keys can be made of:

- timestamps, local ones too (taken as UTC), and dates (midnight): an :class:`Instant`, for all precisions;
- decimals: exact numbers (fastavro's own reader rounds them to the schema's precision);
- uuid: text in lower case, whether it was written as text or as 16 bytes;
- other logical types: the underlying type.

fastavro's compiled decoder has two weaknesses. It overflows the C stack on deeply nested values of recursive
schemas, which ends the process; recursive schemas are therefore read by fastavro's Python decoder (up to
about 150 levels). And it loops up to 2**63 times over an array whose items take no bytes; schemas with such
arrays are therefore refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from io import BytesIO
from typing import Any, NamedTuple
from uuid import UUID

import fastavro
import fastavro._read_py
from fastavro.read import LOGICAL_READERS
from fastavro.schema import parse_schema

from replayfilter.formats.definition import Definition, SchemaError
from replayfilter.formats.expiry_keys import Instant

Want = dict[str, "Want"]
"""The members that are needed, by name. An empty dict means the whole value."""

AN_AVRO_SCHEMA = "an Avro schema"
_MICRO, _MILLI, _DAY = 10**3, 10**6, 86_400 * 10**9  # in ns
_NS = {
    ("int", "date"): _DAY,
    **{
        ("long", f"{local}timestamp-{digits}"): ns
        for local in ("", "local-")
        for digits, ns in (("millis", _MILLI), ("micros", _MICRO), ("nanos", 1))
    },
}
_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_RECORDS = ("record", "error")
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_DECIMAL_BYTES = 1_785  # 4,300 digits, as in JSON


class Shape(NamedTuple):
    """``read(stream)`` decodes one value; ``name`` is the schema's, for messages."""

    name: str
    read: Callable[[BytesIO], Any]


def shape_of(definition: Definition, want: Want) -> Shape:
    """The shape of a schema. Raises :class:`SchemaError`.

    >>> schema = '{"type": "record", "name": "E", "fields": [{"name": "id", "type": "string"}]}'
    >>> shape_of(Definition(schema), {"id": {}}).read(BytesIO(bytes.fromhex("02 61")))
    {'id': 'a'}
    """
    types: dict[str, Any] = {}
    try:
        parsed: Any = None
        for text in (*(text for _, text in definition.references), definition.text):
            parsed = parse_schema(json.loads(text), named_schemas=types)
        reducer = _Reducer(types)
        schema = parse_schema(reducer.reduce(parsed, want))
    except SchemaError:
        raise
    except Exception as error:  # fastavro raises any Python error for a wrong schema
        raise SchemaError.of(error, AN_AVRO_SCHEMA) from None
    read = fastavro._read_py.schemaless_reader if reducer.recursive else fastavro.schemaless_reader
    name = parsed["name"] if isinstance(parsed, dict) and "name" in parsed else "without a name"
    return Shape(str(name), lambda stream: read(stream, schema, None))


class _Reducer:
    """Builds the shape of one schema; ``types`` are its named types as fastavro parsed them."""

    def __init__(self, types: dict[str, Any]) -> None:
        self.recursive = False
        self._types = types
        self._names: dict[tuple[str, str], str] = {}
        self._unfinished: set[str] = set()
        self._without_bytes: dict[str, bool] = {}

    def reduce(self, node: Any, want: Want | None) -> Any:
        """The shape of a node. ``want`` is None for a node that is skipped."""
        if isinstance(node, list):
            return [self.reduce(branch, want) for branch in node]
        if isinstance(node, str):
            if node in _PRIMITIVES:
                return "bytes" if node == "string" and want is None else node
            return self._named(self._types[node], want)
        kind = node["type"]
        if kind in (*_RECORDS, "enum", "fixed"):
            return self._named(node, want)
        if kind == "array":
            if self._takes_no_bytes(node["items"]):
                raise SchemaError(
                    "it has an array whose items take no bytes: a short value could fill all memory"
                )
            return {"type": "array", "items": self.reduce(node["items"], None if want else want)}
        if kind == "map":
            return {"type": "map", "values": self.reduce(node["values"], None if want is None else {})}
        if want is None or "logicalType" not in node:
            return self.reduce(kind, want)
        return self._logical(node, kind)

    def _logical(self, node: dict[str, Any], kind: Any) -> Any:
        logical = node["logicalType"]
        if (kind, logical) in _NS:
            return {"type": kind, "logicalType": "rf-instant", "rf-ns": _NS[kind, logical]}
        if (kind, logical) == ("bytes", "decimal"):
            return {"type": kind, "logicalType": "rf-decimal", "rf-scale": node.get("scale", 0)}
        if (kind, logical) == ("string", "uuid"):
            return {"type": kind, "logicalType": "rf-uuid"}
        return self.reduce(kind, {})

    def _named(self, node: dict[str, Any], want: Want | None) -> Any:
        if node["type"] == "enum":
            if want is None:
                return "int"
            return {"type": "int", "logicalType": "rf-enum", "rf-symbols": node["symbols"]}
        key = node["name"], json.dumps(want)
        if key in self._names:
            self.recursive |= self._names[key] in self._unfinished
            return self._names[key]
        name = self._names[key] = f"R{len(self._names)}"
        if node["type"] == "fixed":
            return self._fixed(node, name, want)
        self._unfinished.add(name)
        fields = []
        for number, field in enumerate(node["fields"]):
            kept = want is not None and (not want or field["name"] in want)
            inner = want.get(field["name"], {}) if want is not None and kept else None
            # No schema can have this name, so a skipped field can't hide a field that is needed.
            fields.append(
                {"name": field["name"] if kept else f"~{number}", "type": self.reduce(field["type"], inner)}
            )
        self._unfinished.remove(name)
        return {"type": "record", "name": name, "fields": fields}

    def _fixed(self, node: dict[str, Any], name: str, want: Want | None) -> dict[str, Any]:
        size = node["size"]
        if not isinstance(size, int) or size < 0:
            raise SchemaError(f"{node['name']} has the size {size!r}")
        shape = {"type": "fixed", "name": name, "size": size}
        match want, node.get("logicalType"), size:
            case {}, "decimal", _:
                return shape | {"logicalType": "rf-decimal", "rf-scale": node.get("scale", 0)}
            case {}, "uuid", 16:
                return shape | {"logicalType": "rf-uuid"}
        return shape

    def _takes_no_bytes(self, node: Any) -> bool:
        """Whether a value of this type takes no bytes."""
        if isinstance(node, list):
            return False
        if isinstance(node, str):
            return node == "null" if node in _PRIMITIVES else self._takes_no_bytes(self._types[node])
        kind = node["type"]
        if kind in _RECORDS:
            name = node["name"]
            if name not in self._without_bytes:
                # True while the fields are checked: a record that contains itself has no values at all.
                self._without_bytes[name] = True
                self._without_bytes[name] = all(
                    self._takes_no_bytes(field["type"]) for field in node["fields"]
                )
            return self._without_bytes[name]
        if kind == "fixed":
            return bool(node["size"] == 0)
        return kind not in ("array", "map", "enum") and self._takes_no_bytes(kind)


# ---- readers of logical types: fastavro calls them with (value, writer's type, reader's type) -----------


def _read_instant(value: int, node: Any, _: object) -> Instant:
    return Instant(value * node["rf-ns"])


def _read_decimal(value: bytes, node: Any, _: object) -> Decimal:
    if len(value) > _DECIMAL_BYTES:
        raise ValueError(f"a decimal of {len(value)} bytes, but at most {_DECIMAL_BYTES} can be read")
    return Decimal(int.from_bytes(value, signed=True)).scaleb(-node["rf-scale"], _EXACT)


def _read_uuid(value: str | bytes, _node: object, _: object) -> str:
    return value.lower() if isinstance(value, str) else str(UUID(bytes=value))


def _read_enum(value: int, node: Any, _: object) -> str:
    if value < 0:
        raise IndexError
    symbol: str = node["rf-symbols"][value]
    return symbol


LOGICAL_READERS |= {
    "int-rf-instant": _read_instant,
    "long-rf-instant": _read_instant,
    "bytes-rf-decimal": _read_decimal,
    "fixed-rf-decimal": _read_decimal,
    "string-rf-uuid": _read_uuid,
    "fixed-rf-uuid": _read_uuid,
    "int-rf-enum": _read_enum,
}
