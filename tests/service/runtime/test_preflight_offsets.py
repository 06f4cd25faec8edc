"""The checks of committed offsets before a start, against a real broker."""

from __future__ import annotations

import threading

import pytest

from replayfilter.errors import CheckpointDamaged
from replayfilter.kafka.lanes import Lanes
from replayfilter.kafka.offsets import FIRST
from replayfilter.kafka.transactions import LaneStats, send_offsets
from tests.support.deployment import Deployment

# ---- committed offsets -------------------------------------------------------------------------------


def test_a_lost_checkpoint_needs_from_committed(deployment: Deployment) -> None:
    deployment.create()
    deployment.write(5, partition=1)
    deployment.commit({1: 3})
    (error,) = deployment.inspect().errors
    assert f"{deployment.name}-1 up to 3" in error
    assert "replayfilter rebuild CONFIG" in error
    assert "--from-committed" in error
    decided = deployment.inspect(from_committed=True)
    assert (decided.errors, decided.starting) == ([], {deployment.name: {0: 0, 1: 3}})


@pytest.mark.parametrize("content", ["", "v1\n{", "v1\nnothing"])
def test_a_damaged_offset_log_has_an_error_of_its_own(deployment: Deployment, content: str) -> None:
    deployment.create()
    deployment.started({0: 0, 1: 0})
    (deployment.folder / "spark/offsets/0").write_text(content)
    with pytest.raises(CheckpointDamaged, match="replayfilter rebuild CONFIG"):
        deployment.inspect()


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
