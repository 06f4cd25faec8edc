"""The checks before a start, against a real broker."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from replayfilter.service.cli import main as cli
from replayfilter.service.runtime.checkpoint import Identity
from replayfilter.service.runtime.preflight import core_count
from tests.support.deployment import Deployment

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


def test_a_cluster_needs_a_shard_count(deployment: Deployment) -> None:
    deployment.create()
    (error,) = deployment.inspect(service={"master": "spark://h:7077"}).errors
    assert "service.shards: missing" in error
    assert deployment.inspect(service={"master": "spark://h:7077", "shards": 8}).errors == []
    assert core_count("local[3, 4]") == 3
