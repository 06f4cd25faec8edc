"""Which fields are proposed as dedup key and expiry key."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from random import Random

import numpy as np

from replayfilter.core.digest import MISSING, digest_keys
from replayfilter.formats.candidates import KeyCandidate, key_candidates, time_candidates
from replayfilter.formats.expiry_keys import Instant

NOW_MS = 1_714_556_700_000
Columns = dict[str, Sequence[object]]


def keys_of(columns: Columns, times: Sequence[str] = ()) -> list[KeyCandidate]:
    contents = digest_keys(list(columns.values()))[:, 0]
    return key_candidates(columns, contents, times)


def with_repeats(columns: Columns, share: float = 0.05) -> Columns:
    """The same records, and some of them once more."""
    random, n = Random(3), len(next(iter(columns.values())))
    again = random.sample(range(n), int(n * share))
    return {name: [*column, *(column[row] for row in again)] for name, column in columns.items()}


def best(columns: Columns, times: Sequence[str] = ()) -> tuple[str, ...]:
    return keys_of(columns, times)[0].fields


def test_the_key_that_only_whole_records_repeat() -> None:
    random = Random(1)
    columns: Columns = {
        "user_id": [random.randrange(50) for _ in range(1_000)],
        "amount": [Decimal(random.randrange(10**9)) / 100 for _ in range(1_000)],
        "item": [f"item {random.randrange(10**9)}" for _ in range(1_000)],
        "event_id": [f"e-{n}" for n in range(1_000)],
        "flag": [True] * 1_000,
    }
    found = keys_of(with_repeats(columns))
    assert found[0] == KeyCandidate(("event_id",), 50 / 1_050, 0.0)
    fields = [each.fields for each in found]
    assert ("amount",) not in fields, "a number with a fraction is no key"
    assert ("flag",) not in fields
    by_user = next(each for each in found if each.fields == ("user_id",))
    assert by_user.changed > 0.9
    assert fields[-1] == ("@value",)


def test_without_repeats_the_name_decides() -> None:
    columns: Columns = {
        name: list(range(100)) for name in ("seq", "order.id", "order_no", "trace.a.id", "id")
    }
    assert [each.fields[0] for each in keys_of(columns)][:5] == [
        "id",
        "order.id",
        "trace.a.id",
        "order_no",
        "seq",
    ]
    for own in ("eventId", "message-id", "uuid", "meta.eventID", "@header:idempotency-key"):
        assert best({"some_id": list(range(100)), own: list(range(100))}) == (own,)


def test_an_id_of_its_own_may_come_again_with_other_content() -> None:
    columns = with_repeats({"event_id": list(range(1_000)), "item": ["x"] * 1_000})
    columns["attempt_at"] = list(range(len(columns["item"])))
    assert best(columns, ["attempt_at"]) == ("event_id",)
    renamed: Columns = {
        "part": columns["event_id"],
        "item": columns["item"],
        "attempt_at": columns["attempt_at"],
    }
    assert best(renamed, ["attempt_at"]) == ("part", "attempt_at"), "nothing says that the part is all"


def test_fields_that_are_a_key_only_together() -> None:
    columns: Columns = {
        "sensor": [n % 20 for n in range(2_000)],
        "at": [NOW_MS + n // 20 for n in range(2_000)],
        "value": [Decimal(n % 17) / 4 for n in range(2_000)],
    }
    found = keys_of(with_repeats(columns), ["at"])
    assert set(found[0].fields) == {"sensor", "at"}
    assert found[0].changed == 0


def test_a_time_alone_is_no_key() -> None:
    columns: Columns = {"at": list(range(100)), "name": ["a", "b"] * 50}
    assert set(best(columns, ["at"])) == {"at", "name"}


def test_values_as_a_whole_when_nothing_else_will_do() -> None:
    columns: Columns = {"a": [n % 3 for n in range(100)], "b": [Decimal(n) / 7 for n in range(100)]}
    assert best(columns) == ("@value",)
    assert best({"a": [None, MISSING, *[1] * 98]}) == ("@value",)
    assert key_candidates({}, np.zeros(0, np.uint64), []) == [KeyCandidate(("@value",), 0.0, 0.0)]


def test_times_by_their_magnitude() -> None:
    stamps = np.full(3, NOW_MS)
    columns: Columns = {
        "born": [Instant((NOW_MS - 5 * 10**11) * 10**6)] * 3,
        "s": [NOW_MS // 1_000 - 60] * 3,
        "ms": [NOW_MS - 5] * 3,
        "us": [NOW_MS * 1_000 - 900_000] * 3,
        "ns": [NOW_MS * 10**6 - 2 * 10**9] * 3,
        "iso": ["2024-05-01T09:44:57.5Z", "2024-05-01T09:44:57+00:00", "2024-05-01T09:44:57Z"],
        "count": [5, 17, 30],
        "text": ["a", "b", "c"],
        "far": [NOW_MS * 10] * 3,
        "none": [None] * 3,
    }
    found = time_candidates(columns, stamps, NOW_MS)
    assert [(each.field, each.unit) for each in found] == [
        ("ms", "ms"), ("us", "us"), ("ns", "ns"), ("iso", "iso8601"), ("s", "s"), ("born", "ms")
    ]  # fmt: skip
    assert [each.distance_ms for each in found] == [5, 900, 2_000, 3_000, 60_000, 5 * 10**11]


def test_times_in_headers_and_in_finer_instants() -> None:
    columns: Columns = {
        "@header:at": [str(NOW_MS).encode()] * 100,
        "@header:iso": [b"2024-05-01T09:44:57Z"] * 100,
        "fine": [Instant(NOW_MS * 10**6 + 1_000)] * 100,
        "text": [str(NOW_MS)] * 100,
    }
    found = time_candidates(columns, np.full(100, NOW_MS), NOW_MS)
    units = {each.field: each.unit for each in found}
    assert units == {"@header:at": "ms", "@header:iso": "iso8601", "fine": "us"}


def test_a_few_records_without_a_time() -> None:
    few: Columns = {"at": [*[NOW_MS] * 99, None]}
    many: Columns = {"at": [*[NOW_MS] * 98, None, MISSING]}
    assert len(time_candidates(few, np.full(100, NOW_MS), NOW_MS)) == 1
    assert time_candidates(many, np.full(100, NOW_MS), NOW_MS) == []
