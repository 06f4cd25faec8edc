"""Every input partition has a committed offset before a query reads it; on a real broker, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from replayfilter.core.rules import Rules
from replayfilter.formats import KeySpec
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.membership import Membership
from replayfilter.kafka.offsets import FIRST, Committed
from replayfilter.spark.first_offsets import as_member, with_first_offsets
from replayfilter.spark.pipeline_settings import PipelineSettings
from tests.support.topics import new_topic


class Group:
    """A topic of three partitions, five records in partition 0, and a driver in the group of its name."""

    def __init__(self, bootstrap: str) -> None:
        self.topic = new_topic(bootstrap, "first-offsets", 3)
        producer = Producer({"bootstrap.servers": bootstrap})
        for _ in range(5):
            producer.produce(self.topic, b"v", partition=0)
        producer.flush()
        self.membership = Membership({"bootstrap.servers": bootstrap}, self.topic, [self.topic])
        self.settings = PipelineSettings(
            service=self.topic,
            checkpoint="",
            bootstrap=bootstrap,
            topics=(self.topic,),
            keys=KeySpec("raw", (), None, "ms"),
            rules=Rules(period=1, span=1),
            outputs={},
            output_pids={},
            shards=1,
            lanes=1,
        )

    def begin(self, starting: str | dict[int, int], planned: dict[int, int]) -> dict[int, int] | None:
        """Commit what is missing; where the query begins, None if the checkpoint says it."""
        chosen = starting if isinstance(starting, str) else {self.topic: starting}
        settings = replace(self.settings, starting=chosen, membership=self.membership.current())
        ends = {(self.topic, number): offset for number, offset in planned.items()}
        found = with_first_offsets(settings, ends).starting
        return None if isinstance(found, str) or found == chosen else dict(found[self.topic])

    def committed(self) -> dict[int, Committed]:
        """What the group has."""
        partitions = [(self.topic, number) for number in range(3)]
        found = Cluster(self.settings.bootstrap).committed_entries(self.topic, partitions)
        return {number: entry for (_, number), entry in found.items()}


@pytest.fixture
def group(bootstrap: str) -> Iterator[Group]:
    made = Group(bootstrap)
    with made.membership:
        yield made


@pytest.mark.parametrize(("starting", "first"), [("earliest", 0), ("latest", 5)])
def test_the_first_start_commits_where_it_begins(group: Group, starting: str, first: int) -> None:
    assert group.begin(starting, {}) == {0: first, 1: 0, 2: 0}
    assert group.committed() == {0: (first, FIRST), 1: (0, FIRST), 2: (0, FIRST)}


def test_a_partition_that_was_added_begins_at_its_earliest_record(group: Group) -> None:
    assert group.begin("latest", {1: 0, 2: 0}) is None
    assert group.committed() == {0: (0, FIRST)}


def test_offsets_that_have_expired_are_committed_and_others_are_left_alone(group: Group) -> None:
    assert group.begin({1: 9}, {0: 4, 1: 9, 2: 0}) is None
    assert group.begin({0: 4, 1: 2}, {0: 4, 1: 9, 2: 0}) is None
    assert group.committed() == {0: (4, ""), 1: (9, "")}


def test_a_driver_that_joins_again_meanwhile_commits_with_its_new_membership(group: Group) -> None:
    """As after it was frozen: Kafka refuses the old membership as it does one that was replaced."""
    old = group.membership.current()
    with Membership({"bootstrap.servers": group.settings.bootstrap}, group.topic, [group.topic]) as joined:
        new = joined.current()

        class JoinedAgain(Membership):
            def __init__(self) -> None:
                self.known = [new, old]

            def current(self, limit: float = 0) -> bytes:
                return self.known.pop()

            def ask(self) -> None:
                joined.ask()

        assert as_member(group.settings, {}, JoinedAgain()).membership == new
        assert group.committed()[0] == Committed(0, FIRST)
