"""Protobuf: keys and expiry keys of messages, Confluent's prefix, and configs that are refused.

``tests/vectors/order.desc`` is made from ``order.proto``, values with a prefix by Confluent's serializer.
"""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.schema_registry.common.serde import SchemaId
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message_factory import GetMessages

from replayfilter.core.digest import MISSING, digest_key
from replayfilter.errors import ConfigError
from replayfilter.formats import Extraction, KeySpec, ProtobufSpec, RecordColumns, build_extractor
from replayfilter.formats.protobuf.message_type import MessageTypeError, described_type
from tests.support.configs import config_with, errors_of
from tests.support.extractions import digests, reasons
from tests.support.paths import ROOT

FILE = ROOT / "tests" / "vectors" / "order.desc"
DESCRIPTORS = FILE.read_bytes()
MESSAGES: dict[str, Any] = GetMessages(FileDescriptorSet.FromString(DESCRIPTORS).file)
Order = MESSAGES["shop.Order"]
AT_NS = 1_714_564_800_000_000_005


def spec(
    *key: str,
    expiry: str | None = None,
    unit: str = "ms",
    encoding: str = "plain",
    message: str = "shop.Order",
) -> KeySpec:
    descriptors = base64.b64encode(DESCRIPTORS).decode()
    return KeySpec("protobuf", key, expiry, unit, protobuf=ProtobufSpec(encoding, descriptors, message))


def extract(values: list[bytes | None], *key: str, **more: Any) -> Extraction:
    return build_extractor(spec(*key, **more))(RecordColumns(values))


def order(**fields: Any) -> bytes:
    made: bytes = Order(**fields).SerializeToString()
    return made


@pytest.mark.parametrize(
    ("fields", "path", "expected"),
    [
        ({"id": "a"}, "id", "a"),
        ({}, "id", ""),  # proto3 does not tell whether it is set
        ({"ts": 0}, "ts", 0),
        ({}, "ts", MISSING),  # but of optional fields it does
        ({"kind": 1}, "kind", "WEB"),
        ({"kind": 7}, "kind", 7),  # of a newer schema
        ({"raw": b"\xff"}, "raw", b"\xff"),
        ({"amount": 1.5}, "amount", Decimal("1.5")),
        ({"big": 2**64 - 1}, "big", 2**64 - 1),
        ({"user": "u"}, "user", "u"),
        ({"guest": 5}, "user", MISSING),
        ({"first": {"sku": "s"}}, "first.sku", "s"),
        ({}, "first.sku", MISSING),
        ({"first": {"sku": "s"}}, "first", {"sku": "s"}),
        ({"first": {}}, "first", {}),
        ({"lines": [{"sku": "s", "count": 2}, {}]}, "lines", [{"sku": "s", "count": 2}, {}]),
        ({"sizes": {"b": 2, "a": 1}}, "sizes", {"a": 1, "b": 2}),
        ({"at": {"seconds": 1_714_564_800, "nanos": 5}}, "at", AT_NS),
    ],
)
def test_key(fields: dict[str, Any], path: str, expected: object) -> None:
    result = build_extractor(spec(path, "@key"))(RecordColumns([order(**fields)], [b"k"]))
    assert result.errors == []
    assert digests(result) == [digest_key([expected, b"k"])]


def test_expiry_keys() -> None:
    at = {"seconds": 1_714_564_800, "nanos": 999_999_999}
    for unit, expected in (
        ("ms", 1_714_564_800_999),
        ("s", 1_714_564_800),
        ("iso8601", 1_714_564_800_999_999),
    ):
        assert extract([order(at=at)], "id", expiry="at", unit=unit).expiry.tolist() == [expected]
    result = extract([order(ts=7), order(), order(ts=-1)], "id", expiry="ts")
    assert (result.expiry.tolist(), reasons(result)) == ([7, 0, -1], [(1, "expiry_missing")])


# Written by ProtobufSerializer of confluent-kafka 2.16.0 with "use.deprecated.format": False.
WRITTEN = {
    "shop.Order": "000000000102020a016110051a0808c0ddc8b1061005200142017551000000000000f83f",
    "shop.Other": "0000000001000a0161",
    "shop.Order.Line": "00000000010402000a01731003",
}
FIELD = {"shop.Order": ("id", "a"), "shop.Other": ("x", "a"), "shop.Order.Line": ("sku", "s")}


@pytest.mark.parametrize("message", WRITTEN)
def test_values_of_confluents_serializer(message: str) -> None:
    """A topic may have several types; the config names one."""
    values: list[bytes | None] = [bytes.fromhex(text) for text in WRITTEN.values()]
    field, expected = FIELD[message]
    result = extract(values, field, encoding="confluent", message=message)
    row = list(WRITTEN).index(message)
    assert reasons(result) == [(at, "protobuf_prefix") for at in range(3) if at != row]
    assert digests(result)[row] == digest_key([expected])
    assert "expected" in result.errors[0].message


@pytest.mark.parametrize("message", WRITTEN)
def test_values_whose_type_is_in_a_header(message: str) -> None:
    """As Confluent's client writes the header; in one topic with values that have a prefix."""
    values: list[bytes | None] = [bytes.fromhex(text) for text in WRITTEN.values()]
    types = [[1], [0], [1, 0]]
    headers = [
        [("__value_schema_id", SchemaId("PROTOBUF", 1, str(UUID(int=9)), at).guid_to_bytes())] for at in types
    ]
    bare = [value[start:] for value, start in zip(values, (7, 6, 8), strict=True) if value]
    field, expected = FIELD[message]
    extractor = build_extractor(spec(field, encoding="confluent", message=message))
    assert extractor.needs == {"headers"}
    result = extractor(RecordColumns([*values, *bare], headers=[*headers, *headers]))
    row = list(WRITTEN).index(message)
    assert reasons(result) == [(at, "protobuf_prefix") for at in range(6) if at % 3 != row]
    assert digests(result)[row] == digests(result)[row + 3] == digest_key([expected])


@pytest.mark.parametrize("more", [b"", b"\2", b"\3\2", b"\2\2\0", b"\xff" * 9])
def test_a_header_without_a_type_is_an_error(more: bytes) -> None:
    headers = [[("__value_schema_id", b"\1" + bytes(16) + more)]]
    extractor = build_extractor(spec("id", encoding="confluent"))
    result = extractor(RecordColumns([order(id="a")], headers=headers))
    assert reasons(result) == [(0, "protobuf_prefix")]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "empty"),
        (b"", "protobuf_prefix"),
        (b"\0\0\0\0\1", "protobuf_prefix"),
        (b"\1\0\0\0\1\2\2", "protobuf_prefix"),
        (b"\0\0\0\0\1\4\2", "protobuf_prefix"),  # fewer numbers than it says
        (b"\0\0\0\0\1\3\2", "protobuf_prefix"),  # a negative number of them
        (b"\0\0\0\0\1" + b"\xff" * 9, "protobuf_prefix"),
        (b"\0\0\0\0\1\2\2\x0a\5ab", "protobuf"),
        (b"\0\0\0\0\1\2\2\x0a\1\xff", "protobuf"),  # not UTF-8
    ],
)
def test_error(value: bytes | None, reason: str) -> None:
    good = bytes.fromhex(WRITTEN["shop.Order"])
    result = extract([good, value, good], "id", expiry="ts", encoding="confluent")
    assert reasons(result) == [(1, reason)]
    assert result.expiry.tolist() == [5, 0, 5]
    assert result.errors[0].message.isprintable()


def test_no_bytes_are_a_message_without_a_prefix() -> None:
    result = extract([b"", None], "id")
    assert reasons(result) == [(1, "empty")]
    assert digests(result)[0] == digest_key([""])


def test_wrong_descriptors_and_paths_are_refused() -> None:
    for data in (
        b"\xff",
        b"\x0a\x02\xff\xff",
        FileDescriptorSet.FromString(DESCRIPTORS).file[-1].SerializeToString(),
    ):
        with pytest.raises(MessageTypeError):
            described_type(data, "shop.Order")
    alone = FileDescriptorSet(file=FileDescriptorSet.FromString(DESCRIPTORS).file[1:]).SerializeToString()
    with pytest.raises(MessageTypeError, match="--include_imports"):
        described_type(alone, "shop.Order")
    with pytest.raises(
        ConfigError, match=r"have google\.protobuf\.Timestamp, shop\.Order, shop\.Order\.Line"
    ):
        extract([], "id", message="shop.Nothing")
    for path in ("nothing", "id.x", "lines.sku", "first.nothing"):
        with pytest.raises(ConfigError, match=r"protobuf\.message"):
            extract([], path)


def test_a_config_is_checked_against_the_descriptors() -> None:
    source = {"format": "protobuf"}
    message = {"descriptors": str(FILE), "message": "shop.Order"}
    dedup = {"key": ["id", "first.sku"], "expiry_key": "at"}
    config_with(input=source, protobuf=message, dedup=dedup)
    for section, changes, words in (
        ("protobuf", {"descriptors": ""}, "protobuf.registry: missing"),
        ("protobuf", {"descriptors": "", "encoding": "plain"}, "protobuf.descriptors: missing"),
        ("protobuf", {"registry": "http://registry:8081"}, "remove this, or protobuf.registry"),
        ("protobuf", {"message": ""}, "protobuf.message: missing"),
        ("protobuf", {"descriptors": "no-such-file"}, "can't be read"),
        ("protobuf", {"message": "shop.Nothing"}, "there is no message 'shop.Nothing'"),
        ("dedup", {"key": ["id", "event_id"]}, 'dedup.key.1: "event_id" is no field of shop.Order'),
        ("dedup", {"expiry_key": "lines.at"}, 'dedup.expiry_key: "lines" of shop.Order is no message'),
    ):
        sections: dict[str, Any] = {"input": source, "protobuf": message, "dedup": dedup}
        sections[section] = sections[section] | changes
        (error,) = errors_of(**sections)
        assert words in error
