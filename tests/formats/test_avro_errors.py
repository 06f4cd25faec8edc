"""Avro values that can't be read: wrong prefixes, and values that don't match their schema."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from replayfilter.core.digest import digest_key
from replayfilter.formats import AvroSpec, KeySpec, RecordColumns, build_extractor
from replayfilter.formats.avro.schemas import fingerprint_of
from tests.support.extractions import (
    digests,
    encoded,
    extract_plain,
    plain_error,
    record_schema,
)

ENUM = {"type": "enum", "name": "C", "symbols": ["A", "B"]}

# ---- prefixes ----------------------------------------------------------------------------------------------


def test_single_object_encoding() -> None:
    first, second = record_schema(id="string"), record_schema(n="int", id="string")
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
    result = extract(RecordColumns(values))
    assert digests(result)[0] == digests(result)[1] == digest_key(["a"])
    reasons = [(2, "avro_schema"), (3, "avro_prefix"), (4, "avro_prefix"), (5, "avro_prefix")]
    assert [(f.row, f.reason) for f in result.errors] == reasons
    assert "fingerprint 0706050403020100" in result.errors[0].message
    assert "expected c3 01 and a fingerprint of 8 bytes" in result.errors[1].message


def test_confluent_prefix() -> None:
    spec = AvroSpec("confluent", registry="mock://prefixes")
    extract = build_extractor(KeySpec("avro", ("id",), None, "ms", spec))
    result = extract(RecordColumns([b"\x00\x00\x00\x01", b'{"id": 1}', b"\x01" + bytes(20), b"", None]))
    reasons = ["avro_prefix", "avro_prefix", "avro_prefix", "empty", "empty"]
    assert [f.reason for f in result.errors] == reasons
    assert "expected a zero byte and a schema id of 4 bytes" in result.errors[0].message


# ---- values -----------------------------------------------------------------------------------------------

ALL = record_schema(
    id="string",
    n=["null", "int"],
    d="double",
    e=ENUM,
    a={"type": "array", "items": "string"},
    m={"type": "map", "values": "long"},
)
WHOLE = encoded(ALL, {"id": "x", "n": 5, "d": 0.5, "e": "B", "a": ["p"], "m": {"k": 1}})


def test_every_truncated_value_is_an_error() -> None:
    values: list[bytes | None] = [WHOLE[:size] for size in range(len(WHOLE))]
    result = extract_plain(ALL, [*values, WHOLE])
    assert [f.row for f in result.errors] == list(range(len(WHOLE)))
    assert {f.reason for f in result.errors[1:]} == {"avro"}
    assert "is cut short at byte" in result.errors[1].message
    assert "expected a value of schema E" in result.errors[1].message


def test_trailing_bytes_are_an_error() -> None:
    found = plain_error(ALL, WHOLE + b"\x00")
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
    found = plain_error(record_schema(id=kind), value)
    assert (found.reason, words in found.message) == ("avro", True), found


def test_text_that_is_not_needed_is_not_decoded() -> None:
    schema = record_schema(id="int", text="string")
    assert extract_plain(schema, [b"\x02\x02\xff"]).errors == []


def test_deep_values_do_not_end_the_process() -> None:
    """In a process of its own, since fastavro's compiled decoder overflows the stack on such values."""
    code = """
        import json
        from replayfilter.formats import *
        schema = {"type": "record", "name": "N", "fields": [
            {"name": "id", "type": "int"}, {"name": "next", "type": ["null", "N"]}]}
        spec = AvroSpec("plain", schemas=(json.dumps(schema),))
        for key in ("id", "next", "next.next.id"):
            extract = build_extractor(KeySpec("avro", (key,), None, "ms", spec))
            (error,) = extract(RecordColumns([b"\\2" * 1_000_001])).errors
            assert "nested too deeply" in error.message, error
        print("alive")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "alive\n", done
