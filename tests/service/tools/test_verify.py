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

from replayfilter.core.stamp import Stamp
from replayfilter.devbroker import DevBroker
from replayfilter.kafka.admin import Cluster
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

    def __init__(self, broker: DevBroker, folder: Path, key: str = "stamp") -> None:
        self.name = f"verify{next(NAMES)}"
        self.bootstrap = broker.bootstrap
        topics = {route: f"{self.name}.{route}" for route in ROUTES}
        self.config = Config.model_validate({
            "service": {"name": self.name, "checkpoint": str(folder)},
            "kafka": {"bootstrap": broker.bootstrap},
            "input": {"topics": [self.name]},
            "dedup": {"key": ["id"], "expiry_key": "ts", "period": "1h"},
            "output": topics | {"key": key},
        })  # fmt: skip
        cluster = Cluster(broker.bootstrap)
        cluster.create(dict.fromkeys([self.name, *topics.values()], PARTITIONS))
        pid = output_pid(cluster.id, cluster.topics([self.name])[self.name].id, self.name)
        self.outputs: list[Output] = []
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for partition in range(PARTITIONS):
            mark = -1
            # The source goes back twice: 0..9, 5..14, 10..14.
            for offset, source_offset in enumerate([*range(10), *range(5, 15), *range(10, 15)]):
                value, time = b"value %d" % source_offset, 1_000_000 + offset
                stamp = Stamp(77, partition, source_offset).to_bytes()
                producer.produce(self.name, value, stamp, partition, timestamp=time)
                if source_offset > mark:
                    mark = source_offset
                    route = ROUTES[source_offset % 4]
                    out_key = Stamp(pid, partition, offset).to_bytes() if key == "stamp" else stamp
                    output = Output(route, partition, out_key, value, time)
                    if route == "error":
                        output.headers.append(("rf-stage", b"route"))
                    self.outputs.append(output)
        producer.flush()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": self.name})
        ends = [TopicPartition(self.name, partition, 25) for partition in range(PARTITIONS)]
        consumer.commit(offsets=ends, asynchronous=False)
        consumer.close()

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


def lose(scene: Scene) -> None:
    del scene.outputs[3]


def repeat(scene: Scene) -> None:
    scene.outputs.append(scene.outputs[-1])


def repeat_elsewhere(scene: Scene) -> None:
    scene.outputs.append(replace(scene.outputs[-1], route="expired"))


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
        last.route, last.headers = "error", [("rf-stage", b"decode")]
    assert dict(scene.check().errors) == {"lost": PARTITIONS}, "the copy of each is in no output"


def test_preserved_keys_are_matched_by_content(broker: DevBroker, tmp_path: Path) -> None:
    assert Scene(broker, tmp_path, "preserve").check().errors == {}
    scene = Scene(broker, tmp_path, "preserve")
    lose(scene)
    change(scene)
    assert dict(scene.check().errors) == {"unknown": 1, "lost": 2}
