"""``replayfilter advise`` on a real broker, by its command line."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message_factory import GetMessages
from typer.testing import CliRunner

from replayfilter import StampingProducer
from replayfilter.service.cli.main import app
from replayfilter.service.config.loader import load
from tests.support.paths import ROOT
from tests.support.registry_server import RegistryServer, guid_of
from tests.support.topics import new_topic

START_MS = 1_714_556_700_000
HOUR_MS = 3_600_000


def advise(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["advise", *arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def orders(n: int, hours: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Timestamps and documents: each 20th comes again after ten minutes, each 200th after five hours."""
    step = hours * HOUR_MS // n
    for number in range(n):
        at = START_MS + number * step
        yield at, {"user": {"id": number % 40}, "order_id": f"o-{number}", "at": at, "total": number / 8}
        back = (5 * HOUR_MS if number % 200 == 0 else 600_000) // step
        if number % 20 == 0 and number >= back:
            before = START_MS + (number - back) * step
            yield (
                at,
                {
                    "user": {"id": (number - back) % 40},
                    "order_id": f"o-{number - back}",
                    "at": before,
                    "total": (number - back) / 8,
                },
            )


def publish(
    bootstrap: str, topic: str, records: Iterator[tuple[int, dict[str, Any]]], partitions: int
) -> int:
    producer, count = Producer({"bootstrap.servers": bootstrap}), 0
    for timestamp, document in records:
        value = json.dumps(document).encode()
        producer.produce(topic, value, str(document["user"]["id"]), count % partitions, timestamp=timestamp)
        count += 1
    producer.flush()
    return count


def row(output: str, period: str) -> list[str]:
    """The columns of the table's row for a period."""
    rows = (line.replace(">", "").split() for line in output.splitlines())
    (found,) = [columns[1:] for columns in rows if columns[:1] == [period]]
    return found


def test_orders_that_come_again(bootstrap: str, tmp_path: Path) -> None:
    topic = new_topic(bootstrap, "orders", 3)
    count = publish(bootstrap, topic, orders(6_000, 24), 3)
    path = tmp_path / "orders.toml"
    code, output = advise(topic, "--bootstrap", bootstrap, "--output", str(path))
    assert code == 0, output
    assert "format json, stamps none" in output
    assert "> order_id" in output
    assert "> at" in output
    repeats = count - 6_000
    assert f"{count:,} records read" in output
    assert f"{repeats:,} records repeat a key\n" in output, "and copies are equal"
    late = len(range(1_400, 6_000, 200))
    assert row(output, "1h")[:2] == row(output, "3h")[:2] == [f"{repeats - late:,}", f"{late}"]
    assert row(output, "6h")[:2] == [f"{repeats:,}", "0"]
    assert row(output, "6h")[-2:] == [f"{late}", f"{late}"]
    assert 'proposed: period = "6h", bucket_span = "30m"' in output
    config = load(path)
    assert (config.dedup.key, config.dedup.expiry_key, config.dedup.unit) == (["order_id"], "at", "ms")
    assert (config.dedup.period, config.dedup.bucket_span) == ("6h", "30m")
    assert (config.input.stamp, config.replay.enabled, config.output.stamp) == ("none", False, "header")
    checked = CliRunner().invoke(app, ["check", str(path)])
    assert checked.exit_code == 0, checked.output


def test_other_keys_and_a_smaller_sample(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "fewer", 2)
    publish(bootstrap, topic, orders(2_000, 24), 2)
    code, output = advise(
        topic, "--bootstrap", bootstrap, "--records", "500", "--key", "user.id", "--key", "total",
        "--expiry-key", "@timestamp",
    )  # fmt: skip
    assert code == 0, output
    assert "> user.id + total" in output
    assert "> @timestamp" in output
    read = int(output.split(" records read")[0].split()[-1].replace(",", ""))
    assert 450 <= read <= 550
    assert "--output FILE writes a config" in output
    assert row(output, "30d")[:2] == ["?", "?"], "the sample is too short to say"
    assert row(output, "30d")[2] != "?"


def test_stamped_records_and_their_replays(bootstrap: str, tmp_path: Path) -> None:
    topic = new_topic(bootstrap, "stamped")
    with StampingProducer({"bootstrap.servers": bootstrap}, topic, 7) as producer:
        for offset in [*range(200), *range(150, 300)]:
            if offset == 150:
                producer.begin_replay(0)
            document = {"id": offset % 290, "ts": START_MS + offset * 1_000}
            producer.produce(0, offset, json.dumps(document).encode(), timestamp_ms=START_MS + offset * 1_000)
    path = tmp_path / "stamped.toml"
    code, output = advise(topic, "--bootstrap", bootstrap, "--output", str(path))
    assert code == 0, output
    assert "stamps in the keys" in output
    assert "not counted below: 50 replays" in output
    assert "10 records repeat a key, 10 of them with other content" in output
    config = load(path)
    assert (config.input.stamp, config.replay.enabled, config.output.stamp) == ("key", True, "key")
    code, output = advise(topic, "--bootstrap", bootstrap, "--key", "@key")
    assert (code, "is its stamp" in output) == (2, True)


def test_avro_by_a_registry_with_a_password(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        ],
    }
    parsed = fastavro.parse_schema(schema)
    topic, path = new_topic(bootstrap, "avro"), tmp_path / "avro.toml"
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(100):
        stream = BytesIO(b"\0" + (7 if number < 98 else 8).to_bytes(4, "big"))
        stream.seek(5)
        fastavro.schemaless_writer(stream, parsed, {"id": str(number % 95), "at": START_MS * 1_000 + number})
        producer.produce(topic, stream.getvalue(), timestamp=START_MS)
    producer.flush()
    with RegistryServer() as registry:
        registry.add(7, schema)
        registry.users = {"me": "pass"}
        given = [topic, "--bootstrap", bootstrap, "--output", str(path), "--registry", registry.url]
        code, output = advise(*given, "--registry-option", "basic.auth.user.info=me:pass")
        assert code == 0, output
        assert "format avro" in output
        assert "not counted below: 2 errors (avro_schema)" in output
        assert "3 records repeat a key" in output
        assert "put basic.auth.user.info into the environment variable BASIC_AUTH_USER_INFO" in output
        assert "pass" not in path.read_text().replace("null values pass", "")
        monkeypatch.setenv("BASIC_AUTH_USER_INFO", "me:pass")
        assert load(path).client_options("avro") == {"basic.auth.user.info": "me:pass"}
        path.unlink()
        code, output = advise(*given, "--registry-option", "basic.auth.user.info=${BASIC_AUTH_USER_INFO}")
        assert code == 0, output
        assert 'basic.auth.user.info" = "${BASIC_AUTH_USER_INFO}"' in path.read_text()
    code, output = advise(topic, "--bootstrap", bootstrap)
    assert code == 0, output
    assert "give --registry" in output
    assert "> @value" in output


def test_protobuf_whose_schema_is_in_a_header(bootstrap: str, tmp_path: Path) -> None:
    files = FileDescriptorSet.FromString((ROOT / "tests" / "vectors" / "order.desc").read_bytes()).file
    order: Any = GetMessages(files)["shop.Order"]
    topic, path = new_topic(bootstrap, "protobuf"), tmp_path / "protobuf.toml"
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(100):
        at = {"seconds": START_MS // 1_000, "nanos": number}
        value = order(id=str(number % 95), at=at).SerializeToString()
        id_ = guid_of(7 if number < 98 else 8)
        producer.produce(
            topic, value, timestamp=START_MS, headers={"__value_schema_id": b"\1" + id_.bytes + b"\2\2"}
        )
    producer.flush()
    with RegistryServer() as registry:
        registry.add_protobuf(7, files[-1])
        given = [topic, "--bootstrap", bootstrap, "--output", str(path), "--registry", registry.url]
        code, output = advise(*given, "--key", "id")
        assert code == 0, output
        assert "format protobuf" in output
        assert "not counted below: 2 errors (protobuf_schema)" in output
        assert "3 records repeat a key" in output
        config = load(path)
        assert (config.protobuf.registry, config.dedup.expiry_key) == (registry.url, "at")


def test_cloud_events_null_values_and_bytes(bootstrap: str, tmp_path: Path) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    events, nulls, opaque = (new_topic(bootstrap, name) for name in ("events", "nulls", "opaque"))
    for number in range(50):
        headers = {"ce_specversion": "1.0", "ce_id": str(number % 40), "ce_source": "/s", "ce_type": "t"}
        producer.produce(events, b"x", headers=list(headers.items()), timestamp=START_MS + number)
        value = json.dumps({"id": number}) if number % 10 else None
        producer.produce(nulls, value, str(number), timestamp=START_MS)
        producer.produce(opaque, bytes([200, number % 30]), timestamp=START_MS + number * 60_000)
    producer.flush()
    for topic, repeats in ((events, 10), (nulls, 0), (opaque, 20)):
        path = tmp_path / f"{topic}.toml"
        code, output = advise(topic, "--bootstrap", bootstrap, "--output", str(path))
        assert code == 0, output
        assert f"{repeats} records repeat a key" in output, output
        load(path)
    assert load(tmp_path / f"{events}.toml").dedup.key == ["source", "id"]
    assert load(tmp_path / f"{events}.toml").dedup.expiry_key == "@timestamp"
    assert load(tmp_path / f"{nulls}.toml").input.on_null == "unique"
    assert load(tmp_path / f"{opaque}.toml").dedup.key == ["@value"]


def test_changes_that_debezium_wrote_again(bootstrap: str, tmp_path: Path) -> None:
    topic, path = new_topic(bootstrap, "changes"), tmp_path / "changes.toml"
    producer = Producer({"bootstrap.servers": bootstrap})
    for written, number in enumerate([*range(100), *range(80, 120)]):
        source = {"connector": "mysql", "pos": number, "ts_ms": START_MS + number}
        source["snapshot"] = "true" if number < 10 else "false"
        event = {"op": "u", "ts_ms": START_MS + written * 10, "source": source, "after": {"id": number % 5}}
        producer.produce(topic, json.dumps(event), str(number % 5), timestamp=START_MS + written * 10)
        if number == 50:
            producer.produce(topic, None, b"0", timestamp=START_MS + written * 10)
    producer.flush()
    code, output = advise(topic, "--bootstrap", bootstrap, "--output", str(path))
    assert code == 0, output
    assert "format debezium" in output
    assert "not counted below: 11 always unique" in output
    assert "20 records repeat a key" in output
    config = load(path)
    assert (config.dedup.key[:2], config.dedup.expiry_key) == (["@key", "source"], "source.ts_ms")
    assert (config.input.on_null, config.output.stamp) == ("unique", "header")
    code, output = advise(topic, "--bootstrap", bootstrap, "--key", "source.pos")
    assert (code, "20 records repeat a key" in output) == (0, True), output


def test_options_with_secrets_are_not_written(bootstrap: str, tmp_path: Path) -> None:
    topic, path = new_topic(bootstrap, "secret"), tmp_path / "secret.toml"
    publish(bootstrap, topic, orders(10, 1), 1)
    code, output = advise(
        topic, "--bootstrap", bootstrap, "--output", str(path), "--option", "sasl.password=hidden",
        "--option", "client.id=me",
    )  # fmt: skip
    assert code == 0, output
    assert "put sasl.password into the environment variable SASL_PASSWORD" in output
    options = tomllib.loads(path.read_text())["kafka"]["options"]
    assert options == {"sasl.password": "${SASL_PASSWORD}", "client.id": "me"}


def test_what_cannot_be_done(bootstrap: str, tmp_path: Path) -> None:
    topic = new_topic(bootstrap, "nothing")
    code, output = advise(topic, "--bootstrap", bootstrap)
    assert (code, "has no records that can be read" in output) == (1, True)
    code, output = advise("no-such-topic", "--bootstrap", bootstrap)
    assert (code, "there is no topic 'no-such-topic'" in output) == (1, True)
    (tmp_path / "there").touch()
    code, output = advise(topic, "--bootstrap", bootstrap, "--output", str(tmp_path / "there"))
    assert (code, "exists already" in output) == (1, True)
    publish(bootstrap, topic, orders(10, 1), 1)
    code, output = advise(topic, "--bootstrap", bootstrap, "--output", str(tmp_path / "no" / "folder"))
    assert (code, "can't be written" in output) == (1, True)
    code, output = advise(topic, "--bootstrap", bootstrap, "--key", "no.such.field")
    assert (code, "errors (key)" in output, "choose others" in output) == (1, True, True)
    for wrong, text in (
        (
            ["--expiry-key", "total"],
            "--expiry-key total: is no time in most records; use one of at, @timestamp",
        ),
        (["--key", "a..b"], '--key: "a..b" has an empty name'),
        (["--expiry-key", "@key"], '--expiry-key: "@key" has no order'),
        (["--option", "linger"], "--option linger: write NAME=VALUE"),
        (["--registry-option", "x"], "--registry-option x: write NAME=VALUE"),
        (["--option", "sasl.password=${NOT_SET_AT_ALL}"], "needs the environment variable NOT_SET_AT_ALL"),
    ):
        code, output = advise(topic, "--bootstrap", bootstrap, *wrong)
        assert (code, text in output) == (2, True), (wrong, output)
