"""Expiry keys from JSON and from Kafka's timestamp: units, formats and the limits of int64."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayfilter.formats import Extraction, KeySpec, Reason, RecordColumns, build_extractor

MIN, MAX = -(1 << 63), (1 << 63) - 1


def extract(texts: list[str], unit: str) -> Extraction:
    values = [b'{"t": %b}' % text.encode() for text in texts]
    return build_extractor(KeySpec("json", (), "t", unit))(RecordColumns(values))


def stamped(timestamps: list[int], unit: str) -> Extraction:
    values: list[bytes | None] = [None] * len(timestamps)
    extractor = build_extractor(KeySpec("raw", (), "@timestamp", unit))
    return extractor(RecordColumns(values, timestamps_ms=timestamps))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns", "integer"])
@pytest.mark.parametrize(
    ("text", "expiry"),
    [
        ("0", 0),
        ("-0", 0),
        ("-1", -1),
        ("1714564800000", 1714564800000),
        ("1.0", 1),
        ("1e3", 1000),
        ("10E-1", 1),
        ("-0.0", 0),
        ("0e99999999", 0),
        (str(MIN), MIN),
        (str(MAX), MAX),
        (f"{MAX}.000", MAX),
        (f"{MIN}.0", MIN),
    ],
)
def test_whole_numbers(text: str, expiry: int, unit: str) -> None:
    result = extract([text], unit)
    assert result.errors == []
    assert result.expiry.tolist() == [expiry]


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        ("null", Reason.EXPIRY_MISSING, "t: found null, expected a whole number of ms"),
        ("1.5", Reason.EXPIRY_TYPE, "t: found the fraction 1.5, expected a whole number of ms"),
        ("1e-400", Reason.EXPIRY_TYPE, "the fraction 1E-400"),
        ('"1714564800000"', Reason.EXPIRY_TYPE, "t: found text '1714564800000', expected a whole number"),
        ('"' + "x" * 1000 + '"', Reason.EXPIRY_TYPE, "xxx..."),
        ("true", Reason.EXPIRY_TYPE, "found true"),
        ("false", Reason.EXPIRY_TYPE, "found false"),
        ("[1]", Reason.EXPIRY_TYPE, "found an array"),
        ("{}", Reason.EXPIRY_TYPE, "found an object"),
        ("[" * 800 + "]" * 800, Reason.EXPIRY_TYPE, "found an array"),
        (str(MAX + 1), Reason.EXPIRY_RANGE, "t: found 9223372036854775808, which does not fit int64"),
        (str(MIN - 1), Reason.EXPIRY_RANGE, "which does not fit int64"),
        ("9" * 4000, Reason.EXPIRY_RANGE, "999..., which"),
        ("1e400", Reason.EXPIRY_RANGE, "1E+400"),
        ("1e999999999999999999", Reason.EXPIRY_RANGE, "which does not fit int64"),
    ],
)
def test_not_whole_numbers(text: str, reason: Reason, words: str) -> None:
    result = extract(["5", text, "6"], "ms")
    (error,) = result.errors
    assert (error.row, error.reason) == (1, reason)
    assert words in error.message
    assert len(error.message) < 200
    assert result.expiry.tolist() == [5, 0, 6]


def test_missing() -> None:
    result = build_extractor(KeySpec("json", (), "a.b", "ms"))(
        RecordColumns([b'{"a": {}}', b"{}", b'{"a": 1}'])
    )
    assert [f.reason for f in result.errors] == [Reason.EXPIRY_MISSING] * 3
    assert result.errors[0].message == "a.b: found nothing, expected a whole number of ms"


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01", 0),
        ("1970-01-01T00:00", 0),
        ("1970-01-01 00:00:01", 1_000_000),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1970-01-01T00:00:00.0000019Z", 1),
        ("1970-01-01T00:00:00,5Z", 500_000),
        ("1969-12-31T23:59:59.9999999Z", -1),
        ("1969-12-31T23:59:59.9999990Z", -1),
        ("1969-12-31T23:59:59Z", -1_000_000),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1969-12-31T19:00:00-05:00", 0),
        ("1970-01-01T05:30:00+0530", 0),
        ("1970-01-01T00:00:00+00:00:30", -30_000_000),
        ("2024-02-29T12:00:00.123456+01:00", 1_709_204_400_123_456),
        ("0001-01-01T00:00:00+14:00", -62_135_596_800_000_000 - 14 * 3_600_000_000),
        ("9999-12-31T23:59:59.999999-14:00", 253_402_300_799_999_999 + 14 * 3_600_000_000),
    ],
)
def test_iso8601(text: str, micros: int) -> None:
    result = extract([json.dumps(text)], "iso8601")
    assert result.errors == []
    assert result.expiry.tolist() == [micros]


@pytest.mark.parametrize(
    "text",
    [
        '""',
        '"yesterday"',
        '"2024-13-01T00:00:00Z"',
        '"2024-02-30"',
        '"2023-02-29"',
        '"2024-01-01x00:00:00"',
        '"2024-01-01T25:00:00"',
        '"2024-01-01T00:00:00.1x"',
        '"10000-01-01T00:00:00Z"',
        '"20240101T000000"',
        '" 2024-01-01"',
        '"2024-01-01\\ud80000:00:00"',
        '"\uff12\uff1024-01-01"',
        "1714564800000",
        "1.5",
        "true",
        "[]",
    ],
)
def test_not_iso8601(text: str) -> None:
    result = extract(['"2024-01-01"', text], "iso8601")
    (error,) = result.errors
    assert (error.row, error.reason) == (1, Reason.EXPIRY_TYPE)
    assert error.message.startswith("t: found ")
    assert error.message.endswith("expected ISO 8601 text, such as 2024-05-01T12:00:00Z")
    assert result.expiry.tolist() == [1_704_067_200_000_000, 0]


@given(st.datetimes(timezones=st.timezones() | st.none()))
def test_iso8601_agrees_with_datetime(instant: datetime) -> None:
    aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    exact = since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds
    assert extract([json.dumps(instant.isoformat())], "iso8601").expiry.tolist() == [exact]


@pytest.mark.parametrize(
    ("unit", "expiry"),
    [
        ("s", [1, 0, -2, 0]),
        ("ms", [1999, 0, -1001, 1]),
        ("integer", [1999, 0, -1001, 1]),
        ("us", [1_999_000, 0, -1_001_000, 1_000]),
        ("iso8601", [1_999_000, 0, -1_001_000, 1_000]),
        ("ns", [1_999_000_000, 0, -1_001_000_000, 1_000_000]),
    ],
)
def test_kafka_timestamp(unit: str, expiry: list[int]) -> None:
    result = stamped([1999, 0, -1001, 1], unit)
    assert result.errors == []
    assert result.expiry.tolist() == expiry


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns", "iso8601", "integer"])
def test_record_without_kafka_timestamp(unit: str) -> None:
    result = stamped([5000, -1], unit)
    assert [(f.row, f.reason) for f in result.errors] == [(1, Reason.EXPIRY_MISSING)]
    assert result.expiry[1] == 0


@pytest.mark.parametrize(("unit", "factor"), [("ms", 1), ("us", 1000), ("iso8601", 1000), ("ns", 1_000_000)])
def test_kafka_timestamp_at_the_limits_of_int64(unit: str, factor: int) -> None:
    top = MAX // factor
    timestamps: list[Any] = [top, -top, MAX, MIN]
    result = stamped(timestamps, unit)
    exact = [t * factor for t in timestamps]
    fits = [MIN <= e <= MAX for e in exact]
    assert result.expiry.tolist() == [e if fit else 0 for e, fit in zip(exact, fits, strict=True)]
    assert [f.row for f in result.errors] == [row for row, fit in enumerate(fits) if not fit]
    assert {f.reason for f in result.errors} <= {Reason.EXPIRY_RANGE}


def test_a_category_is_any_value_and_types_differ() -> None:
    result = extract(['"a"', '"b"', '"a"', "1", '"1"', "[1]", "null"], "category")
    first, second, repeated, number, text, array, nothing = result.expiry.tolist()
    assert first == repeated
    assert len({first, second, number, text, array}) == 5
    assert (nothing, result.errors[0].row, result.errors[0].reason) == (0, 6, Reason.EXPIRY_MISSING)
