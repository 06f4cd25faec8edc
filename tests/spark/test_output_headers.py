"""The headers of output records: the records' own, and those that the service adds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.frames import ChunkId
from replayfilter.core.routing import Route
from replayfilter.core.watermark.carried import SERVICE_HEADER, WATERMARK_HEADER
from replayfilter.spark.error_reasons import JUMP_MESSAGE, future_message
from replayfilter.spark.output_headers import output_headers, replace_stamps, replace_watermark

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


CHUNKS = (ChunkId("orders", 3, 40), ChunkId("returns", 0, 7))


def codes(*routes: Route) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.array(routes, np.uint8)


def origin(topic: str, partition: int, offset: int) -> list[tuple[str, str]]:
    """The headers that Kafka Connect has for a record's place in the input."""
    return [
        ("__connect.errors.topic", topic),
        ("__connect.errors.partition", str(partition)),
        ("__connect.errors.offset", str(offset)),
    ]


def test_records_without_headers_stay_without() -> None:
    records = pa.RecordBatch.from_pydict({"offset": [1, 2]})
    number = np.zeros(2, np.intp)
    assert output_headers(records, codes(Route.UNIQUE, Route.DUPLICATE), CHUNKS, number) is None


def test_what_is_added_comes_after_the_records_own_headers() -> None:
    message = future_message(700_000, 600_000, 0)
    records = pa.RecordBatch.from_pydict(
        {
            "headers": pa.array([[("a", b"1")], None, None, [("a", None)], [("b", b"")]], HEADERS),
            "reason": pa.array([None, "json", None, None, None], pa.string()),
            "message": pa.array([None, "not JSON", message, None, None], pa.string()),
            "first": pa.array([None, None, None, None, "t/0/5"], pa.string()),
            "offset": pa.array([40, 41, 2**62, 7, 8], pa.int64()),
        }
    )
    routes = codes(Route.UNIQUE, Route.ERROR, Route.FUTURE, Route.JUMP, Route.DUPLICATE)
    assert output_headers(records, routes, CHUNKS, np.array([0, 0, 0, 1, 1])) == [
        [("a", b"1")],
        [*why("json", "not JSON", "decode"), *origin("orders", 3, 41)],
        [*why("future", message, "route"), *origin("orders", 3, 2**62)],
        [("a", None), *why("jump", JUMP_MESSAGE, "route"), *origin("returns", 0, 7)],
        [("b", b""), ("rf-first", "t/0/5")],
    ]
    assert message == (
        "expiry key 700000 is above 600000, the batch time 1970-01-01T00:00:00.000+00:00 plus max_future"
    )


def why(reason: str, message: str, stage: str) -> list[tuple[str, str]]:
    """The headers that say why a record is an error."""
    return [
        ("rf-reason", reason),
        ("rf-message", message),
        ("rf-stage", stage),
        ("__connect.errors.exception.message", message),
    ]


def test_expired_records_say_where_they_were_and_how_late_they_are() -> None:
    columns = {
        "headers": pa.array([[("a", b"1")], None, None], HEADERS),
        "offset": pa.array([40, 41, 7], pa.int64()),
    }
    late = columns | {"late_by": pa.array([None, "3600000", "7"], pa.string())}
    routes, number = codes(Route.UNIQUE, Route.EXPIRED, Route.EXPIRED), np.array([0, 0, 1])
    places = [origin("orders", 3, 41), origin("returns", 0, 7)]
    assert output_headers(pa.RecordBatch.from_pydict(late), routes, CHUNKS, number) == [
        [("a", b"1")],
        [("rf-late-by", "3600000"), *places[0]],
        [("rf-late-by", "7"), *places[1]],
    ]
    categories = output_headers(pa.RecordBatch.from_pydict(columns), routes, CHUNKS, number)
    assert categories == [[("a", b"1")], *places]


def test_a_conflict_says_what_was_compared() -> None:
    columns = {
        "headers": pa.array([[("a", b"1")], None, None], HEADERS),
        "first": pa.array([None, "t/0/5", "t/0/5"], pa.string()),
    }
    routes, number = codes(Route.UNIQUE, Route.CONFLICT, Route.DUPLICATE), np.array([0, 0, 1])
    records = pa.RecordBatch.from_pydict(columns)
    assert output_headers(records, routes, CHUNKS, number, ("amount", "currency")) == [
        [("a", b"1")],
        [("rf-first", "t/0/5"), ("rf-conflict", "amount, currency")],
        [("rf-first", "t/0/5")],
    ]
    bare = pa.RecordBatch.from_pydict({"offset": pa.array([4, 5, 6])})
    conflict = [("rf-conflict", "@value")]
    assert output_headers(bare, routes, CHUNKS, number, ("@value",)) == [None, conflict, None]
    long = output_headers(bare, routes, CHUNKS, number, ("a" * 400,) * 9)
    assert long is not None
    assert long[1] == [("rf-conflict", ", ".join(["a" * 400] * 9)[:500])], "topics have room for no more"


def test_the_stamp_that_a_record_came_with_is_replaced() -> None:
    own = [None, [("x", b"1")], [("rf-stamp", b"a"), ("x", b"1"), ("rf-stamp", b"b")]]
    assert replace_stamps(own, [b"1", b"2", b"3"]) == [  # type: ignore[arg-type]
        [("rf-stamp", b"1")], [("x", b"1"), ("rf-stamp", b"2")], [("x", b"1"), ("rf-stamp", b"3")]
    ]  # fmt: skip


@pytest.mark.parametrize("watermark_us", [UNKNOWN, 5])
def test_the_watermark_that_a_record_came_with_is_replaced(watermark_us: int) -> None:
    ours = [] if watermark_us == UNKNOWN else [(WATERMARK_HEADER, "5"), (SERVICE_HEADER, "us")]
    theirs = [(WATERMARK_HEADER, b"9"), (SERVICE_HEADER, b"them")]
    own = [None, [("x", b"1")], [*theirs, ("x", b"1")], theirs]
    expected = [ours or None, [("x", b"1"), *ours], [("x", b"1"), *ours], ours or None]
    assert replace_watermark(own, watermark_us, "us") == expected  # type: ignore[arg-type]
