"""The checks before a start, against a real broker."""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.lanes import Lanes
from replayfilter.kafka.offsets import FIRST
from replayfilter.kafka.transactions import LaneStats, send_offsets
from replayfilter.service.cli import main as cli
from replayfilter.service.config.loader import config_from
from replayfilter.service.runtime.checkpoint import Identity
from replayfilter.service.runtime.preflight import Findings, core_count, inspect
from replayfilter.spark.checkpoint_folder import LocalFolder

ROUTES = ("unique", "duplicate", "expired", "error")
numbers = itertools.count()


class Deployment:
    """A service on the shared broker, with topic names that no other test uses and a checkpoint folder."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap, self.folder = bootstrap, folder / "checkpoint"
        self.name = f"preflight-{next(numbers)}"
        self.cluster = Cluster(bootstrap)
        self.files = LocalFolder(self.folder)

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

    def inspect(
        self, from_committed: bool = False, uncommitted: str | None = None, **sections: dict[str, Any]
    ) -> Findings:
        return inspect(config_from(self.data(**sections)), from_committed, uncommitted)

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

    def commit(self, offsets: dict[int, int], metadata: str = "") -> None:
        at = [TopicPartition(self.name, partition, offset, metadata) for partition, offset in offsets.items()]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(self.name, at)])[self.name].result(
            30
        )

    def started(self, end: dict[int, int], finished: bool = True) -> Identity:
        """Write the checkpoint of a service whose first batch ended at ``end``, as Spark 4.0 writes it."""
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
def deployment(bootstrap: str, tmp_path: Path) -> Deployment:
    return Deployment(bootstrap, tmp_path)


# ---- topics ------------------------------------------------------------------------------------------


def test_all_missing_topics_are_reported_at_once_with_their_keys(deployment: Deployment) -> None:
    findings = deployment.inspect()
    assert [error.split(":")[0] for error in findings.errors] == [
        "input.topics",
        "output.unique",
        "output.duplicate",
        "output.expired",
        "output.error",
    ]
    assert "replayfilter topics CONFIG" in findings.errors[-1]


def test_the_topics_command_creates_missing_topics_and_reports_them(
    deployment: Deployment, tmp_path: Path
) -> None:
    path = tmp_path / "service.toml"
    path.write_text(
        "\n".join(
            f"[{section}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
            for section, keys in deployment.data().items()
        )
    )
    before = CliRunner().invoke(cli.app, ["topics", str(path)])
    assert before.exit_code == 1
    assert "create it first" in before.stderr

    deployment.cluster.create(
        {deployment.name: 3, f"{deployment.name}.error": 1, f"{deployment.name}.unique": 3}
    )
    result = CliRunner().invoke(cli.app, ["topics", str(path)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"{deployment.name}.unique: exists",
        f"{deployment.name}.duplicate: created with 3 partitions",
        f"{deployment.name}.expired: created with 3 partitions",
        f"{deployment.name}.error: exists with 1 partitions; the input has 3",
    ]
    assert (
        deployment.cluster.topics([f"{deployment.name}.expired"])[f"{deployment.name}.expired"].partitions
        == 3
    )
    findings = deployment.inspect()
    assert findings.errors == []
    (warning,) = findings.warnings
    assert warning.startswith("output.error")


@pytest.mark.parametrize(("outputs", "words"), [(1, "are mixed"), (4, "2 stay empty")])
def test_a_different_partition_count_is_a_warning(deployment: Deployment, outputs: int, words: str) -> None:
    deployment.create(inputs=2, outputs=outputs)
    findings = deployment.inspect()
    assert findings.errors == []
    assert len(findings.warnings) == 4
    assert all(words in warning for warning in findings.warnings)


# ---- checkpoint --------------------------------------------------------------------------------------


def test_a_first_start_has_no_errors(deployment: Deployment) -> None:
    deployment.create()
    findings = deployment.inspect()
    assert (findings.errors, findings.warnings, findings.starting) == ([], [], None)
    identity = findings.identity
    assert identity is not None
    assert (identity.shards, identity.lanes, identity.span, identity.unit) == (2, 2, 300_000, "ms")
    assert identity.cluster_id == deployment.cluster.id
    assert Identity.from_bytes(identity.to_bytes()) == identity
    assert not (deployment.folder / "replayfilter.json").exists(), "the checks change nothing"


def test_a_restart_has_no_errors(deployment: Deployment) -> None:
    deployment.create()
    deployment.write(5, partition=0)  # offsets 0 to 4; the commit marker takes 5, and Spark counts it
    identity = deployment.started({0: 6, 1: 0})
    deployment.commit({0: 5})
    findings = deployment.inspect()
    assert (findings.errors, findings.identity) == ([], identity)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"dedup": {"key": ["id", "shop"]}}, "dedup.key"),
        ({"dedup": {"expiry_key": "time"}}, "dedup.expiry_key"),
        ({"dedup": {"bucket_span": "1m"}}, "dedup.bucket_span"),
        ({"dedup": {"scope": "partition"}}, "dedup.scope"),
        ({"dedup": {"match": "bucket"}}, "dedup.match"),
        ({"dedup": {"clock": "system"}}, "dedup.clock"),
        ({"service": {"shards": 3}}, "service.shards"),
    ],
)
def test_settings_of_the_state_cannot_be_changed(
    deployment: Deployment, changes: dict[str, Any], path: str
) -> None:
    deployment.create()
    deployment.started({0: 0, 1: 0})
    (error,) = deployment.inspect(**changes).errors
    assert error.startswith(path)
    assert "set it back" in error


def test_other_settings_can_be_changed(deployment: Deployment) -> None:
    deployment.create()
    kept = deployment.started({0: 0, 1: 0})
    findings = deployment.inspect(
        dedup={"period": "3h", "max_future": "1s"},
        service={"master": "local[7]"},
        replay={"mark_ttl": "1h"},
        output={"stamp": "none"},
    )
    assert findings.errors == []
    assert findings.identity == kept, "the default span and shard count stay what they were"


def test_all_differences_are_reported_at_once(deployment: Deployment) -> None:
    deployment.create()
    deployment.started({0: 0, 1: 0})
    other = f"{deployment.name}.other"
    deployment.cluster.create({other: 2})
    errors = deployment.inspect(dedup={"unit": "s", "key": ["x"]}, input={"topics": [other]}).errors
    # the span is counted in units, so a different unit changes it too
    assert [error.split(":")[0].split(" ")[0] for error in errors] == [
        "dedup.key",
        "dedup.unit",
        "dedup.bucket_span",
        "input.topics",
    ]


def test_a_topic_that_was_created_again_is_another_topic(deployment: Deployment) -> None:
    deployment.create()
    identity = deployment.started({0: 0, 1: 0})
    stale = dataclasses.replace(identity, topic_ids={deployment.name: "gone"})
    deployment.files.write("replayfilter.json", stale.to_bytes())
    (error,) = deployment.inspect().errors
    assert "deleted and created again" in error


def test_a_checkpoint_of_another_cluster_is_an_error(deployment: Deployment) -> None:
    deployment.create()
    identity = deployment.started({0: 0, 1: 0})
    deployment.files.write(
        "replayfilter.json", dataclasses.replace(identity, cluster_id="elsewhere").to_bytes()
    )
    (error,) = deployment.inspect().errors
    assert "belongs to Kafka cluster elsewhere" in error


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "damaged or from another program"),
        (b"[]", "damaged"),
        (b'{"version": 99}', "has format 99"),
        (None, "no replayfilter.json"),
    ],
)
def test_a_foreign_or_damaged_checkpoint_is_an_error(
    deployment: Deployment, content: bytes | None, words: str
) -> None:
    deployment.create()
    deployment.started({0: 0, 1: 0})
    if content is None:
        (deployment.folder / "replayfilter.json").unlink()
    else:
        deployment.files.write("replayfilter.json", content)
    (error,) = deployment.inspect().errors
    assert words in error


def test_batches_that_an_output_does_not_take_are_an_error(deployment: Deployment) -> None:
    deployment.cluster.create({f"{deployment.name}.error": 2}, settings={"max.message.bytes": "20000"})
    deployment.create()
    (error,) = deployment.inspect(kafka={"options": {"batch.size": "20001"}}).errors
    assert error.startswith("kafka.options.batch.size = 20001: ")
    assert f"output.error = {deployment.name}.error takes batches of at most 20000 bytes" in error
    assert not deployment.inspect(kafka={"options": {"batch.size": "20000"}}).errors


# ---- committed offsets -------------------------------------------------------------------------------


def test_a_lost_checkpoint_needs_from_committed(deployment: Deployment) -> None:
    deployment.create()
    deployment.write(5, partition=1)
    deployment.commit({1: 3})
    (error,) = deployment.inspect().errors
    assert f"{deployment.name}-1 up to 3" in error
    assert "--from-committed" in error
    decided = deployment.inspect(from_committed=True)
    assert (decided.errors, decided.starting) == ([], {deployment.name: {0: 0, 1: 3}})


def test_from_committed_has_no_effect_if_there_is_a_checkpoint(deployment: Deployment) -> None:
    deployment.create()
    deployment.write(5, partition=0)
    deployment.started({0: 6, 1: 0})
    deployment.commit({0: 5, 1: 0})
    findings = deployment.inspect(from_committed=True)
    assert (findings.errors, findings.starting) == ([], None)
    assert "has no effect" in findings.warnings[0]


def test_from_committed_asks_where_to_begin_without_a_committed_offset(deployment: Deployment) -> None:
    """Partition 0 has been idle since a start at the latest offset; partition 2 has never had a record."""
    deployment.create(inputs=3)
    deployment.write(7, partition=0)
    deployment.write(5, partition=1)
    deployment.commit({1: 5})
    (error,) = deployment.inspect(from_committed=True).errors
    assert f"no committed offset for {deployment.name}-0, so" in error
    assert "--uncommitted earliest" in error
    for choice, offset in (("earliest", 0), ("latest", 8)):
        found = deployment.inspect(from_committed=True, uncommitted=choice)
        assert (found.errors, found.starting) == ([], {deployment.name: {0: offset, 1: 5, 2: 0}})


def test_a_service_that_has_delivered_nothing_begins_where_it_began(deployment: Deployment) -> None:
    deployment.create()
    deployment.write(5, partition=1)
    deployment.commit({0: 0, 1: 3}, FIRST)
    found = deployment.inspect()
    assert (found.errors, found.starting) == ([], {deployment.name: {0: 0, 1: 3}})


def test_a_group_that_was_set_back_is_an_error(deployment: Deployment) -> None:
    deployment.create()
    deployment.write(5, partition=0)
    deployment.started({0: 6, 1: 0})
    deployment.commit({0: 3})
    (error,) = deployment.inspect().errors
    assert f"is at offset 3 of {deployment.name}-0" in error
    assert "below 6" in error


@pytest.mark.parametrize("before", [{0: 3}, {}])
def test_a_commit_that_is_still_pending_is_waited_for(deployment: Deployment, before: dict[int, int]) -> None:
    """As after a kill right after a delivery: Kafka confirms a commit before its offsets count."""
    deployment.create()
    deployment.write(5, partition=0)
    deployment.started({0: 6, 1: 0}, finished=bool(before))
    deployment.files.write("decisions.json", b"{}")
    if before:
        deployment.commit(before)
    lane = Lanes(deployment.bootstrap, deployment.name).open(0)
    lane._begin()
    producer = lane._get_owner().producer
    send_offsets(producer, {(deployment.name, 0): 6}, lane._lanes.offsets.metadata, LaneStats())
    commit = threading.Timer(1.0, producer.commit_transaction)
    commit.start()
    assert deployment.inspect().errors == []
    commit.join()


def test_offsets_that_have_expired_are_committed_again(deployment: Deployment) -> None:
    deployment.create()
    deployment.write(5, partition=0)
    deployment.started({0: 6, 1: 0})
    found = deployment.inspect()
    assert (found.errors, found.starting) == ([], {deployment.name: {0: 6, 1: 0}})
    (warning,) = found.warnings
    assert f"no committed offset for {deployment.name}-0 any more" in warning


@pytest.mark.parametrize("recorded", [True, False])
def test_offsets_that_have_expired_with_an_unfinished_batch(deployment: Deployment, recorded: bool) -> None:
    """Only a service of a version before decisions.json may have had no committed offset."""
    deployment.create()
    deployment.write(5, partition=0)
    deployment.started({0: 6, 1: 0}, finished=False)
    if recorded:
        deployment.files.write("decisions.json", b"{}")
    found = deployment.inspect()
    if recorded:
        (error,) = found.errors
        assert f"{deployment.name}-0 any more, and batch 0 is unfinished" in error
        assert "from 0 to 5" in error
    else:
        assert (found.errors, found.starting) == ([], {deployment.name: {0: 0, 1: 0}})


def test_a_group_behind_only_markers_and_aborted_records_is_not_an_error(deployment: Deployment) -> None:
    deployment.create()
    deployment.write(5, partition=0)
    deployment.write(2, partition=0, abort=True)  # offsets 6 and 7, marker 8
    deployment.started({0: 9, 1: 0})
    deployment.commit({0: 5})
    assert deployment.inspect().errors == []


def test_a_service_killed_during_a_delivery_can_start_again_at_once(deployment: Deployment) -> None:
    """Its transaction stays open until the next owner of the lane ends it, which is after the preflight."""
    deployment.create()
    killed = Lanes(deployment.bootstrap, deployment.name).open(0)
    killed._begin()
    send_offsets(
        killed._get_owner().producer, {(deployment.name, 0): 9}, killed._lanes.offsets.metadata, LaneStats()
    )
    assert not deployment.inspect().errors
    killed.abort()


def test_a_cluster_needs_a_shard_count(deployment: Deployment) -> None:
    deployment.create()
    (error,) = deployment.inspect(service={"master": "spark://h:7077"}).errors
    assert "service.shards: missing" in error
    assert deployment.inspect(service={"master": "spark://h:7077", "shards": 8}).errors == []
    assert core_count("local[3, 4]") == 3
