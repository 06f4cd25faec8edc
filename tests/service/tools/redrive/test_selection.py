"""Which dead letters are chosen."""

from __future__ import annotations

import pytest

from replayfilter.errors import ConfigError
from replayfilter.service.tools.redrive.dead_letter import DeadLetter
from replayfilter.service.tools.redrive.request import Done, Request
from replayfilter.service.tools.redrive.selection import Summary, parse_selection

Headers = dict[str, bytes | None]


def letter(
    offset: int = 0, at_ms: int = 1_000, reason: str = "json", headers: Headers | None = None
) -> DeadLetter:
    given = [*(headers or {}).items(), ("rf-reason", reason.encode()), ("rf-message", b"why")]
    return DeadLetter(0, offset, at_ms, None, b"", given)


def test_all_conditions_must_hold() -> None:
    selection = parse_selection(
        ["json", "key"], "1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z", ["team=shop", "trace"]
    )
    right: Headers = {"team": b"shop", "trace": None}
    assert selection.takes(letter(headers=right))
    assert selection.takes(letter(at_ms=1_999, reason="key", headers=right))
    assert not selection.takes(letter(reason="future", headers=right))
    assert not selection.takes(letter(at_ms=999, headers=right))
    assert not selection.takes(letter(at_ms=2_000, headers=right))
    assert not selection.takes(letter(at_ms=-1, headers=right))
    assert not selection.takes(letter(headers={"team": b"Shop", "trace": b""}))
    assert not selection.takes(letter(headers={"team": b"shop"}))


def test_without_conditions_everything_is_chosen() -> None:
    assert parse_selection([], None, None, []).takes(DeadLetter(0, 0, -1, None, None, []))


def test_the_last_reason_counts() -> None:
    redriven = DeadLetter(0, 0, 1, None, None, [("rf-reason", b"key"), ("rf-reason", b"json")])
    assert parse_selection(["json"], None, None, []).takes(redriven)
    assert not parse_selection(["key"], None, None, []).takes(redriven)


def test_wrong_options_are_all_reported_with_a_remedy() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_selection(["jason", "key"], "yesterday", None, ["=x"])
    errors = caught.value.errors
    assert [error.split(":")[0] for error in errors] == ["--reason jason", "--since yesterday", "--header =x"]
    assert "json, not_object" in errors[0]
    with pytest.raises(ConfigError, match="expired records have no reason"):
        parse_selection(["json"], None, None, [], expired=True)
    with pytest.raises(ConfigError, match="--until 1000: not after --since 2000; correct one"):
        parse_selection([], "2000", "1000", [])


def test_a_request_is_read_back_from_what_a_job_committed() -> None:
    selection = parse_selection(["json"], "1000", None, ["team=a b", "trace"])
    request = Request("error", selection, "again", 5, "second")
    assert Done.of([Done(7, 2, 99, request).to_text()]) == Done(7, 2, 99, request)
    assert request.describe() == (
        "--from error --reason json --since 1000 --header 'team=a b' --header trace --to again "
        "--max-redriven 5 --job second"
    )
    assert Done.of(["", "first", "{}", '{"written":1}']) == Done()


def test_a_summary_counts_by_reason_and_partition() -> None:
    summary = Summary()
    summary.add("json", letter(4, at_ms=-1), "orders")
    summary.add("json", letter(7, at_ms=30), "orders")
    summary.add("key", letter(9, at_ms=20, reason="key"), "refunds")
    assert (summary.written, summary.destinations) == (3, {"orders": 2, "refunds": 1})
    group = summary.groups["json", 0]
    assert (group.records, group.first_offset, group.last_offset) == (2, 4, 7)
    assert (group.oldest_ms, group.newest_ms, group.example) == (30, 30, "why")
