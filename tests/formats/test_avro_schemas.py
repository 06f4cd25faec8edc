"""Avro schemas: fingerprints, schemas that are refused, and how large a shape can get."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import pytest

from replayfilter.formats.avro.schemas import fingerprint_of
from replayfilter.formats.avro.shape import Want, shape_of
from replayfilter.formats.definition import Definition, SchemaError
from tests.support.extractions import (
    record_schema,
)


@pytest.mark.parametrize(
    ("text", "crc"),  # from the Avro project's own share/test/data/schema-tests.txt
    [('"null"', 7195948357588979594), ('"boolean"', -6970731678124411036), ('"int"', 8247732601305521295),
     ('{"fields":[{"type":"boolean","name":"f1"}],"type":"record","name":"foo"}', 7843277075252814651)],
)  # fmt: skip
def test_fingerprints_are_those_of_the_avro_project(text: str, crc: int) -> None:
    assert fingerprint_of(text) == crc % 2**64


@pytest.mark.parametrize(
    "items",
    ["null", record_schema(a="null", b={"type": "fixed", "name": "F", "size": 0}), {"type": "null"},
     {"type": "record", "name": "Self", "fields": [{"name": "s", "type": "Self"}]}],
)  # fmt: skip
def test_arrays_of_items_without_bytes_are_refused(items: Any) -> None:
    """Nine bytes are enough to announce 2**62 items."""
    array = {"type": "array", "items": items}
    schema = record_schema(id="int", a=array) | {"name": "Top"}
    with pytest.raises(SchemaError, match="items take no bytes"):
        shape_of(Definition(json.dumps(schema)), {"id": {}})


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "5", "[5]", '{"type": "record"}', '{"type": "fixed", "name": "F"}', '{"type": "array"}',
     '{"type": "record", "name": "R", "fields": 3}', '{"type": "fixed", "name": "F", "size": -2}',
     '{"type": "fixed", "name": "F", "size": "2"}', "[" * 5_000, '{"type": "map", "values": {"x": 1}}'],
)  # fmt: skip
def test_invalid_schemas_raise_schema_errors(text: str) -> None:
    with pytest.raises(SchemaError):
        shape_of(Definition(text), {})


@pytest.mark.parametrize("leaf", ["int", "null"])
def test_a_type_used_many_times_stays_small(leaf: str) -> None:
    """Each type contains the previous one twice: expanded, the schema would have 2**40 fields."""
    fields: list[Any] = []
    for depth in range(40):
        below = f"T{depth - 1}" if depth else leaf
        inner = [{"name": "a", "type": below}, {"name": "b", "type": below}]
        named = {"type": "record", "name": f"T{depth}", "fields": inner}
        fields.append({"name": f"f{depth}", "type": ["null", named]})
    fields.append({"name": "id", "type": "int"})
    schema: dict[str, Any] = {"type": "record", "name": "Top", "fields": fields}
    wants: tuple[Want, ...] = ({"id": {}}, {})
    for want in wants:
        assert shape_of(Definition(json.dumps(schema)), want).read(BytesIO(bytes(40) + b"\x02"))["id"] == 1
    fields.append({"name": "array", "type": {"type": "array", "items": "T39"}})
    if leaf == "null":
        with pytest.raises(SchemaError, match="items take no bytes"):
            shape_of(Definition(json.dumps(schema)), {})
    else:
        assert (
            shape_of(Definition(json.dumps(schema)), {}).read(BytesIO(bytes(40) + b"\x02\0"))["array"] == []
        )
