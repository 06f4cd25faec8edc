"""The pid of a job that reads a topic, made from the ids that Kafka gives to the cluster and the topic."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from replayfilter.core.stamp import producer_id
from replayfilter.errors import BrokerError
from replayfilter.kafka.admin import Cluster


def pid_for_topic(
    cluster: str | AdminClient,
    topic: str,
    job: str,
    options: Mapping[str, str] | None = None,
    scheme: str = "xxh3",
) -> int:
    """The pid, int64, of ``job`` for records that it makes from ``topic``.

    It is a hash of cluster id, topic id and job name. A topic that is deleted and created again has another
    id and therefore another pid, so its new records are not dropped as replays. Call it once, when the job
    starts. ``cluster`` is ``bootstrap.servers``, with client settings in Kafka's own names as ``options``, or
    an admin client. Raises :class:`BrokerError` if nobody answers or there is no such topic.

        pid = pid_for_topic("localhost:9092", "orders.raw", job="cleaner")
    """
    if isinstance(cluster, str):
        asked = Cluster(cluster, options)
    else:
        asked = Cluster("the admin client's brokers", admin=cluster)
    found = asked.topics([topic])
    if topic not in found:
        raise BrokerError(
            f"there is no topic {topic!r} at {asked.bootstrap}: correct its name, or create it first"
        )
    return producer_id(asked.id, found[topic].id, job, scheme=scheme)
