"""JSON extraction, case by case: the key, or the error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from replayfilter.core.clock.units import INT64_MIN
from replayfilter.core.digest import MISSING, digest_key
from replayfilter.formats import Extraction, KeySpec, Reason, RecordColumns, RecordError, build_extractor
from tests.support.extractions import digests, reasons


def extract(
    values: Sequence[bytes | None], *key: str, expiry: str | None = None, unit: str = "ms"
) -> Extraction:
    return build_extractor(KeySpec("json", key, expiry, unit))(RecordColumns(values))


def the_error(value: bytes | None, *key: str, expiry: str | None = None) -> RecordError:
    """The error of one record between two good ones, which must not be affected."""
    good = b'{"id": "a", "ts": 7, "user": {"id": 1}}'
    result = extract([good, value, good], *key, expiry=expiry)
    (error,) = result.errors
    assert error.row == 1
    assert result.digests[1].tolist() == [0, 0]
    assert result.expiry.tolist() == ([7, 0, 7] if expiry else [0, 0, 0])
    assert digests(result)[0] == digests(result)[2] != bytes(16)
    assert len(error.message) < 300
    assert error.message.isascii()
    return error


KEYS: list[tuple[bytes, Any]] = [
    (b'{"id": "a"}', "a"),
    (b' {"id" :\t"a" }\r\n', "a"),
    (b'{"id": ""}', ""),
    (b'{"id": "\\u0061\\n\\u0000"}', "a\n\0"),
    (b'{"\\u0069d": "a"}', "a"),
    ('{"id": "é😀"}'.encode(), "é😀"),
    (b'{"id": "\\ud83d\\ude00"}', "😀"),
    (b'{"id": 1}', 1),
    (b'{"id": 1.0}', 1),
    (b'{"id": 1e0}', 1),
    (b'{"id": 10E-1}', 1),
    (b'{"id": -0}', 0),
    (b'{"id": -0.0}', 0),
    (b'{"id": 18446744073709551616}', 1 << 64),
    (b'{"id": -9223372036854775809}', -(1 << 63) - 1),
    (b'{"id": 1e400}', 10**400),
    (b'{"id": ' + b"9" * 4300 + b"}", int("9" * 4300)),
    (b'{"id": true}', True),
    (b'{"id": [1, {"b": null, "a": 2.0}]}', [1, {"a": 2, "b": None}]),
    (b'{"id": {}}', {}),
    (b'{"id": "first", "id": "last"}', "last"),
    (b'{"id": null, "id": "last"}', "last"),
    (b'{"id": "cut emoji \\ud83d"}', "cut emoji \ud83d"),
    (b'{"id": "a", "text": "cut emoji \\ud83d"}', "a"),
    (b'{"id": "a", "text": "not UTF-8, but not needed \xff"}', "a"),
    (b'{"id": "a", "number": 1e99999999999999999999, "more": ' + b"9" * 5000 + b"}", "a"),
    (b'{"id": "a", "deep": ' + b"[" * 500 + b"]" * 500 + b"}", "a"),
    (b'{"id": "a", "long": "' + b"x" * 1_000_000 + b'"}', "a"),
    (b'{"id": "' + b"x" * 1_000_000 + b'"}', "x" * 1_000_000),
]


@pytest.mark.parametrize(("value", "key"), KEYS, ids=[str(value[:60]) for value, _ in KEYS])
def test_key(value: bytes, key: Any) -> None:
    result = extract([value], "id")
    assert result.errors == []
    assert digests(result) == [digest_key([key])]


ERRORS: list[tuple[bytes | None, Reason, str]] = [
    (None, Reason.EMPTY, "value: found null, expected a JSON object"),
    (b"", Reason.EMPTY, "value: found no bytes"),
    (
        b'{"x": "' + b"x" * 1_000_000 + b'", "id": bad, "y": "' + b"y" * 1_000_000,
        Reason.JSON,
        """invalid character (byte 1000016), near b'xxxxxxxxxxx", "id": bad, "y": "yyyyyyyyy'""",
    ),
    (b'{"user": 5, "id": bad}', Reason.JSON, "invalid character (byte 18)"),
    (b" ", Reason.JSON, "truncated"),
    (b"hello", Reason.JSON, "invalid character (byte 0)"),
    (b'{"id": "a"', Reason.JSON, "truncated"),
    (b'{"id": "a",}', Reason.JSON, "trailing comma in object (byte 11)"),
    (b'{"id": "a"} x', Reason.JSON, "trailing characters"),
    (b'{"id": "a"}{"id": "a"}', Reason.JSON, "trailing characters"),
    (b"{'id': 'a'}", Reason.JSON, "(byte 1)"),
    (b'{"id": 01}', Reason.JSON, "(byte 8)"),
    (b'{"id": NaN}', Reason.JSON, "(byte 7)"),
    (b'{"id": "a", "x": NaN}', Reason.JSON, "(byte 17)"),
    (b'{"id": -Infinity}', Reason.JSON, "(byte 8)"),
    (b'{"id": "a\nb"}', Reason.JSON, "(byte 9)"),
    (b'{"id": "a", "x": "\\q"}', Reason.JSON, "invalid escaped character"),
    (b'{"id": "\xff"}', Reason.JSON, "text is not UTF-8, near b'\\xff'"),
    (b'{"id": "\xed\xa0\x80"}', Reason.JSON, "not UTF-8"),
    (b"\xef\xbb\xbf{}", Reason.JSON, "byte order mark"),
    ('{"id": "a"}'.encode("utf-16"), Reason.JSON, "(byte 0)"),
    (b'{"id": 1e99999999999999999999}', Reason.JSON, "exponent out of range"),
    (b'{"id": ' + b"9" * 5000 + b"}", Reason.JSON, "limit (4300 digits)"),
    (b'{"x": ' * 10_000, Reason.JSON, "nested too deeply"),
    (b'{"id": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", Reason.JSON, "nested too deeply"),
    (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", Reason.JSON, "nested too deeply"),
    (b"[" * 100_000, Reason.JSON, "nested too deeply"),
    (b"[]", Reason.NOT_OBJECT, "value: found b'[]', expected a JSON object"),
    (b'"id"', Reason.NOT_OBJECT, "expected a JSON object"),
    (b"null", Reason.NOT_OBJECT, "expected a JSON object"),
    (b"17", Reason.NOT_OBJECT, "expected a JSON object"),
    (b"{}", Reason.KEY, "id: missing or null, expected a value"),
    (b'{"id": null}', Reason.KEY, "id: missing or null, expected a value"),
    (b'{"ID": 1}', Reason.KEY, "id: missing or null, expected a value"),
    (b'{"id": 1, "id": null}', Reason.KEY, "id: missing or null, expected a value"),
]


def serialized(**conf: Any) -> tuple[bytes, list[tuple[str, str | bytes | None]]]:
    """A value and its headers as Confluent's own serializer writes them."""
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    headers: list[tuple[str, str | bytes | None]] = []
    context = SerializationContext("orders", MessageField.VALUE, headers)
    value = JSONSerializer('{"title": "Order", "type": "object"}', client, conf=conf)({"id": "a"}, context)
    assert value is not None
    return value, headers


def test_confluent_json_schema_is_read_in_both_forms() -> None:
    with_prefix, _ = serialized()
    assert with_prefix[:1] == b"\0"
    in_header, headers = serialized(**{"schema.id.serializer": header_schema_id_serializer})
    assert headers[0][0] == "__value_schema_id"
    plain, broken, lone = b'{"id": "a"}', b"\0\0\0\0\7{", b'\0\0\0\0\7{"id": "\\ud83d"}'
    for values in (
        [with_prefix, in_header, plain, broken, None, lone],
        [plain, with_prefix, broken, None, lone, in_header, b"\0\0\0\0\7" + with_prefix],
        [None, b"", b"\0", b"\0\0\0\0\0", with_prefix],
    ):
        result = extract(values, "id")
        bad = {row for row, value in enumerate(values) if value not in (with_prefix, in_header, plain, lone)}
        assert {error.row for error in result.errors} == bad
        found = dict(zip(values, digests(result), strict=True))
        assert {found[value] for value in values if value in (with_prefix, in_header, plain)} == {
            digest_key(["a"])
        }
        assert found.get(lone, digest_key(["\ud83d"])) == digest_key(["\ud83d"])
    both = extract([plain, broken], "id").errors + extract([broken, plain], "id").errors
    assert (
        both[0].message
        == both[1].message
        == ("value: Input data was truncated, near b'{'; expected a JSON object in UTF-8")
    )


def test_null_values_can_be_no_errors() -> None:
    """By key they are compared with each other only; they have no expiry key and no progress."""
    values = [b'{"id": "k", "ts": 5}', None, None, b"", None, b"null", b'{"id": null, "ts": 7}']
    keys = [b"k", b"k", b"k", b"k", None, b"k", b"k"]
    batch = RecordColumns(values, keys, timestamps_ms=[1] * len(values))
    spec = KeySpec("json", ("id", "@key"), "ts", "ms", origin="id", time="@timestamp")
    empty = [(3, "empty"), (5, "not_object")]
    for on_null, nulls, errors in (
        ("error", [], [(1, "empty"), (2, "empty"), (3, "empty"), (4, "empty"), (5, "not_object")]),
        ("unique", [1, 2, 4], empty),
        ("key", [1, 2], [(3, "empty"), (4, "key"), (5, "not_object")]),
    ):
        result = build_extractor(replace(spec, on_null=on_null))(batch)
        assert (list(result.nulls), reasons(result)) == (nulls, errors)
        assert result.expiry.tolist() == [5, 0, 0, 0, 0, 0, 7]
        assert result.times_us is not None
        assert all(result.times_us[row] == INT64_MIN for row in result.nulls)
        found = digests(result)
        assert found[1] == found[2]
        assert (found[1] == bytes(16)) == (on_null != "key")
        assert found[1] not in (found[0], digest_key([b"k"]))
    assert build_extractor(replace(spec, key=("id",), on_null="key")).needs == {"keys", "timestamps"}


@pytest.mark.parametrize(("value", "reason", "words"), ERRORS, ids=[str(case[0])[:50] for case in ERRORS])
def test_error(value: bytes | None, reason: Reason, words: str) -> None:
    error = the_error(value, "id")
    assert error.reason is reason
    assert words in error.message


def test_every_record_keeps_its_row_among_errors() -> None:
    values: list[bytes | None] = [b'{"id":%d,"ts":%d}' % (i, i) for i in range(300)]
    for row, bad in [(0, b""), (7, b"x"), (100, b'{"id":5}'), (101, b'{"ts":5}'), (299, None)]:
        values[row] = bad
    result = extract(values, "id", expiry="ts")
    assert [(f.row, f.reason.value) for f in result.errors] == [
        (0, "empty"),
        (7, "json"),
        (100, "expiry_missing"),
        (101, "key"),
        (299, "empty"),
    ]
    bad_rows = [f.row for f in result.errors]
    assert result.expiry.tolist() == [0 if i in bad_rows else i for i in range(300)]
    assert digests(result) == [bytes(16) if i in bad_rows else digest_key([i]) for i in range(300)]


def test_no_records() -> None:
    result = extract([], "id", "user.id", expiry="ts")
    assert (result.expiry.shape, result.digests.shape, result.errors) == ((0,), (0, 2), [])
    assert result.expiry.dtype == np.int64
    assert result.digests.dtype == np.uint64


PATHS: list[tuple[bytes, Any]] = [
    (b'{"user": {"id": 5, "x": [1]}}', 5),
    (b'{"user": {"id": null}}', None),
    (b'{"user": {}}', MISSING),
    (b'{"user": null}', MISSING),
    (b"{}", MISSING),
    (b'{"user": 7}', MISSING),
    (b'{"user": 7.5}', MISSING),
    (b'{"user": "id"}', MISSING),
    (b'{"user": [{"id": 5}]}', MISSING),
    (b'{"user": true}', MISSING),
    (b'{"user.id": 5}', MISSING),
    (b'{"user": {"id": 5}, "user": {}}', MISSING),
    (b'{"user": {"id": 5}, "user": 3}', MISSING),
    (b'{"user": 3, "user": {"id": 5}}', 5),
    (b'{"user": {"id": {"id": 5}}}', {"id": 5}),
    (b'{"user": {"id": "\\udead"}}', "\udead"),
]


@pytest.mark.parametrize(("value", "found"), PATHS, ids=[str(value) for value, _ in PATHS])
def test_nested_path(value: bytes, found: Any) -> None:
    """Without another key field null and missing are errors; with one they are two different values."""
    document = value[:-1] + (b', "a": 1}' if len(value) > 2 else b'"a": 1}')
    result = extract([document], "a", "user.id")
    assert result.errors == []
    assert digests(result) == [digest_key([1, found])]
    alone = extract([value], "user.id")
    assert [f.reason for f in alone.errors] == ([Reason.KEY] if found in (None, MISSING) else [])


def test_path_within_another_path() -> None:
    values = [
        b'{"user": {"id": 5, "at": {"ts": 9}}}',
        b'{"user": 3, "ts": 4}',
        b'{"user": {"at": [{"ts": 9}]}}',
    ]
    result = extract(values, "user", "user.id", expiry="user.at.ts")
    assert result.expiry.tolist() == [9, 0, 0]
    assert digests(result)[0] == digest_key([{"id": 5, "at": {"ts": 9}}, 5])
    assert [(f.row, f.reason) for f in result.errors] == [
        (1, Reason.EXPIRY_MISSING),
        (2, Reason.EXPIRY_MISSING),
    ]


def test_many_paths_of_all_depths() -> None:
    paths = ["a", "b.a", "b.b", "c.a.a", "c.a.b", "c.b", r"d\.e", r"\@key", "ä ö"]
    document = {
        "a": 1,
        "b": {"a": 2, "b": 3},
        "c": {"a": {"a": 4, "b": 5}, "b": 6},
        "d.e": 7,
        "@key": 8,
        "ä ö": 9,
    }
    for text in (
        json.dumps(document),
        json.dumps(document, ensure_ascii=False),
        json.dumps({"z": "\ud800"} | document),
    ):
        result = extract([text.encode()], *paths)
        assert digests(result) == [digest_key([1, 2, 3, 4, 5, 6, 7, 8, 9])]


def test_only_records_without_any_key_field_are_errors() -> None:
    values = [
        b'{"a": 1}',
        b'{"b": 1}',
        b'{"a": 1, "b": null}',
        b'{"a": null, "b": null}',
        b"{}",
        b'{"a": null}',
    ]
    result = extract(values, "a", "b")
    assert [f.row for f in result.errors] == [3, 4, 5]
    assert result.errors[0].message.startswith("a, b: missing or null")
    assert len(set(digests(result)[:3])) == 3


def test_metadata_beside_fields() -> None:
    extractor = build_extractor(KeySpec("json", ("@key", "id", "@header:h", "@value"), "@timestamp", "s"))
    assert extractor.needs == {"keys", "headers", "timestamps"}
    value = b'{"id": 1}'
    result = extractor(RecordColumns([value], [b"k"], [1999], [[("h", b"old"), ("h", b"new"), ("i", None)]]))
    assert digests(result) == [digest_key([b"k", 1, b"new", value])]
    assert result.expiry.tolist() == [1]
    assert build_extractor(KeySpec("json", ("id",), "ts", "s")).needs == frozenset()


def test_without_dedup_values_must_still_be_json() -> None:
    result = extract([b"{}", b"x"])
    assert result.digests.tolist() == [[0, 0], [0, 0]]
    assert [(f.row, f.reason) for f in result.errors] == [(1, Reason.JSON)]
