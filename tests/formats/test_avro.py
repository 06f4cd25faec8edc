"""Fields of Avro values: paths, types as keys and expiry keys, and values that can't be read."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import textwrap
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro
import pytest

from replayfilter.core.digest import MISSING, digest_key
from replayfilter.formats import AvroSpec, Extraction, Fault, KeySpec, RecordColumns, build_extractor
from replayfilter.formats.avro.schemas import fingerprint_of
from replayfilter.formats.avro.shape import SchemaError, shape_of


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "E", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def encoded(schema: Any, value: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def extracted(
    schema: Any,
    values: list[bytes | None],
    key: tuple[str, ...] = ("id",),
    expiry: str | None = None,
    unit: str = "ms",
) -> Extraction:
    spec = AvroSpec("plain", schemas=(json.dumps(schema),))
    return build_extractor(KeySpec("avro", key, expiry, unit, spec))(RecordColumns(values))


def digests(answer: Extraction) -> list[bytes]:
    return [struct.pack(">QQ", *pair) for pair in answer.digests.tolist()]


def fault(schema: Any, value: bytes | None, **more: Any) -> Fault:
    (found,) = extracted(schema, [value], **more).faults
    return found


# ---- keys -------------------------------------------------------------------------------------------------

ENUM = {"type": "enum", "name": "C", "symbols": ["A", "B"]}
INSTANT = datetime(2024, 5, 1, 12, tzinfo=UTC)
FIXED_UUID = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}


def logical(kind: str, logical_name: str, /, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_name, **more}


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
    schema = record(before="string", id=kind, after=["null", "double"])
    answer = extracted(schema, [encoded(schema, {"before": "x", "id": value, "after": None})])
    assert answer.faults == []
    assert digests(answer) == [digest_key([key])]


def test_uuids_are_the_same_as_text_and_as_bytes() -> None:
    text, uuid = "F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6", UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")
    as_text = extracted(record(id=logical("string", "uuid")), [encoded(record(id="string"), {"id": text})])
    as_bytes = extracted(record(id=FIXED_UUID), [uuid.bytes])
    assert digests(as_text) == digests(as_bytes) == [digest_key([str(uuid)])]


def test_a_decimal_beyond_its_precision_is_not_rounded() -> None:
    schema = record(id=logical("bytes", "decimal", precision=2, scale=1))
    numbers = [10**40 + 1, 10**40 + 2]
    answer = extracted(schema, [b"\x28" + number.to_bytes(20) for number in numbers])
    assert digests(answer) == [digest_key([Decimal(f"{number}e-1")]) for number in numbers]


def test_an_enormous_decimal_is_a_fault() -> None:
    schema = record(id=logical("bytes", "decimal", precision=2, scale=0))
    value = encoded(record(id="bytes"), {"id": b"\x7f" * 2000})
    assert "a decimal of 2000 bytes, at most 1785" in fault(schema, value).message
    assert extracted(schema, [encoded(record(id="bytes"), {"id": b"\x7f" * 1785})]).faults == []


# ---- paths ------------------------------------------------------------------------------------------------

CITY = {"type": "record", "name": "City", "fields": [{"name": "code", "type": ["null", "string"]}]}
NESTED = record(
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
    answer = extracted(NESTED, [value], (path, "user.note"))
    assert answer.faults == []
    assert digests(answer) == [digest_key([key, "n"])]


def test_a_path_within_another() -> None:
    value = encoded(NESTED, {"skipped": {"id": "s"}, "user": USER})
    answer = extracted(NESTED, [value], ("user.home.code", "user", "user.home", "skipped.id"))
    assert digests(answer) == [digest_key(["LHR", USER, {"code": "LHR"}, "s"])]


def test_null_and_missing_differ() -> None:
    schema = record(id=["null", "string"], x="int")
    value = encoded(schema, {"id": None, "x": 1})
    null, missing = (extracted(schema, [value], (name, "x")) for name in ("id", "di"))
    assert digests(null) == [digest_key([None, 1])] != digests(missing) == [digest_key([MISSING, 1])]
    assert fault(schema, value).reason == fault(schema, value, key=("di",)).reason == "key"


def test_unions_of_records_at_the_top() -> None:
    one = {"type": "record", "name": "One", "fields": [{"name": "id", "type": "string"}]}
    two = {
        "type": "record",
        "name": "Two",
        "fields": [{"name": "n", "type": "int"}, {"name": "id", "type": "long"}],
    }
    schema = [one, two, "string"]
    values = [encoded(schema, v) for v in (("One", {"id": "a"}), ("Two", {"n": 1, "id": 5}), "text")]
    answer = extracted(schema, values)
    assert digests(answer)[:2] == [digest_key(["a"]), digest_key([5])]
    assert [(f.row, f.reason) for f in answer.faults] == [(2, "not_object")]


def test_recursive_schemas() -> None:
    schema = record(id="string", next=["null", "E"])
    chain: dict[str, Any] = {"id": "end", "next": None}
    for number in range(100):
        chain = {"id": f"{number}", "next": chain}
    value = encoded(schema, chain)
    answer = extracted(schema, [value], ("id", "next.next.id"))
    assert digests(answer) == [digest_key(["99", "97"])]
    assert extracted(schema, [value], ("next",)).faults == []


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
    values = [encoded(record(id="int", t=plain), {"id": i, "t": raw}) for i in range(2)]
    schema = record(id="int", t=kind)
    assert extracted(schema, values, expiry="t", unit=unit).expiry.tolist() == [expiry] * 2
    mixed = extracted(schema, [values[0], b"", values[1]], expiry="t", unit=unit)  # a fault beside them
    assert mixed.expiry.tolist() == [expiry, 0, expiry]


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
def test_expiry_faults(kind: Any, value: Any, unit: str, reason: str, words: str) -> None:
    base = kind["type"] if isinstance(kind, dict) and "logicalType" in kind else kind
    data = encoded(record(id="int", t=base), {"id": 1, "t": value})
    found = fault(record(id="int", t=kind), data, expiry="t", unit=unit)
    assert found.reason == reason
    assert words in found.message


def test_one_field_as_key_and_expiry_key() -> None:
    schema = record(t=logical("long", "timestamp-micros"))
    values = [encoded(record(t="long"), {"t": t}) for t in (1_500, 1_501, 1_500)]
    answer = extracted(schema, values, key=("t",), expiry="t", unit="ms")
    assert answer.expiry.tolist() == [1, 1, 1]
    assert digests(answer)[0] == digests(answer)[2] != digests(answer)[1]


# ---- what stands before a value ---------------------------------------------------------------------------


def test_single_object_encoding() -> None:
    first, second = record(id="string"), record(n="int", id="string")
    spec = AvroSpec("single-object", schemas=(json.dumps(first), json.dumps(second)))
    extract = build_extractor(KeySpec("avro", ("id",), None, "ms", spec))
    head = {
        n: b"\xc3\x01" + fingerprint_of(json.dumps(s)).to_bytes(8, "little")
        for n, s in ((1, first), (2, second))
    }
    other = b"\xc3\x01" + bytes(range(8))
    values = [
        head[1] + encoded(first, {"id": "a"}),
        head[2] + encoded(second, {"n": 1, "id": "a"}),
        other + encoded(first, {"id": "a"}),
        encoded(first, {"id": "abcdefghijkl"}),
        head[1][:9],
        b"\xc3\x02" + head[1][2:] + encoded(first, {"id": "a"}),
    ]
    answer = extract(RecordColumns(values))
    assert digests(answer)[0] == digests(answer)[1] == digest_key(["a"])
    reasons = [(2, "avro_schema"), (3, "avro_prefix"), (4, "avro_prefix"), (5, "avro_prefix")]
    assert [(f.row, f.reason) for f in answer.faults] == reasons
    assert "fingerprint 0706050403020100" in answer.faults[0].message
    assert "expected c3 01 and a fingerprint of 8 bytes" in answer.faults[1].message


@pytest.mark.parametrize(
    ("text", "crc"),  # from the Avro project's own share/test/data/schema-tests.txt
    [('"null"', 7195948357588979594), ('"boolean"', -6970731678124411036), ('"int"', 8247732601305521295),
     ('{"fields":[{"type":"boolean","name":"f1"}],"type":"record","name":"foo"}', 7843277075252814651)],
)  # fmt: skip
def test_fingerprints_are_those_of_the_avro_project(text: str, crc: int) -> None:
    assert fingerprint_of(text) == crc % 2**64


def test_confluent_prefix() -> None:
    spec = AvroSpec("confluent", registry="mock://prefixes")
    extract = build_extractor(KeySpec("avro", ("id",), None, "ms", spec))
    answer = extract(RecordColumns([b"\x00\x00\x00\x01", b'{"id": 1}', b"\x01" + bytes(20), b"", None]))
    reasons = ["avro_prefix", "avro_prefix", "avro_prefix", "empty", "empty"]
    assert [f.reason for f in answer.faults] == reasons
    assert "expected a zero byte and a schema id of 4 bytes" in answer.faults[0].message


# ---- values that can't be read ----------------------------------------------------------------------------

ALL = record(id="string", n=["null", "int"], d="double", e=ENUM, a={"type": "array", "items": "string"},
             m={"type": "map", "values": "long"})  # fmt: skip
WHOLE = encoded(ALL, {"id": "x", "n": 5, "d": 0.5, "e": "B", "a": ["p"], "m": {"k": 1}})


def test_every_cut_of_a_value_is_a_fault() -> None:
    values: list[bytes | None] = [WHOLE[:size] for size in range(len(WHOLE))]
    answer = extracted(ALL, [*values, WHOLE])
    assert [f.row for f in answer.faults] == list(range(len(WHOLE)))
    assert {f.reason for f in answer.faults[1:]} == {"avro"}
    assert "is cut short at byte" in answer.faults[1].message
    assert "expected a value of schema E" in answer.faults[1].message


def test_bytes_left_over_are_a_fault() -> None:
    found = fault(ALL, WHOLE + b"\x00")
    assert (found.reason, f"ends at byte {len(WHOLE)} of {len(WHOLE) + 1}" in found.message) == ("avro", True)


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("string", b"\x02\xff", "text that is not UTF-8"),
        ("string", b"\x05abc", "cut short"),  # a negative length
        ("string", b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7fabc", "cut short"),
        ("long", b"\xff", "cut short"),
        ("double", b"123", "cut short"),
        (["null", "string"], b"\x04", "a branch or symbol"),
        (["null", "string"], b"\x01", "cut short"),  # a negative branch
        (ENUM, b"\x04", "a branch or symbol"),
        (ENUM, b"\x01", "a branch or symbol"),
        ({"type": "array", "items": "int"}, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02", "cut short"),
    ],
)
def test_broken_value(kind: Any, value: bytes, words: str) -> None:
    found = fault(record(id=kind), value)
    assert (found.reason, words in found.message) == ("avro", True), found


def test_text_that_is_not_asked_for_is_not_decoded() -> None:
    schema = record(id="int", text="string")
    assert extracted(schema, [b"\x02\x02\xff"]).faults == []


def test_deep_values_do_not_end_the_process() -> None:
    """fastavro's compiled decoder overflows the stack on these: hence a process of its own."""
    code = """
        import json
        from replayfilter.formats import *
        schema = {"type": "record", "name": "N", "fields": [
            {"name": "id", "type": "int"}, {"name": "next", "type": ["null", "N"]}]}
        spec = AvroSpec("plain", schemas=(json.dumps(schema),))
        for key in ("id", "next", "next.next.id"):
            extract = build_extractor(KeySpec("avro", (key,), None, "ms", spec))
            (fault,) = extract(RecordColumns([b"\\2" * 1_000_001])).faults
            assert "nested too deeply" in fault.message, fault
        print("alive")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "alive\n", done


@pytest.mark.parametrize(
    "items",
    ["null", record(a="null", b={"type": "fixed", "name": "F", "size": 0}), {"type": "null"},
     {"type": "record", "name": "Self", "fields": [{"name": "s", "type": "Self"}]}],
)  # fmt: skip
def test_arrays_of_nothing_are_refused(items: Any) -> None:
    """Nine bytes could say that there are 2**62 of them."""
    schema = {"type": "record", "name": "Top", "fields": [{"name": "id", "type": "int"}]}
    schema["fields"].append({"name": "a", "type": {"type": "array", "items": items}})
    with pytest.raises(SchemaError, match="items take no bytes"):
        shape_of((json.dumps(schema),), {"id": {}})


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "5", "[5]", '{"type": "record"}', '{"type": "fixed", "name": "F"}', '{"type": "array"}',
     '{"type": "record", "name": "R", "fields": 3}', '{"type": "fixed", "name": "F", "size": -2}',
     '{"type": "fixed", "name": "F", "size": "2"}', "[" * 5_000, '{"type": "map", "values": {"x": 1}}'],
)  # fmt: skip
def test_wrong_schemas_are_schema_errors(text: str) -> None:
    with pytest.raises(SchemaError):
        shape_of((text,), {})


@pytest.mark.parametrize("leaf", ["int", "null"])
def test_a_type_used_many_times_stays_small(leaf: str) -> None:
    """Each type holds the one before twice: written out it would have 2**40 fields."""
    fields: list[Any] = []
    for depth in range(40):
        below = f"T{depth - 1}" if depth else leaf
        inner = [{"name": "a", "type": below}, {"name": "b", "type": below}]
        named = {"type": "record", "name": f"T{depth}", "fields": inner}
        fields.append({"name": f"f{depth}", "type": ["null", named]})
    fields.append({"name": "id", "type": "int"})
    schema: dict[str, Any] = {"type": "record", "name": "Top", "fields": fields}
    for want in ({"id": {}}, {}):
        assert shape_of((json.dumps(schema),), want).read(BytesIO(bytes(40) + b"\x02"))["id"] == 1
    fields.append({"name": "array", "type": {"type": "array", "items": "T39"}})
    if leaf == "null":
        with pytest.raises(SchemaError, match="items take no bytes"):
            shape_of((json.dumps(schema),), {})
    else:
        assert shape_of((json.dumps(schema),), {}).read(BytesIO(bytes(40) + b"\x02\0"))["array"] == []
