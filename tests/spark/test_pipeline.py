"""The real Spark plan between topics on a real broker."""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in its stubs

from replayfilter.core.routing import Route
from replayfilter.core.rules import OnNull, Rules
from replayfilter.core.stamp import Stamp
from replayfilter.demo.stream import Headers
from replayfilter.errors import CheckpointError, DeliveryError
from replayfilter.formats import KeySpec, debezium
from replayfilter.kafka.admin import Cluster
from replayfilter.spark.pipeline_settings import Output
from tests.support.pipelines import Pipeline, order, record
from tests.support.service_process import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

HOUR = 3_600_000
NOW = 1_000 * HOUR  # event time: long ago, so that no record is in the future
PID = 7
TRACE: Headers = [
    ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("tracestate", b"a=1"),
]


def stamp(offset: int, partition: int = 0) -> bytes:
    return Stamp(PID, partition, offset).to_bytes()


def place(topic: str, partition: int, offset: int) -> Headers:
    """The headers that say where a record was in the input."""
    values = (topic.encode(), b"%d" % partition, b"%d" % offset)
    names = ("__connect.errors.topic", "__connect.errors.partition", "__connect.errors.offset")
    return list(zip(names, values, strict=True))


def test_every_route(bootstrap: str, tmp_path: Path) -> None:
    """One record of each kind: the bytes, headers, timestamps, partitions and keys of the output."""
    pipeline = Pipeline(bootstrap, tmp_path, "every", partitions=3)
    future = int(time.time() * 1000) + HOUR
    big = order(9, NOW, text="x" * 990_000)
    headers = [*TRACE, ("trace", b"\x00\xff"), ("trace", b"2"), ("none", None), ("empty", b"")]
    sent = [
        record(order(1, NOW), stamp(0), 2, headers),
        record(order(1, NOW), stamp(1), 2, TRACE),  # duplicate
        record(order(2, NOW - HOUR), stamp(2), 2, TRACE),  # expired
        record(order(3, NOW), stamp(1), 2, TRACE),  # replay
        record(None, stamp(3), 2, TRACE),  # tombstone
        record(b"", stamp(4), 2, TRACE),
        record(b"{", stamp(5), 2, headers),
        record(order(4, future), stamp(6), 2, TRACE),
        record(order(5, NOW), b"no stamp", 2),
        record(order(6, NOW), None, 2),
        record(big, stamp(7), 2),
    ]
    pipeline.publish(sent)
    pipeline.run_once()

    found = pipeline.read(Route.UNIQUE)
    assert [row.value for row in found] == [order(1, NOW), order(5, NOW), order(6, NOW), big]
    assert {row.partition for row in found} == {2}
    assert {row.timestamp_ms for row in found} == {1_700_000_000_000}
    assert found[0].headers == headers
    pid = pipeline.settings.output_pids["every.unique"]["every"]
    assert [row.key for row in found] == [Stamp(pid, 2, offset).to_bytes() for offset in (0, 8, 9, 10)]
    assert [(row.value, row.headers) for row in pipeline.read(Route.DUPLICATE)] == [(order(1, NOW), TRACE)]
    assert pipeline.values(Route.EXPIRED) == [order(2, NOW - HOUR)]
    assert [row.headers for row in pipeline.read(Route.EXPIRED)] == [
        [*TRACE, ("rf-late-by", b"%d" % HOUR), *place("every", 2, 2)]
    ]
    assert pipeline.values(Route.REPLAY) == []

    errors = pipeline.read(Route.ERROR)
    assert [row.value for row in errors] == [None, b"", b"{", order(4, future)]
    assert [dict(row.headers)["rf-reason"] for row in errors] == [b"empty", b"empty", b"json", b"future"]
    assert [dict(row.headers)["rf-stage"] for row in errors] == [b"decode"] * 3 + [b"route"]
    assert errors[2].headers[:6] == headers
    assert all(row.headers[:2] == TRACE for row in errors)
    assert all(dict(row.headers)["rf-message"] for row in errors)
    assert [row.headers[-3:] for row in errors] == [place("every", 2, offset) for offset in (4, 5, 6, 7)]

    (counts,) = (progress["observedMetrics"]["counts"] for progress in pipeline.progress)
    assert {name: counts[name] for name in ("unique", "duplicate", "expired", "error", "replay")} == {
        "unique": 4, "duplicate": 1, "expired": 1, "error": 4, "replay": 1,
    }  # fmt: skip
    assert (counts["unstamped"], counts["error_json"], counts["error_future"]) == (2, 1, 1)
    assert (counts["written"], counts["skipped"], counts["transactions"]) == (10, 0, 1)
    assert (counts["state_keys"], counts["state_sources"]) == (4, 1)
    committed = Cluster(bootstrap).committed("every", [("every", partition) for partition in range(3)])
    assert committed == {("every", 2): len(sent)}


def test_header_stamps_kept_keys_and_a_topic_for_replays(bootstrap: str, tmp_path: Path) -> None:
    pipeline = Pipeline(
        bootstrap, tmp_path, "kept", stamp="header", on_invalid="error", output_stamp="none",
        keys=KeySpec("json", ("id", "@key"), "@timestamp", "ms"),
    )  # fmt: skip
    outputs = {**pipeline.settings.outputs, Route.REPLAY: Output(pipeline.topic_of(Route.REPLAY), 1)}
    pipeline.settings = replace(pipeline.settings, outputs=outputs)
    pipeline.publish([
        record(order(1, 0), b"a", 1, [("rf-stamp", b"?"), ("rf-stamp", stamp(5)), ("x", b"1")]),
        record(order(1, 0), None, 1, [("rf-stamp", stamp(6))]),
        record(order(1, 0), b"a", 1, [*TRACE, ("rf-stamp", stamp(6))]),
        record(order(2, 0), stamp(9), 1),
        record(order(2, 0), b"b", 1, [("rf-stamp", stamp(7)), ("rf-stamp", b"last one wins")]),
    ])  # fmt: skip
    pipeline.run_once()
    unique = pipeline.read(Route.UNIQUE)
    assert [(row.key, row.value) for row in unique] == [(b"a", order(1, 0)), (None, order(1, 0))]
    assert unique[0].headers == [("rf-stamp", b"?"), ("rf-stamp", stamp(5)), ("x", b"1")]
    (replay,) = pipeline.read(Route.REPLAY)
    assert (replay.partition, replay.key, replay.headers[:2]) == (0, b"a", TRACE)
    errors = pipeline.read(Route.ERROR)
    assert [row.key for row in errors] == [stamp(9), b"b"]
    assert [dict(row.headers)["rf-reason"] for row in errors] == [b"stamp", b"stamp"]
    assert [row.headers[-3:] for row in errors] == [place("kept", 1, offset) for offset in (3, 4)]


def test_cloudevents_of_both_modes(bootstrap: str, tmp_path: Path) -> None:
    keys = KeySpec("cloudevents", ("source", "id"), "time", "iso8601")
    rules = Rules(replay=False, unit="iso8601", period=60 * 10**6, span=10**6)
    pipeline = Pipeline(bootstrap, tmp_path, "events", keys=keys, rules=rules, output_stamp="none")
    event = {"specversion": "1.0", "type": "t", "source": "/s", "id": "1", "time": "2024-05-01T12:00:00Z"}
    binary: Headers = [(f"ce_{name}", value.encode()) for name, value in event.items()]
    late: Headers = [(f"ce_{name}", value) for name, value in {"source": b"/s", "id": b"2"}.items()]
    late += [("ce_time", b"2024-05-01T11:58:30+00:00")]
    pipeline.publish([
        record(None, b"k", 1, binary),
        record(json.dumps(event).encode(), b"k", 1, [("content-type", b"application/cloudevents+json")]),
        record(json.dumps(event | {"id": "2"}).encode(), None, 1, [("content-type", b"application/json")]),
        record(b"data", b"k", 1, late),
    ])  # fmt: skip
    pipeline.run_once()
    (unique,) = pipeline.read(Route.UNIQUE)
    assert (unique.key, unique.value, unique.headers) == (b"k", None, binary)
    (duplicate,) = pipeline.values(Route.DUPLICATE)
    assert json.loads(duplicate or b"") == event
    (expired,) = pipeline.read(Route.EXPIRED)
    assert expired.headers == [*late, ("rf-late-by", b"90000"), *place("events", 1, 3)]
    (error,) = pipeline.read(Route.ERROR)
    assert dict(error.headers)["rf-reason"] == b"cloudevent"
    assert error.headers[-3:] == place("events", 1, 2)


def test_changes_that_debezium_wrote_again(bootstrap: str, tmp_path: Path) -> None:
    keys = KeySpec("debezium", debezium.KEY, debezium.EXPIRY_KEY, debezium.UNIT, on_null="unique")
    rules = Rules(replay=False, period=60_000, span=1_000, on_null=OnNull.UNIQUE)
    pipeline = Pipeline(bootstrap, tmp_path, "changes", keys=keys, rules=rules, output_stamp="none")

    def change(row: int, written: int, op: str = "u", snapshot: str = "false") -> bytes:
        source = {"connector": "mysql", "file": "f", "pos": 5, "row": row, "ts_ms": NOW, "snapshot": snapshot}
        return json.dumps({"payload": {"op": op, "source": source, "ts_ms": written}}).encode()

    snapshot, delete, create = change(0, 1, "r", "last"), change(2, 2, "d"), change(2, 2, "c")
    pipeline.publish([
        record(snapshot, b"1", 1),
        record(change(0, 2), b"1", 1),
        record(change(1, 2), b"1", 1),
        record(delete, b"1", 1),
        record(None, b"1", 1),
        record(create, b"2", 0),
    ])  # fmt: skip
    pipeline.run_once()
    again = [snapshot, change(1, 9), None, change(3, 9), b"{}"]
    pipeline.publish([*(record(value, b"1", 1) for value in again), record(change(2, 9, "c"), b"2", 0)])
    pipeline.run_once()
    unique = [(row.key, row.value) for row in pipeline.read(Route.UNIQUE) if row.partition == 1]
    assert unique == [
        (b"1", value)
        for value in (snapshot, change(0, 2), change(1, 2), delete, None, snapshot, None, change(3, 9))
    ]
    assert pipeline.counts("unique") == [6, 3]
    assert pipeline.values(Route.DUPLICATE) == [change(2, 9, "c"), change(1, 9)]
    (error,) = pipeline.read(Route.ERROR)
    assert dict(error.headers)["rf-reason"] == b"debezium"


def test_state_survives_a_restart_and_a_repeated_batch_changes_nothing(
    bootstrap: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(bootstrap, tmp_path, "again")
    pipeline.publish(record(order(n, NOW + n), stamp(n, n % 2), n % 2) for n in range(2_000))
    pipeline.run_once()
    pipeline.publish(record(order(n, NOW + n), stamp(n, n % 2), n % 2) for n in range(1_000, 2_000))
    pipeline.publish(record(order(n, NOW + n), stamp(n + 2_000, n % 2), n % 2) for n in range(1_900, 2_100))
    pipeline.run_once()
    assert pipeline.counts("unique") == [2_000, 100]
    assert pipeline.counts("replay") == [0, 1_000]
    assert pipeline.counts("duplicate") == [0, 100]
    assert pipeline.counts("state_late_unique_0") == [2_000, 100]
    assert pipeline.counts("state_apart_0") == [0, 100]

    before = {route: pipeline.read(route) for route in (Route.UNIQUE, Route.DUPLICATE)}
    pipeline.uncommit(1)
    pipeline.run_once()
    assert pipeline.counts("unique")[2:] == [100]  # the same decisions, from the state before the batch
    assert pipeline.counts("replay")[2:] == [1_000]
    assert pipeline.counts("written")[2:] == [0]
    assert pipeline.counts("skipped")[2:] == [200]
    assert {route: pipeline.read(route) for route in before} == before


def test_it_starts_at_the_given_offsets_and_elsewhere_at_the_earliest(bootstrap: str, tmp_path: Path) -> None:
    pipeline = Pipeline(bootstrap, tmp_path, "begins", starting={"begins": {1: 3}})
    pipeline.publish(record(order(n, NOW), stamp(n, n % 2), n % 2) for n in range(10))
    pipeline.run_once()
    assert pipeline.values(Route.UNIQUE) == [order(n, NOW) for n in (0, 2, 4, 6, 8, 7, 9)]


def test_filtering_replays_only_needs_no_keys(bootstrap: str, tmp_path: Path) -> None:
    pipeline = Pipeline(bootstrap, tmp_path, "alone", keys=KeySpec("raw", (), None, "ms"), shards=3)
    pipeline.settings = replace(pipeline.settings, rules=replace(pipeline.settings.rules, dedup=False))
    pipeline.publish(record(b"%d" % n, stamp(n, n % 2), n % 2) for n in (0, 1, 2, 3, 2, 5, 4, 1, 6))
    pipeline.run_once()
    assert pipeline.values(Route.UNIQUE) == [b"0", b"2", b"4", b"6", b"1", b"3", b"5"]
    assert pipeline.counts("replay") == [2]


def test_it_stops_after_the_current_batch_and_starts_again(bootstrap: str, tmp_path: Path) -> None:
    pipeline = Pipeline(bootstrap, tmp_path, "stops")
    first = pipeline.service()
    first.start()
    ended = threading.Thread(target=first.await_end)
    ended.start()
    pipeline.publish(record(order(n, NOW), stamp(n)) for n in range(500))
    wait_for(lambda: bool(pipeline.progress), 60, "no batch")
    pipeline.publish(record(order(n, NOW), stamp(n)) for n in range(500, 1_000))
    first.stop_after_batch()
    ended.join(60)
    assert not ended.is_alive()
    pipeline.run_once()
    assert pipeline.values(Route.UNIQUE) == [order(n, NOW) for n in range(1_000)]
    assert pipeline.counts("skipped") == [0] * len(pipeline.progress)  # no batch was interrupted


def test_records_that_retention_has_deleted_end_the_service(bootstrap: str, tmp_path: Path) -> None:
    pipeline = Pipeline(bootstrap, tmp_path, "deleted", stamp="none")
    pipeline.publish(record(order(n, NOW), partition=1) for n in range(10))
    pipeline.run_once()
    pipeline.publish(record(order(n, NOW), partition=1) for n in range(10, 15))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition("deleted", 1, 12)]).values():
        future.result(30)
    with pytest.raises(CheckpointError, match=r"^deleted-1: offsets 10 to 11 have not been read, and Kafka"):
        pipeline.run_once()


def test_a_failure_is_reported_in_one_sentence(bootstrap: str, tmp_path: Path) -> None:
    pipeline = Pipeline(bootstrap, tmp_path, "fails")
    small = NewTopic("fails.small", 2, 1, config={"max.message.bytes": "500"})
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([small])["fails.small"].result(30)
    outputs = {**pipeline.settings.outputs, Route.UNIQUE: Output("fails.small", 2)}
    pids = {**pipeline.settings.output_pids, "fails.small": {"fails": 1}}
    pipeline.settings = replace(pipeline.settings, outputs=outputs, output_pids=pids)
    pipeline.publish([record(order(1, NOW, text=random.Random(1).randbytes(1_000).hex()), stamp(0), 1)])
    with pytest.raises(DeliveryError, match=r"fails\[1\] offset 0 for fails\.small") as failed:
        pipeline.run_once()
    assert "\n" not in str(failed.value)
    assert failed.value.lane is not None
