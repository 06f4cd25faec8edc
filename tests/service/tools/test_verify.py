"""``verify`` on a real broker: outputs as the service writes them pass, and each kind of fault is found."""

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
from replayfilter.service.tools.verify import Verdict, Verifier, verify
from replayfilter.spark.partitioning import output_pid

ROUTES = ("unique", "duplicate", "expired", "error")
PARTITIONS = 2
NAMES = itertools.count()
Headers = list[tuple[str, bytes]]


@dataclass
class Out:
    """A record on its way to an output."""

    route: str
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers = field(default_factory=list)


class Scene:
    """Topics of their own, an input of 40 records with replays, and outputs as they should be."""

    def __init__(self, broker: DevBroker, folder: Path, key: str = "stamp") -> None:
        self.name = f"verify{next(NAMES)}"
        self.bootstrap = broker.bootstrap
        outputs = {route: f"{self.name}.{route}" for route in ROUTES}
        self.config = Config(**{
            "service": {"name": self.name, "checkpoint": str(folder)},
            "kafka": {"bootstrap": broker.bootstrap},
            "input": {"topics": [self.name]},
            "dedup": {"key": ["id"], "expiry_key": "ts", "period": "1h"},
            "output": outputs | {"key": key},
        })  # fmt: skip
        cluster = Cluster(broker.bootstrap)
        cluster.create(dict.fromkeys([self.name, *outputs.values()], PARTITIONS))
        pid = output_pid(cluster.id, cluster.topics([self.name])[self.name].id, self.name)
        self.outs: list[Out] = []
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for partition in range(PARTITIONS):
            mark = -1
            # The source goes back twice: 0..9, 5..14, 10..14 and once more a broken record.
            for offset, at in enumerate([*range(10), *range(5, 15), *range(10, 15)]):
                value, time = b"value %d" % at, 1_000_000 + offset
                stamp = Stamp(77, partition, at).to_bytes()
                producer.produce(self.name, value, stamp, partition, timestamp=time)
                if at > mark:
                    mark = at
                    own = Stamp(pid, partition, offset).to_bytes()
                    route = ROUTES[at % 4]
                    headers = [("rf-stage", b"route")] if route == "error" else []
                    self.outs.append(
                        Out(route, partition, own if key == "stamp" else stamp, value, time, headers)
                    )
        producer.flush()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": self.name})
        ends = [TopicPartition(self.name, partition, 25) for partition in range(PARTITIONS)]
        consumer.commit(offsets=ends, asynchronous=False)
        consumer.close()

    def check(self) -> Verdict:
        """Write the outputs and look."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for out in self.outs:
            topic = f"{self.name}.{out.route}"
            headers = out.headers or None
            producer.produce(
                topic, out.value, out.key, out.partition, timestamp=out.timestamp, headers=headers
            )
        producer.flush()
        return Verifier(self.config).check()


def test_what_is_right_passes_with_its_replays(broker: DevBroker, tmp_path: Path) -> None:
    scene = Scene(broker, tmp_path)
    verdict = scene.check()
    assert verdict.faults == {}
    for ledger in verdict.ledgers.values():
        assert (len(ledger.offsets), sum(ledger.delivered.values()), ledger.replays) == (25, 15, 10)
    out = io.StringIO()
    assert verify(scene.config, Console(file=out, width=160))
    assert "exactly one output" in out.getvalue()
    total = next(line for line in out.getvalue().splitlines() if line.startswith("all"))
    assert total.split() == ["all", "50", "8", "8", "8", "6", "20", "0"]


def lose(scene: Scene) -> None:
    del scene.outs[3]


def repeat(scene: Scene) -> None:
    scene.outs.append(scene.outs[-1])


def repeat_elsewhere(scene: Scene) -> None:
    scene.outs.append(replace(scene.outs[-1], route="expired"))


def change(scene: Scene) -> None:
    scene.outs[3] = replace(scene.outs[3], value=b"another")


def change_time(scene: Scene) -> None:
    scene.outs[3] = replace(scene.outs[3], timestamp=7)


def null_for_empty(scene: Scene) -> None:
    scene.outs[3] = replace(scene.outs[3], value=None)


def misplace(scene: Scene) -> None:
    scene.outs[3] = replace(scene.outs[3], partition=1)


def disorder(scene: Scene) -> None:
    scene.outs[0], scene.outs[4] = scene.outs[4], scene.outs[0]


def invent(scene: Scene) -> None:
    key = scene.outs[-1].key
    assert key is not None
    scene.outs[-1] = replace(scene.outs[-1], key=Stamp.from_bytes(key)._replace(partition=9).to_bytes())  # type: ignore[union-attr]


def intrude(scene: Scene) -> None:
    scene.outs.append(Out("unique", 0, b"somebody's", b"else", 1_000_000))


@pytest.mark.parametrize(
    ("spoil", "faults"),
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
def test_each_fault_is_found(
    broker: DevBroker, tmp_path: Path, spoil: Callable[[Scene], None], faults: dict[str, int]
) -> None:
    scene = Scene(broker, tmp_path)
    spoil(scene)
    verdict = scene.check()
    assert dict(verdict.faults) == faults
    assert all(verdict.examples[fault] for fault in faults)


def test_an_error_of_decode_leaves_no_mark_so_its_repetition_must_be_delivered_too(
    broker: DevBroker, tmp_path: Path
) -> None:
    scene = Scene(broker, tmp_path)
    # The highest of a source's records was broken: what comes again after it is no replay.
    for partition in range(PARTITIONS):
        last = max((out for out in scene.outs if out.partition == partition), key=lambda out: out.timestamp)
        last.route, last.headers = "error", [("rf-stage", b"decode")]
    verdict = scene.check()
    assert dict(verdict.faults) == {"lost": PARTITIONS}, "its copy, which the stream holds too, is missing"


def test_by_content_where_keys_are_preserved(broker: DevBroker, tmp_path: Path) -> None:
    assert Scene(broker, tmp_path, "preserve").check().faults == {}
    scene = Scene(broker, tmp_path, "preserve")
    lose(scene)
    change(scene)
    assert dict(scene.check().faults) == {"unknown": 1, "lost": 2}
