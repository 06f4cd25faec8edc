"""``explain`` on a real broker: where a record was written, and why one is in no output."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from replayfilter.core.stamp import Stamp
from replayfilter.devbroker import DevBroker
from replayfilter.errors import BrokerError, ConfigError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.reader import RangeReader
from replayfilter.service.config.loader import config_from
from replayfilter.service.tools.explain import record_search
from replayfilter.service.tools.explain.explain import Explainer
from replayfilter.service.tools.explain.record_search import parse_address
from replayfilter.spark.partitioning import output_pid

ROUTES = ("unique", "duplicate", "expired", "error")
TIME_MS = 1_700_000_000_000
numbers = itertools.count()
Headers = list[tuple[str, str | bytes | None]]


class Scene:
    """A service's input, and outputs as the service writes them, in one partition for all of the input's."""

    def __init__(
        self, bootstrap: str, folder: Path, inputs: int = 1, stamp: str = "key", replays: bool = False
    ) -> None:
        self.bootstrap, self.name, self.stamp = bootstrap, f"explain{next(numbers)}", stamp
        topics = {route: f"{self.name}.{route}" for route in ROUTES}
        self.config = config_from({
            "service": {"name": self.name, "checkpoint": str(folder), "master": "local[2]"},
            "kafka": {"bootstrap": bootstrap},
            "input": {"topics": [self.name]},
            "replay": {"topic": f"{self.name}.replay"} if replays else {},
            "dedup": {"key": ["id"], "expiry_key": "ts", "period": "1h"},
            "output": topics | {"stamp": stamp},
        })  # fmt: skip
        self.cluster = Cluster(bootstrap)
        outputs = [*topics.values(), f"{self.name}.replay"]
        self.cluster.create({self.name: inputs} | dict.fromkeys(outputs, 1))
        self.producer = Producer({"bootstrap.servers": bootstrap})

    def value(self, number: int) -> bytes:
        return json.dumps({"id": number, "ts": TIME_MS + number}).encode()

    def write(self, source_offset: int, partition: int = 0, value: bytes | None = None) -> None:
        """Write a stamped record to the input."""
        value = self.value(source_offset) if value is None else value
        stamp = Stamp(77, partition, source_offset).to_bytes()
        self.producer.produce(self.name, value, stamp, partition, timestamp=TIME_MS + source_offset)
        self.producer.flush()

    def deliver(
        self, route: str, offset: int, value: bytes, partition: int = 0, headers: Headers | None = None
    ) -> None:
        """Write a record to an output, for the input record at this offset."""
        found = self.cluster.topics([self.name, f"{self.name}.{route}"])
        output = found[f"{self.name}.{route}"]
        pid = output_pid(self.cluster.id, found[self.name].id, self.name, output)
        own, given = Stamp(pid, partition, offset).to_bytes(), list(headers or [])
        if self.stamp == "header":
            given.append(("rf-stamp", own))
        key = own if self.stamp == "key" else b"a key"
        to = f"{self.name}.{route}"
        self.producer.produce(to, value, key, partition % output.partitions, timestamp=TIME_MS, headers=given)
        self.producer.poll(0)

    def commit(self, *offsets: int) -> None:
        """Commit the service's offsets."""
        self.producer.flush()
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.name})
        ends = [TopicPartition(self.name, number, offset) for number, offset in enumerate(offsets)]
        consumer.commit(offsets=ends, asynchronous=False)
        consumer.close()

    def explain(self, place: str, find_first: bool = False) -> dict[str, str]:
        """The lines of an explanation; ``place`` without the service's name."""
        at = parse_address(self.name + place)
        return {line.about: line.text for line in Explainer(self.config).lines(at, True, find_first)}


@pytest.fixture
def scene(broker: DevBroker, tmp_path: Path) -> Scene:
    return Scene(broker.bootstrap, tmp_path / "checkpoint")


@pytest.mark.parametrize("stamp", ["key", "header"])
def test_where_a_record_was_written_and_what_its_headers_say(
    broker: DevBroker, tmp_path: Path, stamp: str
) -> None:
    scene = Scene(broker.bootstrap, tmp_path / "checkpoint", stamp=stamp)
    for offset in range(3):
        scene.write(offset)
    scene.write(3, value=b"{oops")
    scene.deliver("unique", 0, scene.value(0))
    scene.deliver("duplicate", 1, scene.value(1), headers=[("rf-first", f"{scene.name}/0/0")])
    scene.deliver("expired", 2, scene.value(2), headers=[("rf-late-by", "1500")])
    reasons: Headers = [("rf-reason", "json"), ("rf-message", "not JSON"), ("rf-stage", "decode")]
    scene.deliver("error", 3, b"{oops", headers=reasons)
    scene.commit(4)
    unique = scene.explain("/0/0")
    assert unique["stamp"] == "source 77/0, offset 0"
    assert unique["record"].startswith(
        f"{scene.name}/0/0: {len(scene.value(0))} bytes, timestamp 2023-11-14T"
    )
    assert f"expiry key {TIME_MS} (2023-11-14T22:13:20Z)" in unique["decoded"]
    assert unique["bucket"].startswith(f"{TIME_MS // 300_000}: expiry keys ")
    assert unique["delivered"] == "yes: the service's group is at offset 4"
    assert unique["written"] == f"to {scene.name}.unique/0/0: unique"
    assert unique["state"].startswith("no service has run with the checkpoint")
    duplicate = scene.explain("/0/1")
    assert duplicate["written"] == f"to {scene.name}.duplicate/0/0: duplicate"
    assert scene.explain("/0/2")["rf-late-by"] == "1500"
    error = scene.explain("/0/3")
    assert (error["rf-reason"], error["rf-message"]) == ("json", "not JSON")
    assert error["decoded"].startswith("an error, by the config of now: json")
    by_output = scene.explain(".duplicate/0/0")
    assert by_output["asked for"].endswith(f"made from {scene.name}/0/1")
    assert by_output["written"] == duplicate["written"]


def test_the_record_that_a_duplicate_repeats_is_searched_for(scene: Scene) -> None:
    for offset in range(3):
        scene.write(offset, value=scene.value(offset % 2))
    scene.deliver("unique", 0, scene.value(0))
    scene.deliver("unique", 1, scene.value(1))
    scene.deliver("duplicate", 2, scene.value(0))
    scene.commit(3)
    assert scene.explain("/0/2")["repeats"].startswith("not remembered; --find-first searches")
    repeats = scene.explain("/0/2", find_first=True)["repeats"]
    assert repeats == f"{scene.name}.unique/0/0, made from {scene.name}/0/0"
    assert "repeats" not in scene.explain("/0/0", find_first=True)
    scene.write(3, value=scene.value(7))
    scene.deliver("duplicate", 3, scene.value(7))
    scene.commit(4)
    text = f"no record in {scene.name}.unique has its key any more"
    assert scene.explain("/0/3", find_first=True)["repeats"] == text


def test_why_a_record_is_in_no_output(scene: Scene) -> None:
    for offset in (0, 1, 2, 4, 1, 3, 5):
        scene.write(offset)
    for offset in (0, 1, 2, 3, 6):
        scene.deliver("unique", offset, b"")
    scene.commit(7)
    assert (
        scene.explain("/0/4")["written"] == f"nowhere: a replay of {scene.name}/0/1, which has the same stamp"
    )
    text = f"nowhere: a replay, since {scene.name}/0/3 of the same source has offset 4"
    assert scene.explain("/0/5")["written"] == text
    scene.write(6)
    assert scene.explain("/0/7")["delivered"] == "not yet: the service's group is at offset 7"
    assert "written" not in scene.explain("/0/7")
    scene.commit(8)
    assert scene.explain("/0/7")["written"].startswith("in no output, and no earlier record of its source")


def test_a_replay_in_its_topic(broker: DevBroker, tmp_path: Path) -> None:
    scene = Scene(broker.bootstrap, tmp_path / "checkpoint", replays=True)
    for offset in (0, 1, 0):
        scene.write(offset)
    scene.deliver("replay", 2, scene.value(0))
    scene.commit(3)
    lines = scene.explain("/0/2")
    assert lines["written"] == f"to {scene.name}.replay/0/0: replay"
    assert lines["repeats"] == f"a replay of {scene.name}/0/0, which has the same stamp"


def test_a_record_that_is_gone_from_the_input(scene: Scene) -> None:
    for offset in range(3):
        scene.write(offset)
        scene.deliver("unique", offset, scene.value(offset))
    scene.commit(3)
    admin = AdminClient({"bootstrap.servers": scene.bootstrap})
    for future in admin.delete_records([TopicPartition(scene.name, 0, 2)]).values():
        future.result(30)
    lines = scene.explain("/0/1")
    assert lines["record"].endswith("no longer in the topic, which begins at offset 2")
    assert lines["written"] == f"to {scene.name}.unique/0/1: unique"


def test_a_record_is_found_among_those_of_many_partitions(
    broker: DevBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_search, "WINDOW", 20)
    monkeypatch.setattr(record_search, "SCANNED", 50)
    scene = Scene(broker.bootstrap, tmp_path / "checkpoint", inputs=3)
    # All of partition 2 come last, and partition 1 has every third offset only.
    order = [(number % 2, number // 2) for number in range(1_200)]
    order = [(partition, offset * 3 if partition else offset) for partition, offset in order]
    order += [(2, offset) for offset in range(300)]
    for partition, offset in order:
        scene.deliver("unique", offset, b"", partition)
    scene.commit(10_000, 10_000, 10_000)
    explainer = Explainer(scene.config)
    with RangeReader(explainer.settings, "test") as reader:
        for at in (0, 1, 2, 599, 600, 1_000, 1_199, 1_200, 1_350, 1_499):
            partition, offset = order[at]
            found = explainer._find_output(reader, record_search.Address(scene.name, partition, offset), None)
            assert found is not None
            assert found.offset() == at
        for partition, offset in ((1, 1), (1, 1_798), (2, 300), (0, 600)):
            place = record_search.Address(scene.name, partition, offset)
            assert explainer._find_output(reader, place, None) is None


def test_an_output_that_has_more_partitions_now(broker: DevBroker, tmp_path: Path) -> None:
    scene = Scene(broker.bootstrap, tmp_path / "checkpoint", inputs=3)
    scene.write(0, partition=1)
    scene.deliver("unique", 0, scene.value(0), partition=1)
    scene.commit(0, 1, 0)
    new: Any = {"new_total_count": 3}
    from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": scene.bootstrap})
    for future in admin.create_partitions([NewPartitions(f"{scene.name}.unique", **new)]).values():
        future.result(30)
    assert scene.explain("/1/0")["written"] == f"to {scene.name}.unique/0/0: unique"


def test_outputs_without_stamps_are_compared_by_content(broker: DevBroker, tmp_path: Path) -> None:
    scene = Scene(broker.bootstrap, tmp_path / "checkpoint", stamp="none")
    scene.write(0)
    scene.deliver("unique", 0, b"another")
    scene.deliver("unique", 0, scene.value(0))
    scene.commit(1)
    assert scene.explain("/0/0")["written"] == f"to {scene.name}.unique/0/1: unique"


def test_what_is_no_record(scene: Scene) -> None:
    scene.write(0)
    for text in ("orders", "orders/1", "orders/a/1", "/1/2", "orders/1/-2"):
        with pytest.raises(ConfigError, match="write TOPIC/PARTITION/OFFSET"):
            parse_address(text)
    with pytest.raises(ConfigError, match="neither an input nor an output"):
        scene.explain("x/0/0")
    with pytest.raises(BrokerError, match="there is no such record yet, the partition ends at 1"):
        scene.explain("/0/1")
    with pytest.raises(BrokerError, match="has only the partitions 0 to 0"):
        scene.explain("/3/0")
    scene.producer.produce(f"{scene.name}.unique", b"a stranger's", b"key", 0)
    scene.producer.flush()
    with pytest.raises(BrokerError, match="neither a stamp of this service nor headers"):
        scene.explain(".unique/0/0")
