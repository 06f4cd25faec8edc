"""Topics that change while the service runs, on a real broker."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # not in its stubs

from replayfilter.devbroker import DevBroker
from replayfilter.kafka.admin import Cluster, Topic
from replayfilter.service.monitor.topics_poller import TopicsPoller
from tests.support.example_plan import settings_with
from tests.support.service_process import wait_for
from tests.support.topics import new_topic


class PolledTopics:
    """Two topics of two partitions each, and what the poller said about them."""

    def __init__(self, bootstrap: str) -> None:
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.cluster = Cluster(bootstrap)
        self.one, self.other = new_topic(bootstrap, "polled", 2), new_topic(bootstrap, "polled", 2)
        self.changes: list[Mapping[str, Topic]] = []
        self.problems: list[list[str]] = []
        self.messages: list[str] = []
        self.poller = TopicsPoller(
            settings_with(kafka={"bootstrap": bootstrap}), self.topics(), self.changes.append,
            self.problems.append, self.messages.append,
        )  # fmt: skip

    def topics(self) -> dict[str, Topic]:
        return self.cluster.topics([self.one, self.other])

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(20)
        wait_for(lambda: topic not in self.topics(), 20, "the topic is still there")


def test_more_partitions_are_reported_once(broker: DevBroker) -> None:
    polled = PolledTopics(broker.bootstrap)
    polled.poller.poll()
    assert (polled.changes, polled.messages) == ([], [])
    polled.admin.create_partitions([NewPartitions(polled.other, 5)])[polled.other].result(20)
    polled.poller.poll()
    polled.poller.poll()
    assert polled.changes == [polled.topics()]
    assert polled.messages == [f"topic {polled.other} has 5 partitions now, 2 before; all are used"]
    assert polled.problems == []


def test_a_topic_that_is_gone_ends_the_service_at_the_second_poll(broker: DevBroker) -> None:
    polled = PolledTopics(broker.bootstrap)
    polled.delete(polled.one)
    polled.poller.poll()
    assert polled.problems == [], "a broker that has just started may not know all topics"
    polled.poller.poll()
    ((problem,),) = polled.problems
    assert problem.startswith(
        f"there is no topic {polled.one} at {broker.bootstrap} any more; create it again"
    )
    assert polled.changes == []


def test_a_topic_made_again(broker: DevBroker) -> None:
    """With as many partitions the service goes on, and its pids are new ones; with fewer it can't."""
    polled = PolledTopics(broker.bootstrap)
    polled.delete(polled.one)
    polled.poller.poll()
    polled.cluster.create({polled.one: 2})
    polled.poller.poll()
    assert (polled.changes, polled.problems) == ([polled.topics()], [])
    polled.delete(polled.one)
    polled.cluster.create({polled.one: 1})
    polled.poller.poll()
    polled.poller.poll()
    ((problem,),) = polled.problems
    assert problem.startswith(f"topic {polled.one} has 1 partitions, 2 before, so it was deleted and created")


def test_a_broker_that_is_away_is_no_change() -> None:
    changes: list[Mapping[str, Topic]] = []
    problems: list[list[str]] = []
    plan = settings_with(kafka={"bootstrap": "127.0.0.1:1"})
    poller = TopicsPoller(plan, {"t": Topic("id", 1)}, changes.append, problems.append, print)
    poller._cluster = Cluster("127.0.0.1:1", limit=0.5)
    poller.poll()
    poller._cluster = Cluster("127.0.0.1:1", limit=0.5)
    poller.poll()
    assert (changes, problems) == ([], [])
