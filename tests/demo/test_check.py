"""The demo's check of the output topics; no Spark and no Kafka.

A check that can't fail proves nothing: most of these tests give `compare` topics that are wrong in one way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from replayfilter.demo.check import ConsumerRecord, Verdict, compare
from replayfilter.demo.stream import OUTPUTS, STAMP, expected_routes, generate

END_MS = 1_760_000_000_000
STREAM = generate(6_000, end_ms=END_MS)
EXPECTED = expected_routes(STREAM, end_ms=END_MS)
PIDS = {route: 42 + number for number, route in enumerate(OUTPUTS)}
NAMES = ("topic", "partition", "offset")
Outputs = dict[str, list[ConsumerRecord]]


def perfect_outputs() -> Outputs:
    outputs: Outputs = {route: [] for route in OUTPUTS}
    for record, (route, reason, first) in zip(STREAM, EXPECTED, strict=True):
        if route == "replay":
            continue
        headers = list(record.headers)
        if route == "error":
            headers += [("rf-reason", reason.encode()), ("rf-message", b"..."), ("rf-stage", b"decode")]
            headers += [("__connect.errors.exception.message", b"...")]
        if route == "expired":
            headers += [("rf-late-by", b"9")]
        if route in ("error", "expired"):
            place = (b"orders", b"%d" % record.partition, b"%d" % record.offset)
            headers += [(f"__connect.errors.{name}", value) for name, value in zip(NAMES, place, strict=True)]
        if first:
            headers += [("rf-first", b"orders/%d/%d" % first)]
        key = STAMP.pack(PIDS[route], record.partition, record.offset)
        outputs[route].append(
            ConsumerRecord(record.partition, key, record.value, record.timestamp_ms, headers)
        )
    return outputs


def check(outputs: Outputs) -> dict[str, Verdict]:
    return compare(STREAM, EXPECTED, outputs)


def problems(outputs: Outputs) -> str:
    return "\n".join(problem for verdict in check(outputs).values() for problem in verdict.problems)


def test_right_topics_pass() -> None:
    verdicts = check(perfect_outputs())
    assert all(verdict.ok for verdict in verdicts.values())
    assert sum(verdict.expected for verdict in verdicts.values()) == len(STREAM)


def lose(outputs: Outputs) -> None:
    del outputs["unique"][100]


def repeat(outputs: Outputs) -> None:
    outputs["duplicate"].insert(11, outputs["duplicate"][10])


def swap(outputs: Outputs) -> None:
    rows = [i for i, row in enumerate(outputs["unique"]) if row.partition == 2]
    a, b = rows[5], rows[6]
    outputs["unique"][a], outputs["unique"][b] = outputs["unique"][b], outputs["unique"][a]


def move_to_another_topic(outputs: Outputs) -> None:
    outputs["unique"].append(outputs["expired"].pop())


def deliver_a_replay(outputs: Outputs) -> None:
    index = next(i for i, (route, *_) in enumerate(EXPECTED) if route == "replay")
    record = STREAM[index]
    key = STAMP.pack(42, record.partition, record.offset)
    row = ConsumerRecord(record.partition, key, record.value, record.timestamp_ms, record.headers)
    before = [STAMP.unpack(out.key or b"")[1:] < (row.partition, record.offset) for out in outputs["unique"]]
    outputs["unique"].insert(len(before) - before[::-1].index(True), row)


def change(route: str, at: int = 3, **fields: Any) -> Callable[[Outputs], None]:
    def change(outputs: Outputs) -> None:
        outputs[route][at] = outputs[route][at]._replace(**fields)

    return change


WITH_HEADERS = next(i for i, row in enumerate(perfect_outputs()["unique"]) if len(row.headers) == 5)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lose, "is in no topic"),
        (repeat, "was delivered twice"),
        (swap, "comes after"),
        (move_to_another_topic, "is in unique and should be in expired"),
        (deliver_a_replay, "is in unique and should be in replay"),
        (change("unique", value=b"{}"), "has the value"),
        (change("error", value=b"changed"), "has the value"),
        (change("unique", timestamp_ms=0), "has the timestamp"),
        (change("unique", partition=9), "is in partition 9"),
        (change("unique", key=b"user-1"), "is no stamp"),
        (change("unique", key=STAMP.pack(42, 0, 10**9)), "was never published"),
        (change("unique", at=9, key=STAMP.pack(99, 0, 0)), "is stamped with pid"),
        (change("unique", at=WITH_HEADERS, headers=[]), "has the headers"),
        (change("unique", at=WITH_HEADERS, headers=[("extra", b"1")]), "has the headers"),
        (
            lambda outputs: outputs["unique"][WITH_HEADERS].headers.reverse(),
            "has the headers",
        ),
        (lambda outputs: outputs["unique"][3].headers.append(("rf-reason", b"x")), "has the added headers"),
        (lambda outputs: outputs["error"][3].headers.pop(), "has the added headers"),
        (lambda outputs: outputs["error"].clear(), "is in no topic"),
        (lambda outputs: outputs.pop("expired"), "is in no topic"),
    ],
)
def test_a_wrong_topic_is_reported(damage: Callable[[Outputs], None], problem: str) -> None:
    outputs = perfect_outputs()
    damage(outputs)
    assert not all(verdict.ok for verdict in check(outputs).values())
    assert problem in problems(outputs)


def test_a_wrong_reason_is_reported() -> None:
    outputs = perfect_outputs()
    row = outputs["error"][0]
    row.headers[row.headers.index(("rf-stage", b"decode")) - 2] = ("rf-reason", b"other")
    assert "has the reason b'other'" in problems(outputs)


@pytest.mark.parametrize("route", ["error", "expired"])
@pytest.mark.parametrize("name", ["partition", "offset"])
def test_a_wrong_place_is_reported(route: str, name: str) -> None:
    outputs = perfect_outputs()
    row = outputs[route][0]
    row.headers[NAMES.index(name) - 3] = (f"__connect.errors.{name}", b"77")
    assert "names another place in the input" in problems(outputs)


def test_a_wrong_first_record_is_reported() -> None:
    outputs = perfect_outputs()
    outputs["duplicate"][7].headers[-1] = ("rf-first", b"orders/0/999999")
    assert "but the first record is" in problems(outputs)


def test_one_pid_in_two_topics_is_reported() -> None:
    """Readers of both topics would drop the records of one as replays."""
    outputs = perfect_outputs()
    for at, row in enumerate(outputs["duplicate"]):
        _, partition, offset = STAMP.unpack(row.key or b"")
        outputs["duplicate"][at] = row._replace(key=STAMP.pack(PIDS["unique"], partition, offset))
    assert "is stamped with pid" in problems(outputs)
