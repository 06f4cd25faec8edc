"""Dead letters become again what they were: headers, keys and stamps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from replayfilter.core.frames import ChunkId
from replayfilter.core.routing import Route
from replayfilter.core.stamp import Stamp
from replayfilter.service.tools.own_stamps import Writing
from replayfilter.service.tools.redrive.dead_letter import DeadLetter, Restoring, StampPlace
from replayfilter.spark.output_headers import output_headers, replace_watermark

PIDS = {5: Writing("orders", "orders.error", 4)}
OWN = Stamp(5, 3, 41).to_bytes()  # of the service that wrote the dead letter
UPSTREAM = Stamp(77, 0, 9).to_bytes()
FRESH = Stamp(-8, 3, 1_000).to_bytes()
CAME_WITH = [("trace", b"t1"), ("__connect.errors.topic", b"elsewhere"), ("n", None), ("rf-reason", b"old")]


def letter(key: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> DeadLetter:
    return DeadLetter(3, 1_000, 1_700_000_000_000, key, b"value", [*headers])


def restoring(place: StampPlace) -> Restoring:
    return Restoring("error", place, PIDS, keep_unstamped=True)


def as_written(came_with: list[tuple[str, bytes | None]], route: Route) -> list[tuple[str, bytes | None]]:
    """The headers that the service writes to the error or expired topic, as bytes, as Kafka has them."""
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    records = pa.RecordBatch.from_pydict(
        {
            "headers": pa.array([came_with], kind),
            "reason": pa.array(["json"]),
            "message": pa.array(["not JSON"]),
            "late_by": pa.array(["1500"]),
            "offset": pa.array([41], pa.int64()),
        }
    )
    made = output_headers(
        records, np.array([route], np.uint8), [ChunkId("orders", 3, 40)], np.zeros(1, np.intp)
    )
    assert made is not None
    made = replace_watermark(made, 5_000_000, "orders")
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in made[0] or ()]


@pytest.mark.parametrize("route", [Route.ERROR, Route.EXPIRED])
def test_what_the_service_added_is_taken_back_and_what_the_record_came_with_stays(route: Route) -> None:
    dead = letter(UPSTREAM, as_written(CAME_WITH, route))
    assert len(dead.headers) > len(CAME_WITH)
    assert Restoring(route.name.lower(), "key", PIDS, True).restored(dead, FRESH) == (
        FRESH,
        [*CAME_WITH, ("rf-redriven", "1")],
    )


def test_the_count_goes_up_and_is_there_once() -> None:
    dead = letter(None, [("rf-redriven", b"1"), ("a", b"b"), ("rf-redriven", b"2"), ("rf-reason", b"json")])
    assert dead.times_redriven == 2
    assert restoring("header").restored(dead, FRESH)[1] == [
        ("a", b"b"),
        ("rf-stamp", FRESH),
        ("rf-redriven", "3"),
    ]
    assert letter(None, [("rf-redriven", b"many")]).times_redriven == 0


@pytest.mark.parametrize(
    ("place", "key", "keep", "expected"),
    [
        ("key", OWN, True, FRESH),  # output.stamp = "key"
        ("key", UPSTREAM, True, FRESH),  # below the mark by now
        ("key", b"user-1", True, b"user-1"),  # replay.on_invalid = "pass": as it was
        ("key", None, True, None),
        ("key", b"user-1", False, FRESH),  # replay.on_invalid = "error": it would be an error again
        ("key", None, False, FRESH),
        ("header", b"user-1", True, b"user-1"),
        ("header", OWN, True, None),  # its own key is gone
        ("none", UPSTREAM, True, UPSTREAM),  # 20 bytes, but nobody reads it as a stamp
        ("none", OWN, True, None),
    ],
)
def test_keys(place: StampPlace, key: bytes | None, keep: bool, expected: bytes | None) -> None:
    assert Restoring("error", place, PIDS, keep).restored(letter(key, []), FRESH)[0] == expected


@pytest.mark.parametrize(
    ("place", "stamps", "expected"),
    [
        ("header", [UPSTREAM], [FRESH]),
        ("header", [UPSTREAM, OWN], [FRESH]),
        ("header", [b"no stamp"], [FRESH]),
        ("key", [UPSTREAM], [UPSTREAM]),  # nobody here reads it: it is passed on
        ("key", [OWN], []),  # output.stamp = "header"
        ("none", [OWN], []),
    ],
)
def test_stamps_in_headers(place: StampPlace, stamps: list[bytes], expected: list[bytes]) -> None:
    dead = letter(b"user-1", [("rf-stamp", stamp) for stamp in stamps])
    _, headers = restoring(place).restored(dead, FRESH)
    assert [value for name, value in headers if name == "rf-stamp"] == expected


def test_the_origin_is_that_of_the_stamp_or_of_the_headers() -> None:
    told = [("__connect.errors.topic", b"refunds"), ("__connect.errors.partition", b"7")]
    assert letter(OWN, told).origin(PIDS) == ("orders", 3)
    assert letter(b"user-1", [*told, ("rf-stamp", OWN)]).origin(PIDS) == ("orders", 3)
    assert letter(UPSTREAM, told).origin(PIDS) == ("refunds", 7)
    assert letter(UPSTREAM, told[:1]).origin(PIDS) is None
    assert letter(UPSTREAM, [told[0], ("__connect.errors.partition", b"\xb2")]).origin(PIDS) is None
    assert letter(None, []).origin(PIDS) is None
