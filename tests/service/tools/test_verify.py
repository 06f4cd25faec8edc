"""``verify`` on a real broker: it accepts what the service writes, and finds each kind of error."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from rich.console import Console

from replayfilter.core.stamp import Stamp, producer_id
from replayfilter.devbroker import DevBroker
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.offsets import FIRST
from replayfilter.service.config.model import Config
from replayfilter.service.tools.verify import RecordError, Report, Verifier, verify
from replayfilter.spark.partitioning import output_pid

ROUTES = ("unique", "duplicate", "expired", "error")
PARTITIONS = 2
NAMES = itertools.count()


@dataclass
class Output:
    """A record to be written to an output topic."""

    route: str
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[str, str | bytes | None]] = field(default_factory=list)


class Scene:
    """New topics, an input of 50 records with replays, and the outputs that a correct service writes."""

    def __init__(
        self, broker: DevBroker, folder: Path, stamp_in: str = "key", partitions: int = PARTITIONS
    ) -> None:
        self.name = f"verify{next(NAMES)}"
        self.bootstrap = broker.bootstrap
        topics = {route: f"{self.name}.{route}" for route in ROUTES}
        self.config = Config.model_validate({
            "service": {"name": self.name, "checkpoint": str(folder)},
            "kafka": {"bootstrap": broker.bootstrap},
            "input": {"topics": [self.name]},
            "dedup": {"key": ["id"], "expiry_key": "ts", "period": "1h"},
            "output": topics | {"stamp": stamp_in},
        })  # fmt: skip
        cluster = Cluster(broker.bootstrap)
        cluster.create({self.name: partitions} | dict.fromkeys(topics.values(), PARTITIONS))
        self.cluster = cluster
        pids = {route: self.pid(route) for route in ROUTES}
        self.outputs: list[Output] = []
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for partition in range(partitions):
            mark = -1
            # The source goes back twice: 0..9, 5..14, 10..14.
            for offset, source_offset in enumerate([*range(10), *range(5, 15), *range(10, 15)]):
                value, time = b"value %d" % source_offset, 1_000_000 + offset
                stamp = Stamp(77, partition, source_offset).to_bytes()
                producer.produce(self.name, value, stamp, partition, timestamp=time)
                if source_offset > mark:
                    mark = source_offset
                    route = ROUTES[source_offset % 4]
                    own = Stamp(pids[route], partition, offset).to_bytes()
                    output = Output(route, partition, own if stamp_in == "key" else stamp, value, time)
                    if stamp_in == "header":
                        output.headers += [("rf-stamp", b"of another"), ("rf-stamp", own)]
                    if route == "error":
                        output.headers.append(("rf-stage", b"route"))
                    self.outputs.append(output)
        producer.flush()
        self.commit(partitions)

    def commit(self, partitions: int = PARTITIONS, metadata: str = "") -> None:
        """Commit the input's end."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.name})
        ends = [TopicPartition(self.name, partition, 25, metadata) for partition in range(partitions)]
        consumer.commit(offsets=ends, asynchronous=False)
        consumer.close()

    def pid(self, route: str, count: int = PARTITIONS) -> int:
        """The pid of an output when it had this number of partitions."""
        found = self.cluster.topics([self.name, f"{self.name}.{route}"])
        output = found[f"{self.name}.{route}"]._replace(partitions=count)
        return output_pid(self.cluster.id, found[self.name].id, self.name, output)

    def old_pid(self) -> int:
        """The pid that version 0.1.0 wrote to all outputs."""
        return producer_id(self.cluster.id, self.cluster.topics([self.name])[self.name].id, self.name)

    def check(self) -> Report:
        """Write the outputs and verify them."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for output in self.outputs:
            topic, headers = f"{self.name}.{output.route}", output.headers or None
            producer.produce(
                topic, output.value, output.key, output.partition, timestamp=output.timestamp, headers=headers
            )
        producer.flush()
        return Verifier(self.config).check()


def with_pid(output: Output, pid: int) -> bytes:
    """The key of an output with another pid."""
    stamp = Stamp.from_bytes(output.key)
    assert stamp is not None
    return stamp._replace(pid=pid).to_bytes()


def test_right_outputs_pass_and_replays_are_counted(broker: DevBroker, tmp_path: Path) -> None:
    scene = Scene(broker, tmp_path)
    report = scene.check()
    assert report.errors == {}
    for partition in report.partitions.values():
        assert (len(partition.offsets), sum(partition.delivered.values()), partition.replays) == (25, 15, 10)
    out = io.StringIO()
    assert verify(scene.config, Console(file=out, width=160))
    assert "exactly one output" in out.getvalue()
    total = next(line for line in out.getvalue().splitlines() if line.startswith("all"))
    assert total.split() == ["all", "50", "8", "8", "8", "6", "20", "0"]


def test_stamps_in_headers_are_checked(broker: DevBroker, tmp_path: Path) -> None:
    assert Scene(broker, tmp_path, "header").check().errors == {}
    scene = Scene(broker, tmp_path, "header")
    del scene.outputs[3].headers[1]
    assert dict(scene.check().errors) == {"foreign": 1, "lost": 1}


def test_a_service_that_has_only_committed_where_it_begins_has_lost_nothing(
    broker: DevBroker, tmp_path: Path
) -> None:
    scene = Scene(broker, tmp_path)
    scene.outputs.clear()
    scene.commit(metadata=FIRST)
    assert scene.check().errors == {}


def lose(scene: Scene) -> None:
    del scene.outputs[3]


def repeat(scene: Scene) -> None:
    scene.outputs.append(scene.outputs[-1])


def repeat_elsewhere(scene: Scene) -> None:
    last = scene.outputs[-1]
    scene.outputs.append(replace(last, route="unique", key=with_pid(last, scene.pid("unique"))))


def change(scene: Scene) -> None:
    scene.outputs[3] = replace(scene.outputs[3], value=b"another")


def change_time(scene: Scene) -> None:
    scene.outputs[3] = replace(scene.outputs[3], timestamp=7)


def null_for_empty(scene: Scene) -> None:
    scene.outputs[3] = replace(scene.outputs[3], value=None)


def misplace(scene: Scene) -> None:
    scene.outputs[3] = replace(scene.outputs[3], partition=1)


def disorder(scene: Scene) -> None:
    scene.outputs[0], scene.outputs[4] = scene.outputs[4], scene.outputs[0]


def invent(scene: Scene) -> None:
    key = scene.outputs[-1].key
    assert key is not None
    scene.outputs[-1] = replace(scene.outputs[-1], key=Stamp.from_bytes(key)._replace(partition=9).to_bytes())  # type: ignore[union-attr]


def intrude(scene: Scene) -> None:
    scene.outputs.append(Output("unique", 0, b"somebody's", b"else", 1_000_000))


@pytest.mark.parametrize(
    ("damage", "errors"),
    [
        (lose, {"lost": 1}),
        (repeat, {"twice": 1}),
        (repeat_elsewhere, {"twice": 1}),
        (change, {"changed": 1}),
        (change_time, {"changed": 1}),
        (null_for_empty, {"changed": 1}),
        (misplace, {"misplaced": 1}),
        (disorder, {"disordered": 1}),
        (invent, {"unknown": 1, "lost": 1}),
        (intrude, {"foreign": 1}),
    ],
)
def test_each_kind_of_error_is_found(
    broker: DevBroker, tmp_path: Path, damage: Callable[[Scene], None], errors: dict[str, int]
) -> None:
    scene = Scene(broker, tmp_path)
    damage(scene)
    report = scene.check()
    assert dict(report.errors) == errors
    assert all(report.examples[RecordError(error)] for error in errors)
    out = io.StringIO()
    assert not verify(scene.config, Console(file=out, width=160))
    assert "Verification failed." in out.getvalue()


def test_a_decode_error_does_not_advance_the_mark_so_its_copy_must_be_delivered_too(
    broker: DevBroker, tmp_path: Path
) -> None:
    scene = Scene(broker, tmp_path)
    # The highest record of each source was broken, so the copy that follows is not a replay.
    for partition in range(PARTITIONS):
        of_partition = [output for output in scene.outputs if output.partition == partition]
        last = max(of_partition, key=lambda output: output.timestamp)
        last.route, last.key, last.headers = (
            "error",
            with_pid(last, scene.pid("error")),
            [("rf-stage", b"decode")],
        )
    assert dict(scene.check().errors) == {"lost": PARTITIONS}, "the copy of each is in no output"


def test_records_of_earlier_pids_and_partition_counts_are_right(broker: DevBroker, tmp_path: Path) -> None:
    """Version 0.1.0 had one pid for all outputs, and an output may have had fewer partitions."""
    scene = Scene(broker, tmp_path)
    for output in scene.outputs[:6]:
        output.key = with_pid(output, scene.old_pid())
    for output in scene.outputs[-6:]:
        output.key, output.partition = with_pid(output, scene.pid(output.route, count=1)), 0
    assert scene.check().errors == {}


def test_a_partition_is_wrong_if_the_topic_never_had_a_count_that_gives_it(
    broker: DevBroker, tmp_path: Path
) -> None:
    scene = Scene(broker, tmp_path)
    first, last = scene.outputs[0], scene.outputs[-1]
    first.key, first.partition = with_pid(first, scene.old_pid()), 1
    last.key = with_pid(last, scene.pid(last.route, count=1))
    assert dict(scene.check().errors) == {"misplaced": 2}


def test_a_stamp_for_another_output_is_foreign(broker: DevBroker, tmp_path: Path) -> None:
    scene = Scene(broker, tmp_path)
    scene.outputs[3].key = with_pid(scene.outputs[3], scene.pid("unique"))
    assert dict(scene.check().errors) == {"foreign": 1, "lost": 1}


def test_a_foreign_record_where_no_input_partition_leads_is_reported(
    broker: DevBroker, tmp_path: Path
) -> None:
    scene = Scene(broker, tmp_path, "none", partitions=1)
    scene.outputs.append(Output("unique", 1, b"somebody's", b"else", 1_000_000))
    assert dict(scene.check().errors) == {"unknown": 1}


def test_preserved_keys_of_a_topic_that_had_fewer_partitions_are_found(
    broker: DevBroker, tmp_path: Path
) -> None:
    scene = Scene(broker, tmp_path, "none")
    for output in scene.outputs[-6:]:
        output.partition = 0
    assert scene.check().errors == {}


def test_preserved_keys_are_matched_by_content(broker: DevBroker, tmp_path: Path) -> None:
    assert Scene(broker, tmp_path, "none").check().errors == {}
    scene = Scene(broker, tmp_path, "none")
    lose(scene)
    change(scene)
    assert dict(scene.check().errors) == {"unknown": 1, "lost": 2}
