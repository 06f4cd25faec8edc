"""The headers of output records: the records' own, and those that the service adds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.routing import Route
from replayfilter.core.watermark.carried import SERVICE_HEADER, WATERMARK_HEADER
from replayfilter.spark.error_reasons import JUMP_MESSAGE, future_message
from replayfilter.spark.output_headers import output_headers, replace_watermark

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def codes(*routes: Route) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.array(routes, np.uint8)


def test_records_without_headers_stay_without() -> None:
    records = pa.RecordBatch.from_pydict({"offset": [1, 2]})
    assert output_headers(records, codes(Route.UNIQUE, Route.DUPLICATE)) is None


def test_what_is_added_comes_after_the_records_own_headers() -> None:
    message = future_message(700_000, 600_000, 0)
    records = pa.RecordBatch.from_pydict(
        {
            "headers": pa.array([[("a", b"1")], None, None, [("a", None)], [("b", b"")]], HEADERS),
            "reason": pa.array([None, "json", None, None, None], pa.string()),
            "message": pa.array([None, "not JSON", message, None, None], pa.string()),
            "first": pa.array([None, None, None, None, "t/0/5"], pa.string()),
        }
    )
    routes = codes(Route.UNIQUE, Route.ERROR, Route.FUTURE, Route.JUMP, Route.DUPLICATE)
    assert output_headers(records, routes) == [
        [("a", b"1")],
        [("rf-reason", "json"), ("rf-message", "not JSON"), ("rf-stage", "decode")],
        [("rf-reason", "future"), ("rf-message", message), ("rf-stage", "route")],
        [("a", None), ("rf-reason", "jump"), ("rf-message", JUMP_MESSAGE), ("rf-stage", "route")],
        [("b", b""), ("rf-first", "t/0/5")],
    ]
    assert message == (
        "expiry key 700000 is above 600000, the batch time 1970-01-01T00:00:00.000+00:00 plus max_future"
    )


@pytest.mark.parametrize("watermark_us", [UNKNOWN, 5])
def test_the_watermark_that_a_record_came_with_is_replaced(watermark_us: int) -> None:
    ours = [] if watermark_us == UNKNOWN else [(WATERMARK_HEADER, "5"), (SERVICE_HEADER, "us")]
    theirs = [(WATERMARK_HEADER, b"9"), (SERVICE_HEADER, b"them")]
    own = [None, [("x", b"1")], [*theirs, ("x", b"1")], theirs]
    expected = [ours or None, [("x", b"1"), *ours], [("x", b"1"), *ours], ours or None]
    assert replace_watermark(own, watermark_us, "us") == expected  # type: ignore[arg-type]
