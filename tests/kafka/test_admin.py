"""Questions to a cluster: a real one, one that is away, and one that refuses."""

from __future__ import annotations

import base64
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from replayfilter.errors import BrokerError, ConfigError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.lanes import Lanes
from replayfilter.kafka.transactions import LaneStats, send_offsets


@pytest.fixture
def topic() -> str:
    return f"admin-{time.time_ns()}"


def test_the_cluster_id_is_the_one_that_other_clients_see(bootstrap: str) -> None:
    assert (
        Cluster(bootstrap).id
        == AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).cluster_id
    )


def test_topics_are_created_once_and_can_be_written_to_immediately(bootstrap: str, topic: str) -> None:
    cluster = Cluster(bootstrap)
    assert cluster.topics([topic]) == {}
    assert cluster.create({topic: 3}) == [topic]
    assert cluster.create({topic: 7}) == []
    made = cluster.topics([topic, "no-such-topic"])
    assert made[topic].partitions == 3
    assert list(made) == [topic]
    assert cluster.end_offsets((topic, n) for n in range(3)) == {(topic, n): 0 for n in range(3)}


def test_offsets_of_partitions_that_have_no_leader_yet(bootstrap: str, topic: str) -> None:
    """Kafka answers "not leader" for a moment, for new partitions and when a leader moves."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    cluster = Cluster(bootstrap, limit=60, admin=admin)
    for future in admin.create_topics([NewTopic(topic, 200, 1)]).values():
        future.result()
    partitions = [(topic, number) for number in range(200)]
    assert cluster.end_offsets(partitions) == dict.fromkeys(partitions, 0)


def test_a_topic_created_again_has_another_id(bootstrap: str, topic: str) -> None:
    cluster, admin = Cluster(bootstrap), AdminClient({"bootstrap.servers": bootstrap})
    cluster.create({topic: 1})
    first = cluster.topics([topic])[topic].id
    assert len(base64.urlsafe_b64decode(first + "==")) == 16  # as Kafka's own tools write it
    assert cluster.topics([topic])[topic].id == first
    admin.delete_topics([topic])[topic].result(20)
    deadline = time.monotonic() + 20
    while cluster.topics([topic]) and time.monotonic() < deadline:
        time.sleep(0.05)
    cluster.create({topic: 1})
    assert cluster.topics([topic])[topic].id != first


def test_ends_leave_out_an_open_transaction(bootstrap: str, topic: str) -> None:
    cluster = Cluster(bootstrap)
    cluster.create({topic: 2})
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"one", partition=0)
    producer.flush(20)
    assert cluster.end_offsets([(topic, 0), (topic, 1)]) == {(topic, 0): 0, (topic, 1): 0}
    producer.commit_transaction(20)
    deadline = time.monotonic() + 10
    while cluster.end_offsets([(topic, 0)])[topic, 0] == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert cluster.end_offsets([(topic, 0)]) == {(topic, 0): 2}  # the record and the commit marker
    assert cluster.beginning_offsets([(topic, 0)]) == {(topic, 0): 0}


def test_committed_offsets_are_the_stable_ones(bootstrap: str, topic: str) -> None:
    cluster = Cluster(bootstrap, limit=2)
    cluster.create({topic: 2})
    partitions = [(topic, 0), (topic, 1)]
    assert cluster.committed(topic, partitions) == {}
    lanes = Lanes(bootstrap, topic)
    with lanes.open(0, partitions) as delivery:
        delivery.commit({(topic, 0): 5})
    assert cluster.committed(topic, partitions) == {(topic, 0): 5}
    with lanes.open(0, partitions) as delivery:
        send_offsets(delivery._get_owner().producer, {(topic, 0): 9}, lanes.offsets.metadata, LaneStats())
        with pytest.raises(BrokerError, match="a transaction that moves them is open"):  # neither 5 nor 9
            cluster.committed(topic, partitions)
        assert cluster.committed(topic, partitions, stable=False) == {(topic, 0): 5}
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            assert cluster.committed(topic, partitions) == {(topic, 0): 5}
            break
        except BrokerError:  # the abort's markers are not written yet
            time.sleep(0.05)
    else:
        pytest.fail("the offsets stayed pending after the abort")


def test_a_cluster_that_is_away() -> None:
    cluster = Cluster("127.0.0.1:1", limit=0.5)
    started = time.monotonic()
    with pytest.raises(
        BrokerError, match=r"no Kafka broker answered at 127\.0\.0\.1:1 .* correct kafka\.bootstrap"
    ):
        _ = cluster.id
    assert time.monotonic() - started < 5
    with pytest.raises(BrokerError, match="for topic 'orders'"):
        cluster.topics(["orders"])


def test_the_errors_when_the_broker_refuses(bootstrap: str) -> None:
    with pytest.raises(BrokerError, match=r"refused topic 'bad name': .*Invalid topic"):
        Cluster(bootstrap).create({"bad name": 1})
    with pytest.raises(
        BrokerError, match=r"creation of topic 'admin-too-many' with 1 partitions: .*eplication"
    ):
        Cluster(bootstrap).create({"admin-too-many": 1}, replication=5)
    with pytest.raises(BrokerError, match=r"offsets of partition 7 of topic 'no-such-topic'"):
        Cluster(bootstrap).end_offsets([("no-such-topic", 7)])


def test_settings_that_the_client_refuses() -> None:
    with pytest.raises(ConfigError, match=r"no\.such\.setting"):
        Cluster("127.0.0.1:1", {"no.such.setting": "1"})
