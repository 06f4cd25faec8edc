"""Raw records, and specs that are refused."""

from __future__ import annotations

import pytest

from replayfilter.core.digest import MISSING, digest_key
from replayfilter.errors import ConfigError
from replayfilter.formats import KeySpec, Reason, RecordColumns, build_extractor
from replayfilter.formats.fields import Location, parse_field
from tests.support.extractions import digests


def test_value_as_key() -> None:
    extractor = build_extractor(KeySpec("raw", ("@value",), None, "ms"))
    assert extractor.needs == frozenset()
    result = extractor(RecordColumns([b"\xff\x00", b"", None, b"{}"]))
    assert [(f.row, f.reason) for f in result.errors] == [(2, Reason.KEY)]
    assert result.errors[0].message.startswith("@value: missing or null")
    assert digests(result) == [digest_key([b"\xff\x00"]), digest_key([b""]), bytes(16), digest_key([b"{}"])]


def test_record_key_as_key_accepts_tombstones() -> None:
    extractor = build_extractor(KeySpec("raw", ("@key",), "@timestamp", "ms"))
    assert extractor.needs == {"keys", "timestamps"}
    result = extractor(RecordColumns([None, None, b"x"], [b"a", None, b"a"], [1, 2, 3]))
    assert [(f.row, f.reason) for f in result.errors] == [(1, Reason.KEY)]
    assert digests(result)[0] == digests(result)[2] == digest_key([b"a"])
    assert result.expiry.tolist() == [1, 0, 3]


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
    result = extractor(RecordColumns([b""] * 6, [b"k"] * 6, headers=headers))
    found = [b"1", b"3", None, MISSING, MISSING, MISSING]
    assert digests(result) == [digest_key([value, b"k"]) for value in found]
    alone = build_extractor(KeySpec("raw", ("@header:id",), None, "ms"))(
        RecordColumns([b""] * 6, headers=headers)
    )
    assert [f.row for f in alone.errors] == [2, 3, 4, 5]


def test_a_header_as_expiry_key() -> None:
    """Its value is text: a whole number in digits, or ISO 8601."""
    sent = [b"1700000000123", b"-5", None, b"1.5", b"\xff", b"9" * 30, b""]
    headers: list[list[tuple[str, bytes | None]] | None] = [[("ts", value)] for value in sent]
    headers += [None, [("ts", b"1"), ("ts", b"2")], [("TS", b"1")]]
    batch = RecordColumns([b""] * len(headers), [b"k"] * len(headers), headers=headers)
    extractor = build_extractor(KeySpec("raw", ("@key",), "@header:ts", "ms"))
    assert extractor.needs == {"keys", "headers"}
    result = extractor(batch)
    assert result.expiry.tolist() == [1_700_000_000_123, -5, 0, 0, 0, 0, 0, 0, 2, 0]
    assert [(error.row, error.reason, error.message) for error in result.errors] == [
        (row, reason, f"@header:ts: found {found}, expected a whole number of ms")
        for row, reason, found in [
            (2, Reason.EXPIRY_MISSING, "null"),
            (3, Reason.EXPIRY_TYPE, "text '1.5'"),
            (4, Reason.EXPIRY_TYPE, "bytes b'\\xff'"),
            (5, Reason.EXPIRY_RANGE, "9" * 30 + ", which does not fit int64"),
            (6, Reason.EXPIRY_TYPE, "text ''"),
            (7, Reason.EXPIRY_MISSING, "nothing"),
            (9, Reason.EXPIRY_MISSING, "nothing"),
        ]
    ]
    times = [[("ts", b"1970-01-01T00:00:01Z")], [("ts", b"1")]]
    result = build_extractor(KeySpec("raw", ("@key",), "@header:ts", "iso8601"))(
        RecordColumns([b""] * 2, [b"k"] * 2, headers=times)
    )
    assert (result.expiry.tolist(), [error.row for error in result.errors]) == ([1_000_000, 0], [1])
    result = build_extractor(KeySpec("raw", ("@key",), "@header:ts", "category"))(
        RecordColumns([b""] * 2, [b"k"] * 2, headers=times)
    )
    assert len(set(result.expiry.tolist())) == 2


def test_an_empty_batch() -> None:
    result = build_extractor(KeySpec("raw", ("@key",), "@timestamp", "us"))(RecordColumns([]))
    assert (result.expiry.shape, result.digests.shape, result.errors) == ((0,), (0, 2), [])


@pytest.mark.parametrize(
    ("text", "location", "names"),
    [
        ("id", Location.PATH, ("id",)),
        ("user.id", Location.PATH, ("user", "id")),
        (r"user\.id", Location.PATH, ("user.id",)),
        (r"a\.b.c", Location.PATH, ("a.b", "c")),
        (r"\@key", Location.PATH, ("@key",)),
        ("user.@key", Location.PATH, ("user", "@key")),
        ("event id", Location.PATH, ("event id",)),
        ("@key", Location.KEY, ()),
        ("@value", Location.VALUE, ()),
        ("@timestamp", Location.TIMESTAMP, ()),
        ("@header:event.id", Location.HEADER, ("event.id",)),
        ("@header:a:b", Location.HEADER, ("a:b",)),
    ],
)
def test_field_names(text: str, location: Location, names: tuple[str, ...]) -> None:
    field = parse_field(text)
    assert (field.location, field.names, field.text) == (location, names, text)


@pytest.mark.parametrize(
    "text", ["", ".", "a.", ".a", "a..b", "a\\", "a\\b", 'a"b', "a\nb", "\ud800", "@", "@Key", "@header:"]
)
def test_bad_field_names(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^dedup\.key: .*") as caught:
        build_extractor(KeySpec("json", (text,), None, "ms"))
    assert len(caught.value.errors) == 1


def test_raw_has_no_fields() -> None:
    with pytest.raises(ConfigError) as caught:
        build_extractor(KeySpec("raw", ("id", "@key"), "ts", "ms"))
    assert caught.value.errors == [
        'dedup.key: "id" is a field path, but format "raw" has no fields; '
        'use "@key", "@value" or "@header:NAME", or "json"',
        'dedup.expiry_key: "ts" is a field path, but format "raw" has no fields; '
        'use "@timestamp" or "@header:NAME", or format "json"',
    ]


def test_all_errors_of_a_spec_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        build_extractor(KeySpec("xml", ("a", "a", "@timestamp", "@nope", "b..c"), "@key", "minutes"))
    text = "\n".join(caught.value.errors)
    assert len(caught.value.errors) == 7
    for words in [
        '"xml" is unknown',
        '"minutes" is unknown',
        '"a" is listed twice',
        '"@timestamp" can only be',
    ]:
        assert words in text
    for words in ['"@nope" is unknown', '"b..c" has an empty name', 'dedup.expiry_key: "@key" has no order']:
        assert words in text
