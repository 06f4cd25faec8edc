"""What is compared to find conflicts: the digests of some fields, or of the whole value."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from replayfilter.errors import ConfigError
from replayfilter.formats import AvroSpec, KeySpec, RecordColumns, build_extractor
from tests.support.extractions import encoded, record_schema


def contents(values: Sequence[bytes | None], *fields: str, **columns: Sequence[object]) -> list[int]:
    """The digests of JSON values with the key ``id``."""
    extract = build_extractor(KeySpec("json", ("id",), None, "ms", content=fields, on_null="unique"))
    found = extract(RecordColumns(values, **columns)).contents  # type: ignore[arg-type]
    assert found is not None
    return [int(digest) for digest in found]


def test_without_fields_there_are_none() -> None:
    assert (
        build_extractor(KeySpec("json", ("id",), None, "ms"))(RecordColumns([b'{"id": 1}'])).contents is None
    )


def test_the_whole_value_is_compared_byte_by_byte() -> None:
    one, same, spaces = contents([b'{"id":1,"a":2}', b'{"id":1,"a":2}', b'{"id": 1,"a":2}'], "@value")
    assert one == same != spaces


def test_fields_are_compared_like_those_of_a_key() -> None:
    texts = [
        '"amount": 1',
        '"amount": 1.0, "sent": 7',
        '"amount": "1"',
        '"amount": null',
        '"sent": 7',
        '"amount": 2',
    ]
    found = contents([f'{{"id": 5, {text}}}'.encode() for text in texts], "amount")
    assert found[0] == found[1]
    assert len(set(found)) == 5
    nested = [b'{"id": 5, "o": {"a": 1, "b": [2]}}', b'{"o": {"b": [2.0], "a": 1}, "id": 5}']
    assert len(set(contents(nested, "o"))) == 1
    assert len(set(contents(nested, "o.b", "o.a"))) == 1


def test_the_fields_of_the_key_may_be_compared_too() -> None:
    one, other = contents([b'{"id": 5, "a": 1}', b'{"id": 6, "a": 1}'], "a", "id")
    assert one != other


def test_headers_and_keys_may_be_compared() -> None:
    values = [b'{"id": 5}'] * 4
    headers = [[("v", b"1")], [("v", b"1")], [("v", b"2")], None]
    found = contents(values, "@header:v", "@key", headers=headers, keys=[b"k", b"k", b"k", b"k"])
    assert found[0] == found[1]
    assert len(set(found)) == 3
    assert len(set(contents(values, "@key", keys=[b"k", b"k", b"", None]))) == 3


def test_errors_and_null_values_have_none_and_all_others_have_one() -> None:
    values = [b"oops", None, b'{"id": null}', *(b'{"id": 1, "a": %d}' % number for number in range(1_000))]
    found = contents(values, "a")
    assert found[:3] == [0, 0, 0]
    assert all(0 < digest < 2**32 for digest in found[3:])
    assert len(set(found[3:])) == 1_000


def test_avro_and_raw_values() -> None:
    schema = record_schema(id="long", note=["null", "string"])
    values = [encoded(schema, {"id": 1, "note": note}) for note in ("a", "a", "b", None)]
    spec = AvroSpec("plain", schemas=(json.dumps(schema),))
    for keys in (
        KeySpec("avro", ("id",), None, "ms", spec, content=("note",)),
        KeySpec("raw", ("@key",), None, "ms", content=("@value",)),
    ):
        found = build_extractor(keys)(RecordColumns(values, keys=[b"k"] * 4)).contents
        assert found is not None
        assert found[0] == found[1]
        assert len(set(found.tolist())) == 3


def test_wrong_fields_are_refused() -> None:
    with pytest.raises(ConfigError, match=r'dedup\.conflict_fields: "@timestamp" can only be the expiry key'):
        build_extractor(KeySpec("json", ("id",), None, "ms", content=("@timestamp",)))
    with pytest.raises(ConfigError, match=r'dedup\.conflict_fields: "a" is a field path'):
        build_extractor(KeySpec("raw", ("@key",), None, "ms", content=("a",)))
