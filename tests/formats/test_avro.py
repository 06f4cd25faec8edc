"""Avro values: paths, and which types make which dedup keys and expiry keys."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from replayfilter.core.digest import MISSING, digest_key
from tests.support.extractions import (
    digests,
    encoded,
    extract_plain,
    logical,
    plain_error,
    record_schema,
)

# ---- keys -------------------------------------------------------------------------------------------------

ENUM = {"type": "enum", "name": "C", "symbols": ["A", "B"]}
INSTANT = datetime(2024, 5, 1, 12, tzinfo=UTC)
FIXED_UUID = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}


@pytest.mark.parametrize(
    ("kind", "value", "key"),
    [
        ("string", "a\u00e4\U0001f600", "a\u00e4\U0001f600"),
        ("bytes", b"\xff\x00", b"\xff\x00"),
        ("int", -5, -5),
        ("long", -(2**63), -(2**63)),
        ("boolean", True, True),
        ("double", 0.1, Decimal("0.1")),
        ("double", 3.0, 3),
        ("float", 0.5, Decimal("0.5")),
        (["null", "string"], "x", "x"),
        (["int", "string"], 3, 3),
        ({"type": "enum", "name": "C", "symbols": ["RED", "BLUE"]}, "BLUE", "BLUE"),
        ({"type": "fixed", "name": "F", "size": 3}, b"abc", b"abc"),
        ({"type": "array", "items": ["null", "long"]}, [1, None], [1, None]),
        ({"type": "map", "values": "string"}, {"b": "2", "a": "1"}, {"a": "1", "b": "2"}),
        ({"type": "record", "name": "N", "fields": [{"name": "p", "type": "int"}]}, {"p": 1}, {"p": 1}),
        (logical("long", "timestamp-millis"), INSTANT, 1_714_564_800 * 10**9),
        (logical("long", "timestamp-micros"), INSTANT, 1_714_564_800 * 10**9),
        (logical("long", "timestamp-nanos"), 1_714_564_800 * 10**9, 1_714_564_800 * 10**9),
        (logical("long", "local-timestamp-millis"), INSTANT.replace(tzinfo=None), 1_714_564_800 * 10**9),
        (logical("long", "local-timestamp-micros"), INSTANT.replace(tzinfo=None), 1_714_564_800 * 10**9),
        (logical("int", "date"), date(1969, 12, 31), -86_400 * 10**9),
        (logical("long", "made-up"), 4, 4),
        (logical("bytes", "decimal", precision=9, scale=2), Decimal("-12.50"), Decimal("-12.5")),
        (logical("bytes", "decimal", precision=9), Decimal(7), 7),
        (logical("fixed", "decimal", precision=9, scale=1, name="F", size=8), Decimal("1.5"), Decimal("1.5")),
        (logical("string", "uuid"), UUID(int=0xABC), str(UUID(int=0xABC))),
        ({"type": "array", "items": logical("long", "timestamp-millis")}, [INSTANT], [1_714_564_800 * 10**9]),
    ],
)  # fmt: skip
def test_key(kind: Any, value: Any, key: object) -> None:
    schema = record_schema(before="string", id=kind, after=["null", "double"])
    result = extract_plain(schema, [encoded(schema, {"before": "x", "id": value, "after": None})])
    assert result.errors == []
    assert digests(result) == [digest_key([key])]


def test_uuids_are_the_same_as_text_and_as_bytes() -> None:
    text, uuid = "F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6", UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")
    as_text = extract_plain(
        record_schema(id=logical("string", "uuid")), [encoded(record_schema(id="string"), {"id": text})]
    )
    as_bytes = extract_plain(record_schema(id=FIXED_UUID), [uuid.bytes])
    assert digests(as_text) == digests(as_bytes) == [digest_key([str(uuid)])]


def test_a_decimal_beyond_its_precision_is_not_rounded() -> None:
    schema = record_schema(id=logical("bytes", "decimal", precision=2, scale=1))
    numbers = [10**40 + 1, 10**40 + 2]
    result = extract_plain(schema, [b"\x28" + number.to_bytes(20) for number in numbers])
    assert digests(result) == [digest_key([Decimal(f"{number}e-1")]) for number in numbers]


def test_an_enormous_decimal_is_an_error() -> None:
    schema = record_schema(id=logical("bytes", "decimal", precision=2, scale=0))
    value = encoded(record_schema(id="bytes"), {"id": b"\x7f" * 2000})
    assert "a decimal of 2000 bytes, but at most 1785" in plain_error(schema, value).message
    assert extract_plain(schema, [encoded(record_schema(id="bytes"), {"id": b"\x7f" * 1785})]).errors == []


# ---- paths ------------------------------------------------------------------------------------------------

CITY = {"type": "record", "name": "City", "fields": [{"name": "code", "type": ["null", "string"]}]}
NESTED = record_schema(
    skipped=["null", {"type": "record", "name": "S", "fields": [{"name": "id", "type": "string"}]}],
    user={"type": "record", "name": "User", "fields": [
        {"name": "note", "type": "string"},
        {"name": "home", "type": ["null", CITY]},
        {"name": "tags", "type": {"type": "map", "values": ["string", "City"]}},
        {"name": "list", "type": {"type": "array", "items": "City"}},
    ]},
)  # fmt: skip
USER = {
    "note": "n",
    "home": {"code": "LHR"},
    "tags": {"a": "1", "c": {"code": "CDG"}},
    "list": [{"code": "ORD"}],
}


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("user.home.code", "LHR"),
        ("user.tags.a", "1"),
        ("user.tags.b", MISSING),
        ("user.tags.c.code", "CDG"),
        ("user.tags.a.code", MISSING),
        ("user.list.code", MISSING),
        ("user.note.x", MISSING),
        ("user.home.street", MISSING),
        ("skipped.id", MISSING),
        ("skipped", None),
        ("nowhere", MISSING),
        ("user.home", {"code": "LHR"}),
        ("user", USER),
    ],
)
def test_path(path: str, key: object) -> None:
    value = encoded(NESTED, {"skipped": None, "user": USER})
    result = extract_plain(NESTED, [value], (path, "user.note"))
    assert result.errors == []
    assert digests(result) == [digest_key([key, "n"])]


def test_a_path_within_another() -> None:
    value = encoded(NESTED, {"skipped": {"id": "s"}, "user": USER})
    result = extract_plain(NESTED, [value], ("user.home.code", "user", "user.home", "skipped.id"))
    assert digests(result) == [digest_key(["LHR", USER, {"code": "LHR"}, "s"])]


def test_null_and_missing_differ() -> None:
    schema = record_schema(id=["null", "string"], x="int")
    value = encoded(schema, {"id": None, "x": 1})
    null, missing = (extract_plain(schema, [value], (name, "x")) for name in ("id", "di"))
    assert digests(null) == [digest_key([None, 1])] != digests(missing) == [digest_key([MISSING, 1])]
    assert plain_error(schema, value).reason == plain_error(schema, value, key=("di",)).reason == "key"


def test_unions_of_records_at_the_top() -> None:
    one = {"type": "record", "name": "One", "fields": [{"name": "id", "type": "string"}]}
    two = {
        "type": "record",
        "name": "Two",
        "fields": [{"name": "n", "type": "int"}, {"name": "id", "type": "long"}],
    }
    schema = [one, two, "string"]
    values = [encoded(schema, v) for v in (("One", {"id": "a"}), ("Two", {"n": 1, "id": 5}), "text")]
    result = extract_plain(schema, values)
    assert digests(result)[:2] == [digest_key(["a"]), digest_key([5])]
    assert [(f.row, f.reason) for f in result.errors] == [(2, "not_object")]


def test_recursive_schemas() -> None:
    schema = record_schema(id="string", next=["null", "E"])
    chain: dict[str, Any] = {"id": "end", "next": None}
    for number in range(100):
        chain = {"id": f"{number}", "next": chain}
    value = encoded(schema, chain)
    result = extract_plain(schema, [value], ("id", "next.next.id"))
    assert digests(result) == [digest_key(["99", "97"])]
    assert extract_plain(schema, [value], ("next",)).errors == []


# ---- expiry keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "raw", "unit", "expiry"),
    [
        ("long", 5, "ms", 5),
        ("int", 5, "ns", 5),
        ("double", 5.0, "s", 5),
        (logical("bytes", "decimal", precision=5, scale=1), b"\x32", "s", 5),
        ("string", "1970-01-01T00:00:01Z", "iso8601", 1_000_000),
        (logical("long", "timestamp-millis"), -1, "s", -1),
        (logical("long", "timestamp-millis"), 1_999, "s", 1),
        (logical("long", "timestamp-millis"), 1_999, "ms", 1_999),
        (logical("long", "timestamp-millis"), 1_999, "us", 1_999_000),
        (logical("long", "timestamp-millis"), 1_999, "ns", 1_999_000_000),
        (logical("long", "timestamp-millis"), 1_999, "iso8601", 1_999_000),
        (logical("long", "timestamp-millis"), 2**63 - 1, "ms", 2**63 - 1),
        (logical("long", "timestamp-micros"), -(2**63), "us", -(2**63)),
        (logical("long", "timestamp-micros"), -1, "ms", -1),
        (logical("long", "local-timestamp-micros"), 2_500, "ms", 2),
        (logical("long", "timestamp-nanos"), 2_500_000, "ms", 2),
        (logical("int", "date"), 2, "s", 172_800),
        (logical("int", "date"), -1, "ms", -86_400_000),
        (logical("int", "time-millis"), 7, "ms", 7),
        (["null", logical("long", "timestamp-millis")], 3_000, "s", 3),
    ],
)
def test_expiry(kind: Any, raw: Any, unit: str, expiry: int) -> None:
    base = kind[1] if isinstance(kind, list) else kind
    base = base["type"] if isinstance(base, dict) else base
    plain = ["null", base] if isinstance(kind, list) else base
    values = [encoded(record_schema(id="int", t=plain), {"id": i, "t": raw}) for i in range(2)]
    schema = record_schema(id="int", t=kind)
    assert extract_plain(schema, values, expiry="t", unit=unit).expiry.tolist() == [expiry] * 2
    with_error = extract_plain(schema, [values[0], b"", values[1]], expiry="t", unit=unit)
    assert with_error.expiry.tolist() == [expiry, 0, expiry]


@pytest.mark.parametrize(
    ("kind", "value", "unit", "reason", "words"),
    [
        (["null", "long"], None, "ms", "expiry_missing", "null"),
        (logical("long", "timestamp-millis"), 2**62, "us", "expiry_range", "does not fit int64"),
        (logical("long", "timestamp-millis"), 2**62, "iso8601", "expiry_range", "does not fit int64"),
        (logical("long", "timestamp-millis"), 5, "integer", "expiry_type", "found a timestamp"),
        ("double", 0.5, "ms", "expiry_type", "fraction 0.5"),
        ("double", float("nan"), "ms", "expiry_type", "number NaN"),
        ("double", float("-inf"), "ms", "expiry_type", "number -Infinity"),
        ("double", 1e300, "ms", "expiry_range", "does not fit int64"),
        ("bytes", b"5", "ms", "expiry_type", "bytes b'5'"),
        ("string", "5", "ms", "expiry_type", "text '5'"),
        ("boolean", True, "ms", "expiry_type", "true"),
        ("long", 5, "iso8601", "expiry_type", "number 5"),
        ({"type": "array", "items": "int"}, [1], "ms", "expiry_type", "an array"),
        ({"type": "map", "values": "int"}, {"a": 1}, "ms", "expiry_type", "an object"),
    ],
)
def test_expiry_errors(kind: Any, value: Any, unit: str, reason: str, words: str) -> None:
    base = kind["type"] if isinstance(kind, dict) and "logicalType" in kind else kind
    data = encoded(record_schema(id="int", t=base), {"id": 1, "t": value})
    found = plain_error(record_schema(id="int", t=kind), data, expiry="t", unit=unit)
    assert found.reason == reason
    assert words in found.message


def test_one_field_as_key_and_expiry_key() -> None:
    schema = record_schema(t=logical("long", "timestamp-micros"))
    values = [encoded(record_schema(t="long"), {"t": t}) for t in (1_500, 1_501, 1_500)]
    result = extract_plain(schema, values, key=("t",), expiry="t", unit="ms")
    assert result.expiry.tolist() == [1, 1, 1]
    assert digests(result)[0] == digests(result)[2] != digests(result)[1]
