"""In a cluster of three brokers, leaders move while a client asks for offsets."""

from __future__ import annotations

import pytest

from replayfilter.kafka.admin import Cluster
from tests.support.broker_cluster import BrokerCluster

pytestmark = pytest.mark.kafka

PARTITIONS = 12  # each broker leads some of them


def test_offsets_while_a_leader_is_killed_and_comes_back() -> None:
    """For a partition whose leader doesn't answer, librdkafka returns -1001 without an error."""
    with BrokerCluster() as brokers:
        cluster = Cluster(brokers.inside)
        assert cluster.create({"moving": PARTITIONS}) == ["moving"]
        partitions = [("moving", number) for number in range(PARTITIONS)]
        empty = dict.fromkeys(partitions, 0)
        for node in brokers.nodes:
            assert cluster.end_offsets(partitions) == empty
            node.kill()
            assert cluster.end_offsets(partitions) == empty
            assert cluster.beginning_offsets(partitions) == empty
            node.start()
