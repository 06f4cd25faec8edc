"""A schema registry on a real socket: which answers are record errors, and which stop the service."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.common.serde import SchemaId

from replayfilter.core.digest import digest_key
from replayfilter.errors import RegistryError, UnknownSchemas
from replayfilter.formats import (
    AvroSpec,
    Extractor,
    KeySpec,
    Reason,
    RecordColumns,
    build_extractor,
)
from replayfilter.formats import registry as registry_module
from replayfilter.formats.spec import MAX_UNKNOWN
from tests.support.extractions import confluent, digests, encoded, reasons
from tests.support.registry_server import FAST_RETRIES, RegistryServer, guid_of

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "ts", "type": "long"}],
}


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        yield running


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "RETRY_SECONDS", 0.0)


def extractor(url: str, unknown: tuple[int, ...] = (), **options: str) -> Extractor:
    given = FAST_RETRIES | {name.replace("_", "."): value for name, value in options.items()}
    return build_extractor(
        KeySpec("avro", ("id",), "ts", "ms", AvroSpec("confluent", url, tuple(given.items()), (), unknown))
    )


def order(name: str, ts: int = 5, id_: int = 1) -> bytes:
    return confluent(ORDER, {"id": name, "ts": ts}, id_)


def test_each_schema_is_requested_once(server: RegistryServer) -> None:
    server.add(1, ORDER)
    extract = extractor(server.url)
    for _ in range(3):
        result = extract(RecordColumns([order("a"), order("b"), None, order("a", 7)]))
        assert reasons(result) == [(2, "empty")]
        assert result.expiry.tolist() == [5, 5, 0, 7]
        assert digests(result)[0] == digests(result)[3] == digest_key(["a"])
    assert server.requests == ["/schemas/ids/1"]


def test_each_record_is_read_with_its_own_schema(server: RegistryServer) -> None:
    server.add(1, ORDER)
    later = ORDER | {"fields": [
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "id", "type": {"type": "enum", "name": "Id", "symbols": ["a", "b"]}},
    ]}  # fmt: skip
    server.add(9, later)
    server.add(2, ORDER | {"fields": ORDER["fields"][1:]})
    values = [
        order("a"),
        confluent(later, {"note": "x", "ts": 7_999, "id": "a"}, 9),
        order("b"),
        confluent({**ORDER, "fields": ORDER["fields"][1:]}, {"ts": 1}, 2),
        confluent(later, {"note": None, "ts": 8_000, "id": "b"}, 9),
    ]
    result = extractor(server.url)(RecordColumns(values))
    assert reasons(result) == [(3, "key")]
    assert result.expiry.tolist() == [5, 7, 5, 0, 8]
    assert [digests(result)[i] for i in (0, 1, 2, 4)] == [digest_key([key]) for key in "aabb"]


def test_an_id_that_is_recorded_as_unknown_is_a_record_error(server: RegistryServer) -> None:
    """The registry is not asked, so it does not matter whether it knows the id by now."""
    server.add(1, ORDER)
    server.add(7, ORDER)
    result = extractor(server.url, unknown=(7,))(
        RecordColumns([order("a", id_=7), order("a"), order("b", id_=-1)])
    )
    assert reasons(result) == [(0, "avro_schema"), (2, "avro_schema")]
    assert "no schema with the id 7" in result.errors[0].message
    assert server.requests == ["/schemas/ids/1"]


def test_an_unknown_id_has_to_be_recorded_first(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(1, ORDER)
    extract = extractor(server.url)
    for _ in range(2):
        with pytest.raises(UnknownSchemas) as found:
            extract(RecordColumns([order("a", id_=7), order("a"), order("b", id_=-1), order("c", id_=9)]))
        assert found.value.ids == {7, 9}
    assert server.requests.count("/schemas/ids/7") == 2, "requested twice, then remembered as unknown"
    assert "/schemas/ids/-1" not in server.requests
    server.add(7, ORDER)
    later = time.monotonic() + 31
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert reasons(extract(RecordColumns([order("a", id_=7)]))) == []


def test_an_id_that_the_registry_gets_late(server: RegistryServer) -> None:
    server.add(1, ORDER)
    server.late[1] = 1
    assert reasons(extractor(server.url)(RecordColumns([order("a")]))) == []


def test_many_unknown_ids_are_requested_once(server: RegistryServer) -> None:
    with pytest.raises(UnknownSchemas):
        extractor(server.url)(RecordColumns([order("a", id_=id_) for id_ in range(17)]))
    assert len(server.requests) == 17


def test_values_that_are_not_avro_are_errors_at_once_when_many_ids_are_recorded(
    server: RegistryServer,
) -> None:
    values = [order("a", id_=id_) for id_ in range(MAX_UNKNOWN + 5)]
    with pytest.raises(UnknownSchemas) as found:
        extractor(server.url)(RecordColumns(values))
    assert found.value.ids == set(range(MAX_UNKNOWN))
    result = extractor(server.url, unknown=tuple(range(MAX_UNKNOWN)))(RecordColumns(values))
    assert reasons(result) == [(row, "avro_schema") for row in range(len(values))]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_failing_registry_is_tried_again(server: RegistryServer, status: int) -> None:
    server.add(1, ORDER)
    server.fail_with = [status] * 6
    assert reasons(extractor(server.url)(RecordColumns([order("a")]))) == []
    assert len(server.requests) == 7


@pytest.mark.parametrize(
    ("status", "words"),
    [(503, "HTTP 503"), (401, "credentials"), (403, "credentials"), (400, "HTTP 400"), (501, "HTTP 501")],
)
def test_a_registry_that_refuses_stops_the_task(server: RegistryServer, status: int, words: str) -> None:
    server.add(1, ORDER)
    server.fail_with = [status] * 7
    extract = extractor(server.url)
    with pytest.raises(RegistryError, match=words):
        extract(RecordColumns([order("a")]))
    server.fail_with = []
    assert reasons(extract(RecordColumns([order("a")]))) == [], "it works again when the registry is back"


def test_a_registry_that_is_down_stops_the_task() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(RegistryError, match=r"no answer for schema 1 \(ConnectError.*nothing is lost"):
            extractor(url)(RecordColumns([order("a")]))


def test_a_registry_that_never_answers_stops_the_task(server: RegistryServer) -> None:
    server.fail_with = [0] * 5
    with pytest.raises(RegistryError, match="Timeout"):
        extractor(server.url, timeout="0.1", max_retries="1")(RecordColumns([order("a")]))
    assert len(server.requests) == 2


def test_the_next_address_is_tried_when_one_is_down(server: RegistryServer) -> None:
    server.add(1, ORDER)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        down = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert reasons(extractor(f"{down}, {server.url}", max_retries="1")(RecordColumns([order("a")]))) == []


def test_an_address_that_is_no_registry_stops_the_task(server: RegistryServer) -> None:
    """Such a 404 does not mean that the id is unknown, so no record may become an error for it."""
    with pytest.raises(RegistryError, match="HTTP 404"):
        extractor(f"{server.url}/wrong/path")(RecordColumns([order("a")]))


def test_credentials(server: RegistryServer) -> None:
    server.add(1, ORDER)
    server.users = {"me": "hunter2"}
    right = extractor(server.url, basic_auth_user_info="me:hunter2")
    assert reasons(right(RecordColumns([order("a")]))) == []
    with pytest.raises(RegistryError) as caught:
        extractor(server.url, basic_auth_user_info="me:hunter3")(RecordColumns([order("a")]))
    assert "HTTP 401" in str(caught.value)
    assert "hunter" not in str(caught.value)


def in_header(id_: int) -> list[tuple[str, bytes | None]]:
    """The header as Confluent's client writes it."""
    return [("__value_schema_id", SchemaId("AVRO", id_, str(guid_of(id_))).guid_to_bytes())]


def test_guids_in_headers(server: RegistryServer) -> None:
    """They win over a prefix, since a value without one may begin with the same bytes."""
    zeros = ORDER | {"fields": [{"name": "ts", "type": "long"}, {"name": "id", "type": "string"}]}
    server.add(1, ORDER)
    server.add(2, zeros)
    bare = encoded(zeros, {"ts": 0, "id": "aaaa"})
    assert bare.startswith(b"\0")
    values = [order("aaaa"), bare, encoded(ORDER, {"id": "aaaa", "ts": 7}), order("b")]
    headers = [None, in_header(2), [("x", b"1"), *in_header(1)], [("__value_schema_id", b"\1cut short")]]
    result = extractor(server.url)(RecordColumns(values, headers=headers))
    assert reasons(result) == []
    assert result.expiry.tolist() == [5, 0, 7, 5]
    assert digests(result)[:3] == [digest_key(["aaaa"])] * 3
    paths = [f"/schemas/guids/{guid_of(1)}", f"/schemas/guids/{guid_of(2)}", "/schemas/ids/1"]
    assert sorted(server.requests) == sorted(paths)


def test_an_unknown_guid_has_to_be_recorded_first(server: RegistryServer) -> None:
    columns = RecordColumns([encoded(ORDER, {"id": "a", "ts": 7})], headers=[in_header(1)])
    with pytest.raises(UnknownSchemas) as found:
        extractor(server.url)(columns)
    assert found.value.ids == {guid_of(1).int}
    server.add(1, ORDER)
    (error,) = extractor(server.url, unknown=(guid_of(1).int,))(columns).errors
    assert error.reason == Reason.AVRO_SCHEMA
    assert f"no schema with the id {guid_of(1)}" in error.message


def test_a_registry_without_guids_stops_the_task(server: RegistryServer) -> None:
    columns = RecordColumns([encoded(ORDER, {"id": "a", "ts": 7})], headers=[in_header(1)])
    with pytest.raises(RegistryError, match=r"HTTP 404 .* knows GUIDs"):
        extractor(f"{server.url}/old")(columns)


def test_references_to_other_schemas(server: RegistryServer) -> None:
    city = {"type": "record", "name": "geo.City", "fields": [{"name": "code", "type": "string"}]}
    address = {"type": "record", "name": "geo.Address", "fields": [{"name": "city", "type": "geo.City"}]}
    whole = {"type": "record", "name": "Order", "fields": [
        {"name": "from", "type": "geo.Address"}, {"name": "to", "type": "geo.Address"},
        {"name": "via", "type": ["null", "geo.City"]}, {"name": "ts", "type": "long"},
    ]}  # fmt: skip
    server.add(1, city)
    server.add(2, address, ({"name": "geo.City", "subject": "s1", "version": 1},))
    references = tuple(
        {"name": f"geo.{n}", "subject": f"s{i}", "version": 1} for n, i in (("Address", 2), ("City", 1))
    )
    server.add(3, whole, references)
    named: dict[str, Any] = {}
    for schema in (city, address):
        fastavro.parse_schema(schema, named_schemas=named)
    location = {"city": {"code": "LHR"}}
    value = confluent(whole, {"from": location, "to": location, "via": {"code": "CDG"}, "ts": 3}, 3, **named)
    spec = AvroSpec("confluent", server.url, tuple(FAST_RETRIES.items()))
    extract = build_extractor(KeySpec("avro", ("to.city.code", "via.code"), "ts", "ms", spec))
    result = extract(RecordColumns([value]))
    assert reasons(result) == []
    assert digests(result) == [digest_key(["LHR", "CDG"])]
    assert sorted(server.requests) == [
        "/schemas/ids/3", "/subjects/s1/versions/1?deleted=true", "/subjects/s2/versions/1?deleted=true",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "more", "words"),
    [
        ("syntax", {"schemaType": "PROTOBUF"}, "of the type PROTOBUF"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "Nowhere"}]}, {}, "UnknownType"),
        ({"type": "recrod", "name": "R"}, {}, "not an Avro schema"),
        (5, {}, "not an Avro schema"),
    ],
)
def test_schemas_that_cannot_be_used(
    server: RegistryServer, schema: object, more: dict[str, Any], words: str
) -> None:
    server.add(1, schema, **more)
    server.add(2, ORDER)
    result = extractor(server.url)(RecordColumns([order("a"), order("a", id_=2)]))
    assert [(error.row, error.reason) for error in result.errors] == [(0, Reason.AVRO_SCHEMA)]
    assert words in result.errors[0].message


def test_the_mock_registry_of_the_client_works_too() -> None:
    """``mock://`` is the test double of confluent-kafka."""
    url = "mock://test-registry"
    client = SchemaRegistryClient.new_client({"url": url})
    extract = extractor(url, unknown=(99,))
    id_ = client.register_schema("orders-value", Schema(json.dumps(ORDER)))
    extract._reader._schemas._client = client  # type: ignore[attr-defined]  # mock clients don't share schemas
    assert reasons(extract(RecordColumns([order("a", id_=id_), order("a", id_=99)]))) == [(1, "avro_schema")]
