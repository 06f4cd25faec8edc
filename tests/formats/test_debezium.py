"""Change events of Debezium: the messages of its documentation, written once and again by a connector."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from replayfilter.errors import ConfigError
from replayfilter.formats import Extraction, KeySpec, RecordColumns, build_extractor
from replayfilter.formats.debezium import EXPIRY_KEY, KEY, UNIT
from tests.support.extractions import digests, reasons
from tests.support.paths import ROOT

Event = dict[str, Any]
PAGE = json.loads((ROOT / "tests" / "vectors" / "debezium.json").read_text("utf-8"))
MESSAGES: list[Event] = [sample["value"] for sample in PAGE["samples"]]
ZERO = bytes(16)


def extract(
    *records: Event | bytes | None, keys: tuple[bytes | None, ...] = (), **changes: Any
) -> Extraction:
    """Extract records, each with a key unless ``keys`` are given."""
    values = [json.dumps(each).encode() if isinstance(each, dict) else each for each in records]
    spec = KeySpec("debezium", KEY, EXPIRY_KEY, UNIT, on_null="unique")
    return build_extractor(spec)(RecordColumns(values, keys or (b"k",) * len(values), **changes))


def message(connector: str, op: str) -> Event:
    """A streamed change of a connector, from the documentation."""
    for each in MESSAGES:
        payload = each["payload"]
        if payload["source"].get("connector") == connector and payload["op"] == op:
            found = copy.deepcopy(each)
            found["payload"]["source"]["snapshot"] = "false"
            return found
    raise LookupError(f"{connector} {op}")


def changed(event: Event, **changes: Any) -> Event:
    """A copy with other members of the envelope; ``source`` is merged."""
    found = copy.deepcopy(event)
    source = found["payload"]["source"] | changes.pop("source", {})
    found["payload"] |= changes | {"source": source}
    return found


def again(event: Event) -> Event:
    """The same event as a connector writes it that was upgraded and started again."""
    return changed(
        event,
        ts_ms=1_900_000_000_000,
        ts_us=1_900_000_000_000_000,
        transaction={"id": "5", "total_order": 9, "data_collection_order": 1},
        source={"version": "9.9.9.Final", "sequence": '["1","24023128"]', "xmin": 7},
    )


def streamed() -> Iterator[Event]:
    return (each for each in MESSAGES if each["payload"]["source"].get("snapshot") is not True)


def test_every_event_of_the_documentation_has_a_key_of_its_own() -> None:
    events = [each for each in streamed() if each["payload"]["source"].get("txnNumber") is None]
    assert len(events) >= 14
    result = extract(*events)
    assert (reasons(result), result.nulls) == ([], [])
    found = digests(result)
    assert len(set(found)) == len(events)
    assert ZERO not in found
    assert result.expiry.tolist() == [each["payload"]["source"]["ts_ms"] for each in events]


def test_an_event_that_is_written_again_has_the_same_key() -> None:
    events = [each for each in streamed() if each["payload"]["source"].get("txnNumber") is None]
    assert digests(extract(*events)) == digests(extract(*map(again, events)))


def test_with_and_without_schemas() -> None:
    event = message("mysql", "u")
    both = extract(event, event["payload"])
    assert len(set(digests(both))) == 1
    assert both.expiry.tolist() == [event["payload"]["source"]["ts_ms"]] * 2


def test_rows_at_other_places_in_the_log_are_other_events() -> None:
    mysql, postgres, server = (message(name, "u") for name in ("mysql", "postgresql", "sqlserver"))
    for event, others in (
        (mysql, [{"row": 1}, {"pos": 485}, {"file": "mysql-bin.000004"}, {"server_id": 1}, {"name": "x"}]),
        (postgres, [{"lsn": 1}, {"txId": 1}, {"table": "x"}, {"db": "x"}]),
        (server, [{"change_lsn": "0"}, {"commit_lsn": "0"}, {"event_serial_no": "1"}]),
    ):
        events = [event, *(changed(event, source=source) for source in others)]
        assert len(set(digests(extract(*events)))) == len(events)


def test_one_place_may_have_several_events() -> None:
    """A changed primary key is a delete and a create; PostgreSQL gives the rows of an insert one LSN."""
    before, after = {"id": 1}, {"id": 2}
    create = message("postgresql", "u")
    events = [
        changed(create, op="d", before=before, after=None),
        changed(create, op="c", before=None, after=after),
        changed(create, op="c", before=None, after={"id": 3}),
    ]
    assert len(set(digests(extract(*events)))) == 3
    assert len(set(digests(extract(events[0], events[0], keys=(b"1", b"2"))))) == 2


@pytest.mark.parametrize(
    "snapshot",
    [True, "true", "first", "first_in_data_collection", "last", "last_in_data_collection", "incremental"],
)
def test_records_of_snapshots_pass(snapshot: object) -> None:
    event = changed(message("postgresql", "u"), op="r", source={"snapshot": snapshot, "ts_ms": None})
    result = extract(event, event, message("postgresql", "u"))
    assert (result.nulls, reasons(result)) == ([0, 1], [])
    assert (digests(result)[:2], result.expiry[:2].tolist()) == ([ZERO, ZERO], [0, 0])


@pytest.mark.parametrize("snapshot", [False, "false", None])
def test_streamed_records_do_not(snapshot: object) -> None:
    event = changed(message("postgresql", "u"), source={"snapshot": snapshot})
    assert extract(event).nulls == []
    del event["payload"]["source"]["snapshot"]
    assert extract(event).nulls == []


def test_records_without_a_key_pass_where_rows_have_no_number() -> None:
    for connector, passes in (
        ("mysql", []),
        ("mariadb", []),
        ("sqlserver", []),
        ("postgresql", [1]),
        ("other", [1]),
    ):
        event = changed(message("mysql", "c"), source={"connector": connector})
        result = extract(event, event, keys=(b"1", None))
        assert (result.nulls, reasons(result)) == (passes, []), connector


def test_changes_in_a_transaction_of_mongodb_pass() -> None:
    event = message("mongodb", "u")
    assert event["payload"]["source"]["txnNumber"] == 1
    alone = changed(event, source={"txnNumber": None, "lsid": None})
    described = changed(alone, updateDescription={"updatedFields": "{}"})
    result = extract(event, alone, described)
    assert result.nulls == [0]
    assert len(set(digests(result))) == 3


def test_tombstones_pass_and_others_are_errors() -> None:
    schema_change = {"payload": {"source": {"file": "f", "pos": 5, "ts_ms": 1}, "ddl": "ALTER TABLE t"}}
    flattened = {"id": 1, "name": "a", "__op": "c"}
    result = extract(
        None, b"", b"oops", schema_change, flattened, {"source": "x", "op": "c"}, {"payload": None},
        {"source": {"connector": "mysql"}, "op": "c"},
    )  # fmt: skip
    assert result.nulls == [0]
    assert reasons(result) == [
        (1, "empty"), (2, "json"), *((row, "debezium") for row in (3, 4, 5, 6)), (7, "expiry_missing")
    ]  # fmt: skip
    assert "expected a change event of Debezium" in result.errors[2].message


def test_what_json_can_write_in_several_ways() -> None:
    """The order of members makes no difference, and any value can be part of the key."""
    event = message("mysql", "c")
    turned = changed(event, after=dict(reversed(event["payload"]["after"].items())))
    assert list(turned["payload"]["after"]) != list(event["payload"]["after"])
    assert len(set(digests(extract(event, turned)))) == 1
    strange = [
        changed(event, after={"a": value}) for value in (2**70, 2**70 + 1, "\ud800", "\ud801", 1.5, [1, [2]])
    ]
    result = extract(*strange, *strange)
    assert reasons(result) == []
    found = digests(result)
    assert found[:6] == found[6:]
    assert len(set(found)) == 6


def test_columns_of_a_table_can_be_the_key() -> None:
    event = message("mysql", "u")
    spec = KeySpec("debezium", ("after.id", "source.pos"), "ts_ms", "ms", on_null="unique")
    result = build_extractor(spec)(RecordColumns([json.dumps(event).encode()], [b"k"]))
    assert reasons(result) == []
    assert result.expiry.tolist() == [event["payload"]["ts_ms"]]
    assert ZERO not in digests(result)


def test_a_column_named_payload_is_no_envelope() -> None:
    event = message("mysql", "c")["payload"] | {"payload": {"source": {"connector": "x"}, "op": "d"}}
    assert extract(event).expiry.tolist() == [event["source"]["ts_ms"]]


def test_null_values_must_pass() -> None:
    with pytest.raises(ConfigError, match="on_null"):
        build_extractor(KeySpec("debezium", KEY, EXPIRY_KEY, UNIT))
