"""``redrive`` on a real broker: what it writes, what it leaves out, and that nothing is written twice."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from replayfilter.core.replay.marks import ReplayFilter
from replayfilter.core.stamp import Stamp
from replayfilter.devbroker import DevBroker
from replayfilter.errors import BrokerError, ConfigError, DeliveryError
from replayfilter.kafka import chunk_reader
from replayfilter.kafka.admin import Cluster
from replayfilter.service.config.loader import config_from
from replayfilter.service.config.model import Config
from replayfilter.service.tools.redrive.redrive_job import Redrive
from replayfilter.service.tools.redrive.request import Request
from replayfilter.service.tools.redrive.selection import LeftOut, Summary, parse_selection
from replayfilter.spark.partitioning import output_pid
from tests.support.topics import read_all, stamp_of

ROUTES = ("unique", "duplicate", "expired", "error")
PARTITIONS = 3
TIME_MS = 1_700_000_000_000
numbers = itertools.count()


class Scene:
    """A service's topics, and an error topic as the service writes it: with its stamps and headers."""

    def __init__(self, bootstrap: str, folder: Path, errors: int = PARTITIONS, **sections: Any) -> None:
        self.bootstrap, self.name = bootstrap, f"redrive{next(numbers)}"
        outputs = {route: f"{self.name}.{route}" for route in ROUTES}
        data: dict[str, dict[str, Any]] = {
            "service": {"name": self.name, "checkpoint": str(folder)},
            "kafka": {"bootstrap": bootstrap},
            "input": {"topics": [self.name]},
            "dedup": {"key": ["id"], "expiry_key": "ts", "period": "1h"},
            "output": outputs,
        }
        for section, keys in sections.items():
            data.setdefault(section, {}).update(keys)
        self.config: Config = config_from(data)
        self.cluster = Cluster(bootstrap)
        counts = dict.fromkeys(outputs.values(), errors)
        self.cluster.create(dict.fromkeys(self.config.input.topics, PARTITIONS) | counts)
        self.error, self.errors = outputs["error"], errors
        self._next: Counter[tuple[str, int]] = Counter()

    def fail(
        self, records: int, partition: int, reason: str = "json", topic: str = "", **headers: str
    ) -> list[bytes]:
        """Write errors of consecutive records of an input partition; returns their values."""
        topic = topic or self.name
        found = self.cluster.topics([topic, self.error])
        pid = output_pid(self.cluster.id, found[topic].id, self.name, found[self.error])
        producer = Producer({"bootstrap.servers": self.bootstrap})
        values = []
        for _ in range(records):
            offset = self._next[topic, partition]
            self._next[topic, partition] += 1
            stamp = Stamp(pid, partition, offset).to_bytes()
            in_key = self.config.output.stamp == "key"
            added: Any = [
                *headers.items(),
                ("rf-reason", reason),
                ("rf-message", f"{reason} is wrong"),
                ("rf-stage", "decode"),
                ("__connect.errors.exception.message", f"{reason} is wrong"),
                ("__connect.errors.topic", topic),
                ("__connect.errors.partition", str(partition)),
                ("__connect.errors.offset", str(offset)),
            ]
            if self.config.output.stamp == "header":
                added.append(("rf-stamp", stamp))
            values.append(b"%s/%d/%d" % (topic.encode(), partition, offset))
            key = stamp if in_key else b"user-%d" % offset
            producer.produce(
                self.error,
                values[-1],
                key,
                partition % self.errors,
                timestamp=TIME_MS + offset,
                headers=added,
            )
            producer.poll(0)
        assert producer.flush(30) == 0
        return values

    def redrive(self, *reasons: str, **request: Any) -> Redrive:
        selection = parse_selection([*reasons], None, None, request.pop("headers", []))
        return Redrive(self.config, Request(selection=selection, **request))

    def read(self, topic: str = "") -> dict[int, list[Message]]:
        found: dict[int, list[Message]] = {number: [] for number in range(PARTITIONS)}
        for message in read_all(self.bootstrap, topic or self.name):
            found[int(message.partition() or 0)].append(message)
        return found

    def values(self, topic: str = "") -> list[bytes]:
        return sorted(message.value() or b"" for each in self.read(topic).values() for message in each)


@pytest.fixture
def scene(broker: DevBroker, tmp_path: Path) -> Scene:
    return Scene(broker.bootstrap, tmp_path)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions of a few records."""
    monkeypatch.setattr(chunk_reader, "CHUNK_RECORDS", 10)
    monkeypatch.setattr("replayfilter.kafka.reader.MESSAGES_PER_POLL", 10)


def no_bar(done: int, total: int) -> None:
    assert 0 <= done <= total


def execute(job: Redrive, limit: int = 0) -> Summary:
    return job.execute(limit, no_bar)


def test_records_come_back_as_they_were_to_where_they_came_from(scene: Scene) -> None:
    for partition in range(PARTITIONS):
        scene.fail(20, partition, trace=f"t{partition}")
    shown = scene.redrive().preview(0, no_bar)
    assert (shown.written, shown.read) == (60, 60)
    assert scene.values() == [], "a preview writes nothing"
    summary = execute(scene.redrive())
    assert summary == shown
    assert {at: group.records for at, group in summary.groups.items()} == {("json", n): 20 for n in range(3)}
    replays = ReplayFilter()
    for partition, messages in scene.read().items():
        assert [message.value() for message in messages] == [
            b"%s/%d/%d" % (scene.name.encode(), partition, offset) for offset in range(20)
        ]
        assert [message.timestamp()[1] - TIME_MS for message in messages] == list(range(20))
        assert all(replays.accept(stamp_of(message)) for message in messages)
        assert {tuple(message.headers() or ()) for message in messages} == {
            (("trace", b"t%d" % partition), ("rf-redriven", b"1"))
        }
    assert len(replays.marks) == PARTITIONS


def test_the_same_command_again_writes_only_what_is_new(scene: Scene) -> None:
    scene.fail(5, 0)
    assert execute(scene.redrive()).written == 5
    assert execute(scene.redrive()).read == 0
    scene.fail(3, 0)
    scene.fail(4, 2)
    assert execute(scene.redrive()).written == 7
    assert len(scene.values()) == len(set(scene.values())) == 12
    done = scene.redrive().done()
    assert (done.written, done.left_out, done.request) == (12, 0, Request())
    replays = ReplayFilter()
    for messages in scene.read().values():
        assert all(replays.accept(stamp_of(message)) for message in messages)


def test_another_selection_does_not_write_again_what_a_job_has_written(scene: Scene) -> None:
    broken, keyless = scene.fail(5, 0, "json"), scene.fail(4, 0, "key")
    assert execute(scene.redrive("json")).written == 5
    everything = scene.redrive()
    summary = execute(everything)
    assert (summary.written, summary.left_out) == (4, {LeftOut.WRITTEN: 5})
    assert scene.values() == sorted([*broken, *keyless])
    assert [job.done.written for job in everything.others()] == [5]
    assert execute(scene.redrive("json", job="again")).written == 5, "asked for by name"
    replays = ReplayFilter()
    for messages in scene.read().values():
        assert all(replays.accept(stamp_of(message)) for message in messages), "each job has its own stamps"


def test_a_limit_is_kept_and_the_next_execution_continues(scene: Scene, small_batches: None) -> None:
    for partition in range(PARTITIONS):
        scene.fail(25, partition)
    assert [execute(scene.redrive(), limit).written for limit in (1, 7, 30)] == [1, 7, 30]
    assert len(set(scene.values())) == 38
    assert execute(scene.redrive()).written == 37
    assert len(scene.values()) == len(set(scene.values())) == 75
    assert scene.redrive().done().written == 75


def test_all_conditions_are_passed_on(scene: Scene) -> None:
    scene.fail(3, 0, "json", team="shop")
    chosen = scene.fail(3, 1, "key", team="shop")
    scene.fail(3, 2, "key", team="web")
    summary = execute(scene.redrive("key", headers=["team=shop"]))
    assert (summary.read, summary.written) == (9, 3)
    assert scene.values() == sorted(chosen)


def test_records_that_come_back_too_often_are_left_out(scene: Scene) -> None:
    scene.fail(2, 0, **{"rf-redriven": "1"})
    scene.fail(2, 0, **{"rf-redriven": "2"})
    summary = execute(scene.redrive(max_redriven=2))
    assert (summary.written, summary.left_out) == (2, {LeftOut.TOO_OFTEN: 2})
    assert execute(scene.redrive(max_redriven=3)).written == 2, "those that were left out, and no others"
    found = [message for messages in scene.read().values() for message in messages]
    assert Counter(dict(message.headers() or [])["rf-redriven"] for message in found) == {b"2": 2, b"3": 2}


def test_an_error_topic_with_fewer_partitions(broker: DevBroker, tmp_path: Path) -> None:
    scene = Scene(broker.bootstrap, tmp_path, errors=1)
    for partition in (2, 0, 2, 1):
        scene.fail(5, partition)
    assert execute(scene.redrive()).written == 20
    replays = ReplayFilter()
    for partition, messages in scene.read().items():
        assert {(stamp_of(message) or Stamp(0, 0, 0)).partition for message in messages} == {partition}
        assert all(replays.accept(stamp_of(message)) for message in messages)


def test_several_inputs_and_another_topic(broker: DevBroker, tmp_path: Path) -> None:
    inputs = [f"orders{next(numbers)}", f"refunds{next(numbers)}"]
    scene = Scene(broker.bootstrap, tmp_path, input={"topics": inputs})
    expected = {topic: sorted(scene.fail(6, 1, topic=topic)) for topic in inputs}
    producer = Producer({"bootstrap.servers": scene.bootstrap})
    producer.produce(scene.error, b"a stranger", partition=0, headers=[("rf-reason", b"json")])
    producer.flush()
    summary = execute(scene.redrive())
    assert summary.left_out == {LeftOut.NO_ORIGIN: 1}
    assert {topic: scene.values(topic) for topic in inputs} == expected
    other = f"{scene.name}.again"
    scene.cluster.create({other: 2})
    assert execute(scene.redrive(to=other)).destinations == {other: 13}
    assert len(scene.values(other)) == 13


def test_stamps_in_headers_leave_the_keys(broker: DevBroker, tmp_path: Path) -> None:
    scene = Scene(broker.bootstrap, tmp_path, input={"stamp": "header"}, output={"stamp": "header"})
    scene.fail(5, 0)
    assert execute(scene.redrive()).written == 5
    messages, replays = scene.read()[0], ReplayFilter()
    assert [message.key() for message in messages] == [b"user-%d" % offset for offset in range(5)]
    assert all(replays.accept(stamp_of(message, "header")) for message in messages)
    assert all(list(dict(message.headers() or [])) == ["rf-stamp", "rf-redriven"] for message in messages)


def test_records_whose_key_is_gone_are_left_out_if_the_key_is_read(broker: DevBroker, tmp_path: Path) -> None:
    dedup = {"key": ["@key"], "expiry_key": "ts", "period": "1h"}
    scene = Scene(broker.bootstrap, tmp_path, input={"stamp": "header"}, dedup=dedup)
    scene.fail(5, 0)
    summary = execute(scene.redrive())
    assert (summary.written, summary.left_out) == (0, {LeftOut.KEY_LOST: 5})


def test_two_executions_of_one_job_at_the_same_time(scene: Scene, small_batches: None) -> None:
    scene.fail(60, 0)
    others: list[int] = []

    def meanwhile(done: int, total: int) -> None:
        if not others:
            others.append(0)
            others[0] = execute(scene.redrive()).written

    with pytest.raises(DeliveryError, match="another process executes the same job"):
        scene.redrive().execute(0, meanwhile)
    assert 0 < others[0] < 60
    assert len(scene.values()) == len(set(scene.values())) == 60


def test_a_record_that_kafka_refuses_stops_the_job_and_loses_nothing(
    scene: Scene, small_batches: None
) -> None:
    small = f"{scene.name}.small"
    scene.cluster.create({small: 1}, settings={"max.message.bytes": "300"})
    scene.fail(30, 0)
    scene.fail(1, 0, large=os.urandom(400).hex())  # which no codec makes smaller
    scene.fail(5, 0)
    job = scene.redrive(to=small)
    with pytest.raises(
        DeliveryError, match=r"Kafka refused the record from .*offset 30 .*Run the same command"
    ):
        execute(job)
    done = scene.redrive(to=small).done().written
    assert 0 < done <= 30
    assert len(read_all(scene.bootstrap, small)) == done
    set_limit(scene.bootstrap, small, 100_000)
    assert execute(scene.redrive(to=small)).written == 36 - done
    assert len({message.value() for message in read_all(scene.bootstrap, small)}) == 36


def set_limit(bootstrap: str, topic: str, limit: int) -> None:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    entry = ConfigEntry("max.message.bytes", str(limit), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept until its answer is there
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def test_what_can_not_be_asked_for(scene: Scene) -> None:
    with pytest.raises(ConfigError, match="an output of this service"):
        scene.redrive(to=scene.error)
    with pytest.raises(ConfigError, match="characters as JSON"):
        scene.redrive(headers=[f"a={'x' * 4_000}"])
    with pytest.raises(BrokerError, match=r"there is no topic nowhere"):
        scene.redrive(to="nowhere")
