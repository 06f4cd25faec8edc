"""CloudEvents: binary and structured mode give the same keys, and what is no event is an error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from replayfilter.core.digest import digest_key
from replayfilter.errors import ConfigError
from replayfilter.formats import Extraction, KeySpec, RecordColumns, build_extractor
from replayfilter.formats.cloudevents import EXPIRY_KEY, KEY, UNIT
from tests.support.extractions import digests, reasons

JSON = ("content-type", b"application/cloudevents+json; charset=UTF-8")
# The examples of the Kafka protocol binding, version 1.0.2.
EVENT = {
    "specversion": "1.0",
    "type": "com.example.someevent",
    "source": "/mycontext/subcontext",
    "id": "1234-1234-1234",
    "time": "2018-04-05T03:56:24Z",
    "datacontenttype": "application/xml",
}
AT_US = 1_522_900_584_000_000
Pairs = list[tuple[str, bytes | None]] | None


def binary(**changes: bytes | None) -> Pairs:
    """The headers of the example in binary mode."""
    attributes: dict[str, bytes | None] = {
        name: value.encode() for name, value in EVENT.items() if name != "datacontenttype"
    }
    headers: Pairs = [(f"ce_{name}", value) for name, value in (attributes | changes).items()]
    return [*(headers or ()), ("content-type", b"application/avro")]


def structured(**changes: Any) -> bytes:
    """The example in structured mode."""
    return json.dumps(EVENT | {"data": {"id": "of the data"}} | changes).encode()


def extract(
    *records: tuple[bytes | None, Pairs],
    key: tuple[str, ...] = KEY,
    expiry: str | None = EXPIRY_KEY,
    unit: str = UNIT,
) -> Extraction:
    values, headers = zip(*records, strict=True)
    extractor = build_extractor(KeySpec("cloudevents", key, expiry, unit))
    assert extractor.needs == {"headers"}
    return extractor(RecordColumns(values, headers=headers))


def test_both_modes_give_the_same_event() -> None:
    """In binary mode the value is data: nothing of it is read, and it may be null."""
    result = extract(
        (b"\xff not JSON", binary()),
        (None, binary()),
        (b'{"id": "of the data"}', binary()),
        (structured(), [JSON]),
        (structured(), [("content-type", b"APPLICATION/CloudEvents+JSON")]),
        (structured(), [("content-type", b"text/plain"), JSON, *(binary(id=b"of another event") or [])[:3]]),
    )
    assert result.errors == []
    assert set(digests(result)) == {digest_key(["/mycontext/subcontext", "1234-1234-1234"])}
    assert set(result.expiry.tolist()) == {AT_US}


def test_source_and_id_are_told_apart() -> None:
    result = extract(
        (None, binary(source=b"a", id=b"bc")),
        (None, binary(source=b"ab", id=b"c")),
        (structured(source="a", id="b"), [JSON]),
    )
    assert len(set(digests(result))) == 3


@pytest.mark.parametrize(
    ("written", "canonical"),
    [(5, b"5"), (-(2**31), b"-2147483648"), (True, b"true"), (False, b"false"), ("x", b"x"), (None, None)],
)
def test_an_extension_attribute_is_its_text(written: object, canonical: bytes | None) -> None:
    result = extract(
        (structured(comexample1=written), [JSON]),
        (None, binary(comexample1=canonical)),
        key=("id", "comexample1"),
    )
    assert result.errors == []
    first, second = digests(result)
    assert first == second


def test_null_is_the_same_as_not_there() -> None:
    result = extract((structured(subject=None), [JSON]), (structured(), [JSON]), key=("id", "subject"))
    first, second = digests(result)
    assert first == second


def test_the_content_type_of_the_data_is_an_attribute() -> None:
    result = extract(
        (None, binary()),
        (structured(datacontenttype="application/avro"), [JSON]),
        key=("id", "datacontenttype"),
    )
    first, second = digests(result)
    assert (first == second, result.errors) == (True, [])


@pytest.mark.parametrize(
    ("value", "headers", "reason", "message"),
    [
        (b'{"source": "s", "id": "i"}', None, "cloudevent",
         "ce_source: found nothing, expected text in UTF-8, or content-type application/cloudevents+json"),
        (None, binary(id=None), "cloudevent", "header ce_id: found nothing, expected"),
        (None, binary(id=b""), "cloudevent", "header ce_id: found empty text, expected"),
        (None, binary(id=b"\xff"), "cloudevent", r"header ce_id: found bytes b'\xff', expected"),
        (structured(id=None), [JSON], "cloudevent", "id: found nothing, expected text"),
        (structured(id=17), [JSON], "cloudevent", "id: found another type of value, expected text"),
        (structured(source={}), [JSON], "cloudevent", "source: found another type of value, expected text"),
        (structured(), [("content-type", b"application/cloudevents+avro")], "cloudevent",
         "header content-type: found b'application/cloudevents+avro', expected application/cloudevents+json"),
        (b"[]", [("content-type", b"application/cloudevents-batch+json")], "cloudevent", "content-type"),
        (structured(), [("content-type", b"application/cloudevents")], "cloudevent", "content-type"),
        (b"{", [JSON], "json", "value: "),
        (b"[]", [JSON], "not_object", "value: "),
        (None, [JSON], "empty", "value: found null"),
        (None, binary(time=None), "expiry_missing", "time: found nothing, expected ISO 8601"),
        (structured(time="yesterday"), [JSON], "expiry_type", "time: found text 'yesterday'"),
        (None, binary(time=b"yesterday"), "expiry_type", "time: found text 'yesterday'"),
    ],
)  # fmt: skip
def test_what_is_no_event_is_an_error(value: bytes | None, headers: Pairs, reason: str, message: str) -> None:
    good = (None, binary())
    result = extract(good, (value, headers), good)
    assert reasons(result) == [(1, reason)]
    assert message in result.errors[0].message
    assert result.errors[0].message.isprintable()
    assert result.expiry.tolist() == [AT_US, 0, AT_US]


@pytest.mark.parametrize(
    "time",
    [
        "2018-04-05T03:56:24z", "2018-04-05t05:56:24+02:00", "2018-04-05T03:56:24.000000999Z",
        "2018-04-04T23:56:24.0-04:00",
    ],
)  # fmt: skip
def test_times_are_those_of_rfc_3339(time: str) -> None:
    result = extract((structured(time=time), [JSON]), (None, binary(time=time.encode())))
    assert (result.expiry.tolist(), result.errors) == ([AT_US, AT_US], [])


def test_numbers_in_attributes_can_age_events() -> None:
    """The extension "sequence" is text in JSON too."""
    result = extract(
        (structured(sequence="17"), [JSON]),
        (structured(sequence=17), [JSON]),
        (None, binary(sequence=b"17")),
        expiry="sequence",
        unit="integer",
    )
    assert (result.expiry.tolist(), result.errors) == ([17, 17, 17], [])


def test_attributes_feed_the_watermark() -> None:
    spec = KeySpec("cloudevents", KEY, None, "ms", origin="source", time="time", time_unit="iso8601")
    result = build_extractor(spec)(RecordColumns([structured(), None], headers=[[JSON], binary()]))
    assert list(result.origins) == ["/mycontext/subcontext"] * 2
    assert result.times_us is not None
    assert result.times_us.tolist() == [AT_US, AT_US]


def test_only_attributes_can_be_named() -> None:
    with pytest.raises(ConfigError) as caught:
        build_extractor(KeySpec("cloudevents", ("data.id", "ID", "data"), "ce_time", "ms"))
    assert [error.split(":")[0] for error in caught.value.errors] == ["dedup.key"] * 3 + ["dedup.expiry_key"]
    assert all("is not an attribute of CloudEvents" in error for error in caught.value.errors)
    build_extractor(KeySpec("cloudevents", ("@key", "@header:x"), "@timestamp", "ms"))
