"""What is found before the service starts, against a real broker."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.lanes import Lanes
from replayfilter.kafka.transactions import LaneStats, send_offsets
from replayfilter.service.cli import main as cli
from replayfilter.service.config.loader import config_from
from replayfilter.service.runtime.checkpoint import CheckpointFolder, Identity
from replayfilter.service.runtime.preflight import Findings, core_count, inspect

ROUTES = ("unique", "duplicate", "expired", "error")
numbers = itertools.count()


class Place:
    """A service of its own on the run's broker: names that no other test has, and a checkpoint folder."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap, self.folder = bootstrap, folder / "checkpoint"
        self.name = f"preflight-{next(numbers)}"
        self.cluster = Cluster(bootstrap)
        self.files = CheckpointFolder(self.folder)

    def data(self, **sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
        data: dict[str, dict[str, Any]] = {
            "service": {"name": self.name, "checkpoint": str(self.folder), "master": "local[2]"},
            "kafka": {"bootstrap": self.bootstrap},
            "input": {"topics": [self.name]},
            "dedup": {"key": ["id"], "expiry_key": "ts", "period": "1h"},
            "output": {route: f"{self.name}.{route}" for route in ROUTES},
        }
        for section, keys in sections.items():
            data.setdefault(section, {}).update(keys)
        return data

    def inspect(self, from_committed: bool = False, **sections: dict[str, Any]) -> Findings:
        return inspect(config_from(self.data(**sections)), from_committed)

    def create(self, inputs: int = 2, outputs: int | None = None) -> None:
        counts = {f"{self.name}.{route}": inputs if outputs is None else outputs for route in ROUTES}
        self.cluster.create({self.name: inputs, **counts})

    def write(self, records: int, partition: int, abort: bool = False) -> None:
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "transactional.id": self.name, "log_level": 0}
        )
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(records):
            producer.produce(self.name, b"v", partition=partition)
        producer.flush()
        if abort:
            producer.abort_transaction()
        else:
            producer.commit_transaction()

    def commit(self, offsets: dict[int, int]) -> None:
        at = [TopicPartition(self.name, partition, offset) for partition, offset in offsets.items()]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(self.name, at)])[self.name].result(
            30
        )

    def started(self, end: dict[int, int], finished: bool = True) -> Identity:
        """The checkpoint of a service whose first batch went to ``end``, in the words of Spark 4.0's logs."""
        identity = self.inspect().identity
        assert identity is not None
        self.files.write("replayfilter.json", identity.to_bytes())

        def offsets(of: dict[int, int]) -> str:
            return json.dumps({self.name: {str(partition): offset for partition, offset in of.items()}})

        spark = self.folder / "spark"
        for folder in ("offsets", "commits", "sources/0"):
            (spark / folder).mkdir(parents=True)
        (spark / "offsets/0").write_text('v1\n{"batchWatermarkMs":0}\n' + offsets(end))
        (spark / "offsets/.0.crc").write_bytes(b"crc")
        (spark / "sources/0/0").write_bytes(b"\0v1\n" + offsets(dict.fromkeys(end, 0)).encode())
        if finished:
            (spark / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":0}')
        return identity


@pytest.fixture
def place(bootstrap: str, tmp_path: Path) -> Place:
    return Place(bootstrap, tmp_path)


# ---- topics ------------------------------------------------------------------------------------------


def test_every_missing_topic_is_told_at_once_with_its_key(place: Place) -> None:
    findings = place.inspect()
    assert [fault.split(":")[0] for fault in findings.errors] == [
        "input.topics",
        "output.unique",
        "output.duplicate",
        "output.expired",
        "output.error",
    ]
    assert "replayfilter topics CONFIG" in findings.errors[-1]


def test_topics_makes_what_is_missing_and_says_what_it_did(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "service.toml"
    path.write_text(
        "\n".join(
            f"[{section}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
            for section, keys in place.data().items()
        )
    )
    before = CliRunner().invoke(cli.app, ["topics", str(path)])
    assert before.exit_code == 1
    assert "create it first" in before.stderr

    place.cluster.create({place.name: 3, f"{place.name}.error": 1, f"{place.name}.unique": 3})
    result = CliRunner().invoke(cli.app, ["topics", str(path)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"{place.name}.unique: exists",
        f"{place.name}.duplicate: created with 3 partitions",
        f"{place.name}.expired: created with 3 partitions",
        f"{place.name}.error: exists with 1 partitions; the input has 3",
    ]
    assert place.cluster.topics([f"{place.name}.expired"])[f"{place.name}.expired"].partitions == 3
    findings = place.inspect()
    assert findings.errors == []
    (warning,) = findings.warnings
    assert warning.startswith("output.error")


@pytest.mark.parametrize(("outputs", "words"), [(1, "mingle"), (4, "2 stay empty")])
def test_another_partition_count_is_a_warning(place: Place, outputs: int, words: str) -> None:
    place.create(inputs=2, outputs=outputs)
    findings = place.inspect()
    assert findings.errors == []
    assert len(findings.warnings) == 4
    assert all(words in warning for warning in findings.warnings)


# ---- checkpoint --------------------------------------------------------------------------------------


def test_a_first_start(place: Place) -> None:
    place.create()
    findings = place.inspect()
    assert (findings.errors, findings.warnings, findings.starting) == ([], [], None)
    identity = findings.identity
    assert identity is not None
    assert (identity.shards, identity.lanes, identity.span, identity.unit) == (2, 2, 300_000, "ms")
    assert identity.cluster_id == place.cluster.id
    assert Identity.from_bytes(identity.to_bytes()) == identity
    assert not (place.folder / "replayfilter.json").exists(), "looking changes nothing"


def test_a_restart_finds_nothing_wrong(place: Place) -> None:
    place.create()
    place.write(5, partition=0)  # offsets 0 to 4; the commit marker takes 5, and Spark counts it
    identity = place.started({0: 6, 1: 0})
    place.commit({0: 5})
    findings = place.inspect()
    assert (findings.errors, findings.identity) == ([], identity)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"dedup": {"key": ["id", "shop"]}}, "dedup.key"),
        ({"dedup": {"expiry_key": "time"}}, "dedup.expiry_key"),
        ({"dedup": {"bucket_span": "1m"}}, "dedup.bucket_span"),
        ({"dedup": {"match": "bucket"}}, "dedup.match"),
        ({"dedup": {"clock": "system"}}, "dedup.clock"),
        ({"service": {"shards": 3}}, "service.shards"),
    ],
)
def test_what_belongs_to_the_state_can_not_be_changed(
    place: Place, changes: dict[str, dict[str, Any]], path: str
) -> None:
    place.create()
    place.started({0: 0, 1: 0})
    (fault,) = place.inspect(**changes).faults
    assert fault.startswith(path)
    assert "set it back" in fault


def test_what_may_be_changed(place: Place) -> None:
    place.create()
    kept = place.started({0: 0, 1: 0})
    findings = place.inspect(
        dedup={"period": "3h", "max_future": "1s"},
        service={"master": "local[7]"},
        replay={"mark_ttl": "1h"},
        output={"key": "preserve"},
    )
    assert findings.errors == []
    assert findings.identity == kept, "the default span and shard count stay what they were"


def test_several_differences_come_at_once(place: Place) -> None:
    place.create()
    place.started({0: 0, 1: 0})
    other = f"{place.name}.other"
    place.cluster.create({other: 2})
    faults = place.inspect(dedup={"unit": "s", "key": ["x"]}, input={"topics": [other]}).faults
    # the span counts units, so another unit alone changes it
    assert [fault.split(":")[0].split(" ")[0] for fault in faults] == [
        "dedup.key",
        "dedup.unit",
        "dedup.bucket_span",
        "input.topics",
    ]


def test_a_topic_made_anew_is_another_topic(place: Place) -> None:
    place.create()
    identity = place.started({0: 0, 1: 0})
    stale = dataclasses.replace(identity, topic_ids={place.name: "gone"})
    place.files.write("replayfilter.json", stale.to_bytes())
    (fault,) = place.inspect().faults
    assert "deleted and made again" in fault


def test_another_cluster(place: Place) -> None:
    place.create()
    identity = place.started({0: 0, 1: 0})
    place.files.write("replayfilter.json", dataclasses.replace(identity, cluster_id="elsewhere").to_bytes())
    (fault,) = place.inspect().faults
    assert "belongs to Kafka cluster elsewhere" in fault


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "damaged or not ours"),
        (b"[]", "damaged"),
        (b'{"version": 99}', "has format 99"),
        (None, "no replayfilter.json"),
    ],
)
def test_a_checkpoint_that_is_not_ours(place: Place, content: bytes | None, words: str) -> None:
    place.create()
    place.started({0: 0, 1: 0})
    if content is None:
        (place.folder / "replayfilter.json").unlink()
    else:
        place.files.write("replayfilter.json", content)
    (fault,) = place.inspect().faults
    assert words in fault


# ---- committed offsets -------------------------------------------------------------------------------


def test_a_lost_checkpoint_needs_a_decision(place: Place) -> None:
    place.create()
    place.write(5, partition=1)
    place.commit({1: 3})
    (fault,) = place.inspect().faults
    assert f"{place.name}-1 up to 3" in fault
    assert "--from-committed" in fault
    decided = place.inspect(from_committed=True)
    assert (decided.faults, decided.starting) == ([], {place.name: {1: 3}})


def test_from_committed_does_nothing_where_the_checkpoint_is_there(place: Place) -> None:
    place.create()
    place.write(5, partition=0)
    place.started({0: 6, 1: 0})
    place.commit({0: 5})
    findings = place.inspect(from_committed=True)
    assert (findings.errors, findings.starting) == ([], None)
    assert "has no effect" in findings.warnings[0]


@pytest.mark.parametrize("committed", [None, 3])
def test_a_group_set_back_is_found(place: Place, committed: int | None) -> None:
    place.create()
    place.write(5, partition=0)
    place.started({0: 6, 1: 0})
    if committed is not None:
        place.commit({0: committed})
    (fault,) = place.inspect().faults
    assert f"stands at offset {committed or 0} of {place.name}-0" in fault
    assert "below 6" in fault


def test_a_group_before_nothing_but_markers_and_aborted_records_is_right(place: Place) -> None:
    place.create()
    place.write(5, partition=0)
    place.write(2, partition=0, abort=True)  # offsets 6 and 7, marker 8
    place.started({0: 9, 1: 0})
    place.commit({0: 5})
    assert place.inspect().faults == []


def test_a_batch_not_finished_yet_says_nothing_about_the_group(place: Place) -> None:
    place.create()
    place.write(5, partition=0)
    place.started({0: 6, 1: 0}, finished=False)
    assert place.inspect().faults == []


def test_a_service_killed_in_a_delivery_starts_again_at_once(place: Place) -> None:
    """Its transaction stays open until a lane's next owner ends it, which comes after the preflight."""
    place.create()
    killed = Lanes(place.bootstrap, place.name).open(0)
    killed._begin()
    send_offsets(killed._get_owner().producer, {(place.name, 0): 9}, killed._lanes.offsets.metadata, LaneStats())
    assert not place.inspect().faults
    killed.abort()


def test_a_cluster_does_not_tell_its_cores(place: Place) -> None:
    place.create()
    (fault,) = place.inspect(service={"master": "spark://h:7077"}).faults
    assert "service.shards: missing" in fault
    assert place.inspect(service={"master": "spark://h:7077", "shards": 8}).faults == []
    assert core_count("local[3, 4]") == 3
