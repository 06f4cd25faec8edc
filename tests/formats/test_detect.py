"""What a sample of records is taken for, and which fields it is said to have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from replayfilter.core.digest import MISSING
from replayfilter.core.stamp import Stamp
from replayfilter.formats.detect import Detected, columns_of, detect_format, stamp_location
from replayfilter.formats.expiry_keys import Instant
from replayfilter.formats.spec import AvroSpec, ProtobufSpec, RecordColumns, RegistryAddress
from tests.support.paths import ROOT
from tests.support.registry_server import FAST_RETRIES, RegistryServer, guid_of

Headers = list[tuple[str, bytes | None]]


def sample(
    values: Sequence[bytes | None], keys: Sequence[bytes | None] = (), headers: Sequence[Headers | None] = ()
) -> RecordColumns:
    n = len(values)
    return RecordColumns(values, keys or [None] * n, [1] * n, headers or [None] * n)


def as_json(*documents: object) -> list[bytes | None]:
    return [json.dumps(each).encode() for each in documents]


def test_json_with_nested_fields_and_a_few_broken_records() -> None:
    order = {"id": 1, "user": {"name": "a", "at": {"x": 1, "deep": {"y": 1}}}, "tags": [1], "a.b": 2, "@c": 3}
    batch = sample([*as_json(*[order] * 19, {"id": 2, "late": None}), b"oops", None])
    detected = detect_format(batch)
    assert (detected.format, detected.note) == ("json", "")
    assert detected.fields == ["id", "user.name", "user.at.x", r"a\.b", r"\@c", "late"]
    rows, columns = columns_of(detected, batch)
    assert list(columns) == [*detected.fields, "@key"]
    assert rows == list(range(20)), "the others can't be read"
    assert columns["id"] == [*[1] * 19, 2]
    assert columns["late"][18:] == [MISSING, None]
    assert columns[r"a\.b"][0] == 2


def test_json_with_the_prefix_of_a_registry() -> None:
    values = [b"\0\0\0\0\7" + (value or b"") for value in as_json(*[{"id": 1}] * 3)]
    assert detect_format(sample(values))[:2] == ("json", ["id"])


def test_names_that_a_config_cannot_have_are_left_out() -> None:
    batch = sample(as_json({'a"b': 1, "": 2, "c\\d": 3, "e\n": 4, "ok": 5}))
    assert detect_format(batch).fields == ["ok"]


def test_headers_that_most_records_have() -> None:
    headers: list[Headers | None] = [
        [("message-id", b"1"), ("traceparent", b"x"), ("rf-stamp", b"x"), ("B3", b"x")] for _ in range(10)
    ]
    headers[3] = [("message-id", b"1"), ("other", None)]
    detected = detect_format(sample([b"\x80"] * 10, headers=headers))
    assert detected[:2] == ("raw", ["@header:message-id"])


@pytest.mark.parametrize("structured", [True, False])
def test_cloud_events(structured: bool) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "time": "2024-05-01T00:00:00Z"}
    if structured:
        content: Headers = [("content-type", b"Application/CloudEvents+json; charset=utf-8")]
        batch = sample(as_json(event | {"data": {"x": 1}}), headers=[content])
    else:
        batch = sample([b"\x80"], headers=[[(f"ce_{name}", text.encode()) for name, text in event.items()]])
    detected = detect_format(batch)
    assert detected.format == "cloudevents"
    assert set(detected.fields) == event.keys()
    assert columns_of(detected, batch)[1]["time"] == ["2024-05-01T00:00:00Z"]


@pytest.mark.parametrize("with_schema", [True, False])
def test_change_events_of_debezium(with_schema: bool) -> None:
    event = {"source": {"connector": "mysql", "pos": 5}, "op": "c", "before": None, "after": {"id": 7}}
    batch = sample(as_json({"schema": {"x": 1}, "payload": event} if with_schema else event))
    detected = detect_format(batch)
    assert detected.format == "debezium"
    assert set(detected.fields) == {"source.connector", "source.pos", "op", "before", "after.id"}
    assert columns_of(detected, batch)[1]["after.id"] == [7]


ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "items", "type": {"type": "array", "items": "string"}},
        {
            "name": "shop",
            "type": {"type": "record", "name": "Shop", "fields": [{"name": "no", "type": "int"}]},
        },
    ],
}


def avro(id_: int, record: dict[str, Any]) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(ORDER), record)
    return b"\0" + id_.to_bytes(4, "big") + stream.getvalue()


def test_avro_by_its_registry() -> None:
    batch = sample([avro(5, {"id": str(n), "at": n, "items": [], "shop": {"no": n}}) for n in range(3)])
    with RegistryServer() as registry:
        registry.add(5, ORDER)
        address = RegistryAddress(registry.url, tuple(FAST_RETRIES.items()))
        detected = detect_format(batch, address)
        assert detected == Detected("avro", ["id", "at", "shop.no"], AvroSpec("confluent", *address))
        _, columns = columns_of(detected, batch)
        assert columns["shop.no"] == [0, 1, 2]
        assert columns["at"] == [Instant(n * 10**6) for n in range(3)]
        some = sample([*[*batch.values] * 3, avro(6, {"id": "1", "at": 1, "items": [], "shop": {"no": 1}})])
        detected = detect_format(some, address)
        assert detected.schemas == AvroSpec("confluent", *address, unknown=(6,))
        rows, columns = columns_of(detected, some)
        assert (rows, columns["id"]) == (list(range(9)), ["0", "1", "2"] * 3)
        unknown = sample([avro(6, {"id": "1", "at": 1, "items": [], "shop": {"no": 1}})])
        note = "records have ids of schemas: the registry doesn't know 6"
        assert detect_format(unknown, address) == Detected("raw", [], note=note)
    found = detect_format(batch)
    assert found.format == "raw"
    assert "give --registry" in found.note


def in_header(record: bytes, more: bytes = b"") -> Headers:
    """The header for a record with a prefix, whose id it has as a GUID."""
    return [("__value_schema_id", b"\1" + guid_of(int.from_bytes(record[1:5])).bytes + more)]


def test_avro_whose_schema_is_in_a_header() -> None:
    values = [avro(5, {"id": str(n), "at": n, "items": [], "shop": {"no": n}}) for n in range(3)]
    batch = sample([value[5:] for value in values], headers=list(map(in_header, values)))
    found = detect_format(batch)
    note = f"records have ids of schemas ({guid_of(5)}): to read their fields, give --registry"
    assert found == Detected("raw", [], note=note)
    with RegistryServer() as registry:
        registry.add(5, ORDER)
        detected = detect_format(batch, RegistryAddress(registry.url, tuple(FAST_RETRIES.items())))
    assert detected[:2] == ("avro", ["id", "at", "shop.no"])


@pytest.mark.parametrize("with_prefix", [True, False])
def test_protobuf_by_its_registry(with_prefix: bool) -> None:
    """The fields of all types of the file; what a record's own type doesn't have is missing."""
    files = FileDescriptorSet.FromString((ROOT / "tests" / "vectors" / "order.desc").read_bytes())
    values = [b"\0\0\0\0\5\2\2\x0a\1" + str(n).encode() for n in range(3)]
    values.append(b"\0\0\0\0\5\2\0\x0a\1x")
    batch = sample(values)
    if not with_prefix:
        headers = [in_header(value, value[5:7]) for value in values]
        batch = sample([value[7:] for value in values], headers=headers)
    with RegistryServer() as registry:
        registry.add_protobuf(5, files.file[-1])
        address = RegistryAddress(registry.url, tuple(FAST_RETRIES.items()))
        detected = detect_format(batch, address)
        fields = ["x", "id", "ts", "at", "kind", "raw", "user", "guest", "amount", "first.sku", "first.count"]
        assert detected == Detected("protobuf", [*fields, "big"], ProtobufSpec("confluent", "", "", *address))
        rows, columns = columns_of(detected, batch)
    assert rows == [0, 1, 2, 3]
    assert columns["id"] == ["0", "1", "2", MISSING]
    assert columns["x"] == [MISSING, MISSING, MISSING, "x"]


def test_a_registry_with_schemas_of_another_type() -> None:
    with RegistryServer() as registry:
        registry.add(5, {"x": 1}, schemaType="JSON")
        address = RegistryAddress(registry.url, tuple(FAST_RETRIES.items()))
        detected = detect_format(sample([b"\0\0\0\0\5\0\1\2"] * 3), address)
    assert detected.format == "raw"
    assert detected.note == "records have ids of schemas: they are of the type JSON"


def test_other_bytes_are_raw() -> None:
    assert detect_format(sample([b"\xc3\x01" + bytes(12)] * 3))[0] == "raw"
    assert "single-object" in detect_format(sample([b"\xc3\x01" + bytes(12)] * 3)).note
    assert detect_format(sample([b"plain text", b"5", b"[1]"])) == Detected("raw", [])
    assert detect_format(sample([None, b""])) == Detected("raw", [])
    assert detect_format(sample([])) == Detected("raw", [])


def test_where_the_stamps_are() -> None:
    stamps = [Stamp(7, 1, offset).to_bytes() for offset in range(10)]
    assert stamp_location(sample([b"x"] * 10, stamps)) == "key"
    assert stamp_location(sample([b"x"] * 10, [*stamps[:5], *[None] * 5])) == "key"
    assert stamp_location(sample([b"x"] * 10, [*stamps[:4], *[b"user"] * 6])) == "none"
    assert stamp_location(sample([b"x"] * 10, headers=[[("rf-stamp", each)] for each in stamps])) == "header"
    assert stamp_location(sample([b"x"] * 10, [bytes([255 - n]) * 20 for n in range(10)])) == "none"
    assert stamp_location(sample([])) == "none"
