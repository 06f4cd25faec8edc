"""Protobuf by a registry on a real socket: what Confluent's serializer registers and writes can be read."""

from __future__ import annotations

import base64
import importlib
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message_factory import GetMessages

from replayfilter.core.digest import MISSING, digest_key
from replayfilter.errors import ConfigError, MissingDependency, RegistryError, UnknownSchemas
from replayfilter.formats import (
    Extraction,
    Extractor,
    KeySpec,
    ProtobufSpec,
    RecordColumns,
    build_extractor,
)
from replayfilter.formats import (
    registry as registry_module,
)
from tests.support.configs import errors_of
from tests.support.example_plan import settings_with
from tests.support.extractions import digests, reasons
from tests.support.paths import ROOT
from tests.support.registry_server import FAST_RETRIES, RegistryServer, guid_of

Headers = list[tuple[str, bytes | None]]

DESCRIPTORS = FileDescriptorSet.FromString((ROOT / "tests" / "vectors" / "order.desc").read_bytes())
FIELD = FieldDescriptorProto
TEXT, MESSAGE = FIELD.TYPE_STRING, FIELD.TYPE_MESSAGE
AT_NS = 1_714_564_800_000_000_005
AT = {"seconds": 1_714_564_800, "nanos": 5}


def shipments() -> FileDescriptorProto:
    """A file that imports the orders, and types of Protobuf, Google and Confluent."""
    file = FileDescriptorProto(name="shop/shipment.proto", package="shop", syntax="proto3")
    file.dependency.extend(
        ["order.proto", "google/protobuf/timestamp.proto", "google/type/date.proto", "confluent/meta.proto"]
    )
    file.message_type.add(name="Empty")
    shipment = file.message_type.add(name="Shipment")
    types = {"order": "shop.Order", "at": "google.protobuf.Timestamp", "day": "google.type.Date", "id": ""}
    for number, (name, type_) in enumerate(types.items(), 1):
        kind = {"type": MESSAGE, "type_name": f".{type_}"} if type_ else {"type": TEXT}
        shipment.field.add(name=name, number=number, label=FIELD.LABEL_OPTIONAL, **kind)
    stop = shipment.nested_type.add(name="Stop")
    stop.field.add(name="id", number=1, label=FIELD.LABEL_OPTIONAL, type=TEXT)
    return file


def with_known(*files: FileDescriptorProto) -> list[FileDescriptorProto]:
    """The files, after the ones that they import and that no registry has."""
    from confluent_kafka.schema_registry.confluent import meta_pb2
    from google.protobuf import descriptor_pb2

    date_pb2: Any = importlib.import_module("google.type.date_pb2")
    known = [module.DESCRIPTOR.serialized_pb for module in (descriptor_pb2, date_pb2, meta_pb2)]
    return [*map(FileDescriptorProto.FromString, known), *DESCRIPTORS.file, *files]


MESSAGES: dict[str, Any] = GetMessages(with_known(shipments()))
MESSAGES |= {"shop.Order.Line": MESSAGES["shop.Order"].Line}
MESSAGES |= {"shop.Shipment.Stop": MESSAGES["shop.Shipment"].Stop}
ORDER = DESCRIPTORS.file[-1]


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        yield running


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "RETRY_SECONDS", 0.0)


class Producer:
    """Writes messages with Confluent's serializer, which registers their schemas."""

    def __init__(self, server: RegistryServer, in_header: bool = False) -> None:
        self._client = SchemaRegistryClient({"url": server.url})
        self._conf: dict[str, Any] = {
            "use.deprecated.format": False,
            "subject.name.strategy.type": "TOPIC",
            "schema.id.serializer": header_schema_id_serializer if in_header else prefix_schema_id_serializer,
        }
        self._serializers: dict[str, ProtobufSerializer] = {}

    def write(self, name: str, **fields: Any) -> tuple[bytes | None, Headers]:
        """The value and the headers of a record in the topic "t"."""
        type_ = MESSAGES[name]
        if name not in self._serializers:
            self._serializers[name] = ProtobufSerializer(type_, self._client, self._conf)
        headers: Headers = []
        context = SerializationContext("t", MessageField.VALUE, headers)  # type: ignore[arg-type]
        return self._serializers[name](type_(**fields), context), headers


def extractor(
    server: RegistryServer | str, *key: str, message: str = "", unknown: tuple[int, ...] = (), **more: Any
) -> Extractor:
    url = server if isinstance(server, str) else server.url
    options = tuple((FAST_RETRIES | {"max.retries": "1"}).items())
    spec = ProtobufSpec("confluent", message=message, registry=url, options=options, unknown=unknown)
    return build_extractor(
        KeySpec("protobuf", key or ("id",), more.get("expiry"), more.get("unit", "ms"), protobuf=spec)
    )


def extract(
    extractor: Extractor, *records: tuple[bytes | None, Headers] | bytes, **columns: Any
) -> Extraction:
    pairs = [record if isinstance(record, tuple) else (record, []) for record in records]
    return extractor(RecordColumns([value for value, _ in pairs], headers=[headers for _, headers in pairs]))


@pytest.mark.parametrize("in_header", [False, True])
def test_values_of_confluents_serializer(server: RegistryServer, in_header: bool) -> None:
    """The second message of a file, messages within others, imports of registered files and of known ones."""
    producer = Producer(server, in_header)
    records = [
        producer.write("shop.Order", id="a", at=AT),
        producer.write("shop.Other", x="x"),
        producer.write("shop.Order.Line", sku="s"),
        producer.write("shop.Shipment", id="b", at=AT, order={"id": "a", "first": {"sku": "s"}}),
        producer.write("shop.Shipment.Stop", id="c"),
        producer.write("shop.Empty"),
        producer.write("shop.Order", id="a"),
    ]
    values = [value for value, _ in records if value is not None]
    assert all(value[:1] == b"\0" for value in values) != in_header
    server.requests.clear()
    extract_ids = extractor(server)
    for _ in range(2):
        result = extract(extract_ids, *records)
        assert reasons(result) == [(1, "key"), (2, "key"), (5, "key")], "they have no field of that name"
        assert [digests(result)[row] for row in (0, 3, 4, 6)] == [digest_key([each]) for each in "abca"]
    assert len(server.requests) == len(set(server.requests)), "each schema is requested once"
    assert all("format=serialized" in path for path in server.requests)
    assert any(path.startswith("/subjects/order.proto/versions/1?") for path in server.requests)


def test_fields_within_messages_and_points_in_time(server: RegistryServer) -> None:
    producer = Producer(server)
    full = producer.write(
        "shop.Shipment", at=AT, day={"year": 2024}, order={"id": "a", "first": {"sku": "s"}, "kind": 1}
    )
    bare = producer.write("shop.Shipment", at=AT)
    key = ("order.first.sku", "order.kind", "day", "at", "id.no", "order.sizes.no")
    result = extract(extractor(server, *key, expiry="at", unit="ms"), full, bare)
    assert reasons(result) == []
    assert result.expiry.tolist() == [AT_NS // 10**6] * 2
    expected = [
        ["s", "WEB", {"year": 2024}, AT_NS, MISSING, MISSING],
        [MISSING, MISSING, MISSING, AT_NS, MISSING, MISSING],
    ]
    assert digests(result) == list(map(digest_key, expected))


def test_only_one_message_of_a_topic(server: RegistryServer) -> None:
    producer = Producer(server)
    records = [producer.write("shop.Order", id="a"), producer.write("shop.Other", x="x")]
    shipment = producer.write("shop.Shipment", id="b")
    result = extract(extractor(server, message="shop.Order"), *records, shipment)
    assert reasons(result) == [(1, "protobuf_prefix"), (2, "protobuf_prefix")]
    assert "has type [0] of its schema, counted from 0, expected [1], which is shop.Order" in (
        result.errors[0].message
    )
    assert "expected shop.Order, which the schema doesn't have" in result.errors[1].message


def test_a_type_that_the_schema_does_not_have(server: RegistryServer) -> None:
    server.add_protobuf(1, ORDER)
    result = extract(extractor(server), b"\0\0\0\0\1\2\x0c", b"\0\0\0\0\1\2\2\x0a\5ab")
    assert reasons(result) == [(0, "protobuf_prefix"), (1, "protobuf")]
    assert "[0], which is shop.Other or [1], which is shop.Order" in result.errors[0].message


def test_two_versions_of_a_schema(server: RegistryServer) -> None:
    """The message is found by its name in each."""
    moved = FileDescriptorProto.FromString(ORDER.SerializeToString())
    first = moved.message_type.pop(0)
    moved.message_type.append(first)
    server.add_protobuf(1, ORDER)
    server.add_protobuf(2, moved)
    value = MESSAGES["shop.Order"](id="a").SerializeToString()
    result = extract(
        extractor(server, message="shop.Order"), b"\0\0\0\0\1\2\2" + value, b"\0\0\0\0\2\0" + value
    )
    assert reasons(result) == []
    assert digests(result) == [digest_key(["a"])] * 2


# ---- what the registry doesn't have --------------------------------------------------------------------


def test_an_unknown_id_has_to_be_recorded_first(server: RegistryServer) -> None:
    server.add_protobuf(1, ORDER)
    known = b"\0\0\0\0\1\2\2" + MESSAGES["shop.Order"](id="a").SerializeToString()
    in_header: tuple[bytes, Headers] = (
        known[7:],
        [("__value_schema_id", b"\1" + guid_of(9).bytes + b"\2\2")],
    )
    records = (known, b"\0\0\0\0\7\0", b"\0\xff\xff\xff\xff\0", in_header)
    with pytest.raises(UnknownSchemas) as found:
        extract(extractor(server), *records)
    assert found.value.ids == {7, guid_of(9).int}
    server.add_protobuf(7, ORDER)
    result = extract(extractor(server, unknown=tuple(found.value.ids)), *records)
    assert reasons(result) == [(row, "protobuf_schema") for row in (1, 2, 3)]
    assert "no schema with the id 7" in result.errors[0].message
    assert str(guid_of(9)) in result.errors[2].message


@pytest.mark.parametrize("type_", ["AVRO", "JSON"])
def test_a_schema_of_another_type(server: RegistryServer, type_: str) -> None:
    server.add(1, "string", schemaType=type_)
    (error,) = extract(extractor(server), b"\0\0\0\0\1\0").errors
    assert (error.reason, error.message) == (
        "protobuf_schema",
        f"value: can't be read by its schema: schema 1 is of the type {type_}, not PROTOBUF",
    )


def without_import() -> FileDescriptorProto:
    file = FileDescriptorProto(name="a.proto", dependency=["elsewhere.proto"])
    file.message_type.add(name="A")
    return file


def with_a_method() -> FileDescriptorProto:
    file = FileDescriptorProto(name="a.proto")
    message = file.message_type.add(name="A").nested_type.add(name="B")
    message.field.add(name="HasField", number=1, type=TEXT, label=FIELD.LABEL_OPTIONAL)
    return file


def with_an_unknown_known_file() -> FileDescriptorProto:
    return FileDescriptorProto(name="a.proto", dependency=["google/type/nothing.proto"])


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (without_import(), "elsewhere.proto"),
        (with_a_method(), "'B' has a field HasField"),
        (with_an_unknown_known_file(), "it imports google/type/nothing.proto"),
        (b"\xff\xff", "not a Protobuf schema"),
    ],
)
def test_schemas_that_cannot_be_used(
    server: RegistryServer, schema: FileDescriptorProto | bytes, words: str
) -> None:
    data = schema if isinstance(schema, bytes) else schema.SerializeToString()
    server.add_text(1, base64.b64encode(data).decode(), schemaType="PROTOBUF")
    (error,) = extract(extractor(server), b"\0\0\0\0\1\0").errors
    assert error.reason == "protobuf_schema"
    assert words in error.message


def test_a_timestamp_that_a_schema_defines_itself(server: RegistryServer) -> None:
    file = FileDescriptorProto(name="a.proto", package="google.protobuf")
    file.message_type.add(name="Timestamp")
    message = file.message_type.add(name="A")
    message.field.add(
        name="at", number=1, type=MESSAGE, type_name=".google.protobuf.Timestamp", label=FIELD.LABEL_OPTIONAL
    )
    server.add_protobuf(1, file)
    result = extract(extractor(server, "at", expiry="at"), b"\0\0\0\0\1\2\2\x0a\0")
    assert reasons(result) == [(0, "expiry_type")]


def test_a_registry_that_is_down_stops_the_task() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(RegistryError, match=r"protobuf\.registry = .*no answer.*nothing is lost"):
            extract(extractor(url), b"\0\0\0\0\1\0")


def test_a_registry_that_refuses_stops_the_task(server: RegistryServer) -> None:
    server.users = {"me": "hunter2"}
    with pytest.raises(RegistryError, match=r"credentials in protobuf\.options"):
        extract(extractor(server), b"\0\0\0\0\1\0")


def test_a_registry_that_gives_only_text_stops_the_task(server: RegistryServer) -> None:
    """Otherwise all its records would be errors."""
    server.add_text(1, 'syntax = "proto3"; message A {}', schemaType="PROTOBUF")
    with pytest.raises(RegistryError, match=r"as text.*protobuf\.descriptors"):
        extract(extractor(server), b"\0\0\0\0\1\0")


# ---- the config ----------------------------------------------------------------------------------------


def test_a_config_with_a_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RF_TEST_PASSWORD", "hunter2")
    protobuf = {"registry": "https://r", "options": {"basic.auth.user.info": "me:${RF_TEST_PASSWORD}"}}
    settings = settings_with(input={"format": "protobuf"}, protobuf=protobuf)
    options = (("basic.auth.user.info", "me:hunter2"),)
    spec = ProtobufSpec("confluent", registry="https://r", options=options)
    assert settings.keys == KeySpec("protobuf", ("event_id",), "ts", "ms", protobuf=spec)
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "protobuf.registry: missing"),
        ({"registry": "r:8081"}, "not a registry URL"),
        ({"registry": "http://r", "options": {"no.such": "1"}}, "protobuf.registry, protobuf.options"),
        ({"registry": "http://r", "options": {"timeout": "soon"}}, "protobuf.options.timeout = 'soon'"),
        ({"registry": "http://r", "options": {"timeout": "${RF_UNSET}"}}, "RF_UNSET"),
    ],
)
def test_one_error_one_sentence(changes: dict[str, Any], words: str) -> None:
    (error,) = errors_of(input={"format": "protobuf"}, protobuf=changes)
    assert words in error


def test_a_spec_without_types() -> None:
    with pytest.raises(ConfigError, match=r"set protobuf\.registry"):
        build_extractor(KeySpec("protobuf", ("id",), None, "ms"))


def test_without_googles_types_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("google.type")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google.type", None)
    with pytest.raises(MissingDependency, match=r"needs google\.type.*replayfilter\[protobuf\]"):
        extractor("http://r")
    (error,) = errors_of(input={"format": "protobuf"}, protobuf={"registry": "http://r"})
    assert error.startswith('input.format = "protobuf": needs google.type')
