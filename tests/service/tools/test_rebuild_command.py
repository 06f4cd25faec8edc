"""The command ``rebuild``: what it refuses, what it reads, and a service that goes on after it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from replayfilter.demo.kafka_io import create_topic, publish, read_topic
from replayfilter.demo.stream import OUTPUTS
from replayfilter.demo.walkthrough import write_config
from replayfilter.errors import BrokerError, CheckpointError, ConfigError
from replayfilter.kafka.offsets import FIRST
from replayfilter.service.config.loader import config_from
from replayfilter.service.runtime.checkpoint import IDENTITY, REBUILDING
from replayfilter.service.tools.rebuild import rebuild_plan
from replayfilter.service.tools.rebuild.rebuild_job import check_rebuildable, prepare_checkpoint, summary
from replayfilter.service.tools.rebuild.rebuild_plan import (
    Reading,
    check_unmoved,
    plan_reading,
)
from replayfilter.spark.checkpoint_folder import LocalFolder
from replayfilter.spark.recall import RecallSettings
from tests.support.configs import config_with
from tests.support.deployment import Deployment
from tests.support.example_plan import settings_with
from tests.support.halves import Halves
from tests.support.service_process import Checkpoint, ServiceProcess

PARTITIONS = 4


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"dedup": {"clock": "categorical", "unit": "integer", "period": 3}}, "which categories are open"),
        ({"dedup": {"scope": "partition"}, "output": {"stamp": "none"}}, 'dedup.scope = "partition"'),
        ({"dedup": {"remember_first": True}, "output": {"stamp": "none"}}, "dedup.remember_first = true"),
        ({"dedup": {"key": ["id", "@key"]}, "input": {"stamp": "header"}}, 'made from "@key"'),
    ],
)
def test_what_the_outputs_do_not_tell_is_refused(sections: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match="--from-committed") as caught:
        check_rebuildable(config_with(**sections))
    (message,) = caught.value.errors
    assert expected in message


def test_records_of_others_have_no_position_in_the_input() -> None:
    within = config_with(dedup={"scope": "partition"})
    check_rebuildable(within)
    with pytest.raises(ConfigError, match="with --foreign nothing says where"):
        check_rebuildable(within, foreign=True)


def test_most_configs_can_be_rebuilt() -> None:
    check_rebuildable(config_with())
    check_rebuildable(config_with(output={"stamp": "none"}))
    check_rebuildable(
        config_with(dedup={"key": ["@key"]}, input={"stamp": "header"}, output={"stamp": "header"})
    )
    check_rebuildable(config_with(dedup={"scope": "partition", "remember_first": True}))


def test_a_checkpoint_is_never_changed(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    folder.write(IDENTITY, b"{}")
    with pytest.raises(CheckpointError, match="there is a checkpoint already"):
        prepare_checkpoint(folder)
    assert folder.names("") == [IDENTITY]


def test_what_an_interrupted_rebuild_has_left_is_removed(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    folder.write(REBUILDING, b"")
    (tmp_path / "spark" / "state" / "0").mkdir(parents=True)
    folder.write("lock", b"")
    prepare_checkpoint(folder)
    assert folder.names("") == ["lock"]
    (tmp_path / "spark").mkdir()  # of somebody else, who has left no mark
    prepare_checkpoint(folder)
    assert sorted(folder.names("")) == ["lock", "spark"]


def test_an_interrupted_rebuild_is_no_checkpoint(deployment: Deployment) -> None:
    deployment.create()
    deployment.files.write(REBUILDING, b"")
    (deployment.folder / "spark" / "offsets").mkdir(parents=True)
    (deployment.folder / "spark" / "offsets" / "0").write_text("v1\n{}\n{}")
    (error,) = deployment.inspect().errors
    assert error == "service.checkpoint: a rebuild was interrupted; run: replayfilter rebuild CONFIG"


def test_what_is_read(deployment: Deployment) -> None:
    """The input up to the committed offsets, and all of the outputs that say what is remembered."""
    deployment.create()
    deployment.write(9, partition=0)
    producer = Producer({"bootstrap.servers": deployment.bootstrap})
    for route, count in (("unique", 3), ("duplicate", 2), ("expired", 1), ("error", 1)):
        for _ in range(count):
            producer.produce(f"{deployment.name}.{route}", b"v", partition=1)
    producer.flush()
    deployment.commit({0: 5})
    deployment.commit({1: 0}, FIRST)
    reading = reading_of(deployment)
    name = deployment.name
    assert reading.ranges == {
        (name, 0): (0, 5),
        (f"{name}.unique", 1): (0, 3),
        (f"{name}.duplicate", 1): (0, 2),
    }
    assert (reading.ends, reading.notes) == ({(name, 0): 5, (name, 1): 0}, [])
    no_replays: dict[str, Any] = {
        "input": {"stamp": "none"},
        "replay": {"enabled": False},
        "dedup": {"clock": "system"},
    }
    assert reading_of(deployment, **no_replays).ranges == {(f"{name}.unique", 1): (0, 3)}
    assert reading_of(deployment, dedup={"enabled": False}).ranges == {(name, 0): (0, 5)}


def test_what_kafka_has_deleted_is_said(deployment: Deployment) -> None:
    deployment.create(inputs=1)
    deployment.write(9, partition=0)
    deployment.commit({0: 9})
    producer = Producer({"bootstrap.servers": deployment.bootstrap})
    for _ in range(4):
        producer.produce(f"{deployment.name}.unique", b"v")
    producer.flush()
    deployment.delete_before({(deployment.name, 0): 5, (f"{deployment.name}.unique", 0): 3})
    reading = reading_of(deployment)
    assert reading.ranges == {(deployment.name, 0): (5, 9), (f"{deployment.name}.unique", 0): (3, 4)}
    keys, marks = reading.notes
    assert keys.startswith(f"{deployment.name}.unique-0 begins at 3: keys")
    assert marks.startswith(f"{deployment.name}-0 begins at 5: sources")


def test_a_compacted_topic_is_said(deployment: Deployment) -> None:
    unique = f"{deployment.name}.unique"
    deployment.cluster.create({unique: 2}, settings={"cleanup.policy": "compact"})
    deployment.create()
    deployment.write(1, partition=0)
    deployment.commit({0: 1})
    (note,) = reading_of(deployment).notes
    assert note.startswith(f"{unique} is compacted")


def test_a_transaction_that_is_open_in_an_output_is_waited_for(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild_plan, "SETTLE_SECONDS", 0.0)
    deployment.create()
    deployment.write(1, partition=0)
    deployment.commit({0: 1})
    unique = f"{deployment.name}.unique"
    producer = Producer(
        {"bootstrap.servers": deployment.bootstrap, "transactional.id": unique, "log_level": 0}
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(unique, b"v", partition=1)
    producer.flush()
    with pytest.raises(BrokerError, match=f"{unique}-1: a transaction is open"):
        reading_of(deployment)
    producer.commit_transaction()
    monkeypatch.undo()
    assert reading_of(deployment).ranges[unique, 1] == (0, 2)  # the record, and the transaction's marker


def test_offsets_that_move_during_a_rebuild_are_noticed(deployment: Deployment) -> None:
    deployment.create()
    deployment.write(9, partition=0)
    deployment.commit({0: 5})
    reading, config = reading_of(deployment), config_from(deployment.data())
    check_unmoved(config, deployment.cluster, reading)
    deployment.commit({0: 7})
    with pytest.raises(CheckpointError, match=r"at offset 7 of .*-0, and was at 5 when the rebuild began"):
        check_unmoved(config, deployment.cluster, reading)


def test_nothing_delivered_is_nothing_to_rebuild(deployment: Deployment) -> None:
    deployment.create()
    with pytest.raises(CheckpointError, match="has delivered nothing"):
        reading_of(deployment)
    deployment.commit({0: 0, 1: 0}, FIRST)
    with pytest.raises(CheckpointError, match="has delivered nothing"):
        reading_of(deployment)


def test_the_summary_says_what_is_not_known() -> None:
    reading = Reading({}, {}, ["a note"])
    counted = {"keys": 1_200, "sources_in_shards": 9, "outputs": 1_300, "input": 1_500}
    settings = RecallSettings(settings_with(), 0, (), {})
    first, note, marks = summary(counted, reading, settings)
    assert first == (
        "rebuilt from 1,300 delivered and 1,500 input records: 1,200 keys and 3 sources in 3 shards"
    )
    assert (note, marks.startswith("each source counts as seen now")) == ("a note", True)
    (*_, warning) = summary(counted | {"sources_in_shards": 300_003}, reading, settings)
    assert warning.startswith("replay.max_sources = 100000: there are more")
    counted |= {"foreign": 2, "unreadable": 3, "null_ages": 4}
    lines = summary(counted, reading, settings)
    assert [line.split()[0] for line in lines[2:5]] == ["2", "3", "4"]
    assert lines[2].endswith(": left out")
    lines = summary(counted, reading, replace(settings, foreign=True))
    assert lines[2].endswith(": remembered like the others")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rebuilt_service_goes_on_as_if_nothing_was_lost(bootstrap: str, tmp_path: Path) -> None:
    """A service is killed, and its checkpoint is lost; the rebuild is killed, too.

    The service goes on with other shards than before.
    """
    name, halves = "rebuild-command", Halves(6_000, PARTITIONS)
    for topic in (name, *(f"{name}.{route}" for route in OUTPUTS)):
        create_topic(bootstrap, topic, PARTITIONS)
    config = write_config(tmp_path, bootstrap, name, batch_records=900)
    text = config.read_text().replace("[input]", '[kafka.options]\n"session.timeout.ms" = "6000"\n[input]')
    config.write_text(text)
    checkpoint = tmp_path / "checkpoint"
    publish(bootstrap, name, halves.first)
    with ServiceProcess(config) as service:
        service.await_change(lambda: Checkpoint(checkpoint).committed() >= 1)
        service.kill(service.pids())
    assert "there is a checkpoint already" in replayfilter("rebuild", config).stderr
    shutil.rmtree(checkpoint)
    assert "replayfilter rebuild" in replayfilter("run", config, "--once").stderr

    config.write_text(text.replace("[kafka]", "shards = 3\n[kafka]"))
    with ServiceProcess(config, command="rebuild") as service:
        service.await_change((checkpoint / "spark" / "offsets").exists)
        service.kill(service.pids())
    assert "a rebuild was interrupted" in replayfilter("run", config, "--once").stderr
    ended = replayfilter("rebuild", config)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    assert "in 3 shards" in ended.stdout
    assert not (checkpoint / REBUILDING).exists()

    publish(bootstrap, name, halves.second)
    assert replayfilter("run", config, "--once").returncode == 0
    assert halves.problems({route: read_topic(bootstrap, f"{name}.{route}") for route in OUTPUTS}) == {}


def reading_of(deployment: Deployment, **sections: dict[str, Any]) -> Reading:
    findings = deployment.inspect(True, None, **sections)
    assert findings.errors == []
    return plan_reading(config_from(deployment.data(**sections)), findings, deployment.cluster)


def replayfilter(command: str, config: Path, *options: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "replayfilter", command, str(config), *options]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False)
