"""Opaque records, and the specs that no extractor is built for."""

from __future__ import annotations

import struct

import pytest

from replayfilter.core.digest import MISSING, digest_key
from replayfilter.errors import ConfigError
from replayfilter.formats import Extraction, KeySpec, Reason, RecordColumns, build_extractor
from replayfilter.formats.fields import Place, parse_field


def digests(answer: Extraction) -> list[bytes]:
    return [struct.pack(">QQ", *pair) for pair in answer.digests.tolist()]


def test_value_as_key() -> None:
    extractor = build_extractor(KeySpec("raw", ("@value",), None, "ms"))
    assert extractor.needs == frozenset()
    answer = extractor(RecordColumns([b"\xff\x00", b"", None, b"{}"]))
    assert [(f.row, f.reason) for f in answer.faults] == [(2, Reason.KEY)]
    assert answer.faults[0].message.startswith("@value: missing or null")
    assert digests(answer) == [digest_key([b"\xff\x00"]), digest_key([b""]), bytes(16), digest_key([b"{}"])]


def test_record_key_as_key_lets_tombstones_pass() -> None:
    extractor = build_extractor(KeySpec("raw", ("@key",), "@timestamp", "ms"))
    assert extractor.needs == {"keys", "timestamps"}
    answer = extractor(RecordColumns([None, None, b"x"], [b"a", None, b"a"], [1, 2, 3]))
    assert [(f.row, f.reason) for f in answer.faults] == [(1, Reason.KEY)]
    assert digests(answer)[0] == digests(answer)[2] == digest_key([b"a"])
    assert answer.expiry.tolist() == [1, 0, 3]


def test_headers() -> None:
    extractor = build_extractor(KeySpec("raw", ("@header:id", "@key"), None, "ms"))
    assert extractor.needs == {"keys", "headers"}
    headers: list[list[tuple[str, bytes | None]] | None] = [
        [("id", b"1"), ("ID", b"2")],
        [("id", b"1"), ("id", b"3")],
        [("id", b"1"), ("id", None)],
        [("other", b"1")],
        [],
        None,
    ]
    answer = extractor(RecordColumns([b""] * 6, [b"k"] * 6, headers=headers))
    found = [b"1", b"3", None, MISSING, MISSING, MISSING]
    assert digests(answer) == [digest_key([value, b"k"]) for value in found]
    alone = build_extractor(KeySpec("raw", ("@header:id",), None, "ms"))(
        RecordColumns([b""] * 6, headers=headers)
    )
    assert [f.row for f in alone.faults] == [2, 3, 4, 5]


def test_batch_of_nothing() -> None:
    answer = build_extractor(KeySpec("raw", ("@key",), "@timestamp", "us"))(RecordColumns([]))
    assert (answer.expiry.shape, answer.digests.shape, answer.faults) == ((0,), (0, 2), [])


@pytest.mark.parametrize(
    ("text", "place", "names"),
    [
        ("id", Place.PATH, ("id",)),
        ("user.id", Place.PATH, ("user", "id")),
        (r"user\.id", Place.PATH, ("user.id",)),
        (r"a\.b.c", Place.PATH, ("a.b", "c")),
        (r"\@key", Place.PATH, ("@key",)),
        ("user.@key", Place.PATH, ("user", "@key")),
        ("event id", Place.PATH, ("event id",)),
        ("@key", Place.KEY, ()),
        ("@value", Place.VALUE, ()),
        ("@timestamp", Place.TIMESTAMP, ()),
        ("@header:event.id", Place.HEADER, ("event.id",)),
        ("@header:a:b", Place.HEADER, ("a:b",)),
    ],
)
def test_field_names(text: str, place: Place, names: tuple[str, ...]) -> None:
    field = parse_field(text)
    assert (field.place, field.names, field.text) == (place, names, text)


@pytest.mark.parametrize(
    "text", ["", ".", "a.", ".a", "a..b", "a\\", "a\\b", 'a"b', "a\nb", "\ud800", "@", "@Key", "@header:"]
)
def test_bad_field_names(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^dedup\.key: .*") as caught:
        build_extractor(KeySpec("json", (text,), None, "ms"))
    assert len(caught.value.faults) == 1


def test_raw_has_no_fields() -> None:
    with pytest.raises(ConfigError) as caught:
        build_extractor(KeySpec("raw", ("id", "@key"), "ts", "ms"))
    assert caught.value.faults == [
        'dedup.key: "id" is a field path, but format "raw" has no fields; '
        'use "@key", "@value" or "@header:NAME", or "json"',
        'dedup.expiry_key: "ts" is a field path, but format "raw" has no fields; '
        'use "@timestamp", or format "json"',
    ]


def test_all_faults_of_a_spec_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        build_extractor(KeySpec("xml", ("a", "a", "@timestamp", "@nope", "b..c"), "@key", "minutes"))
    text = "\n".join(caught.value.faults)
    assert len(caught.value.faults) == 7
    for words in [
        '"xml" is unknown',
        '"minutes" is unknown',
        '"a" is there twice',
        '"@timestamp" can only be',
    ]:
        assert words in text
    for words in ['"@nope" is unknown', '"b..c" has an empty name', 'dedup.expiry_key: "@key" has no order']:
        assert words in text
