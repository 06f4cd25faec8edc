"""The pid of a job that reads a topic, from what Kafka knows of the topic."""

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
    """The pid, int64, of ``job`` for what it reads from ``topic``: made of cluster id, topic id and job.

    A topic that is deleted and made again has another id, so another pid, and its new records are not
    taken for replays. Ask once, when the job starts. ``cluster`` is ``bootstrap.servers`` (``options`` are
    then client settings by Kafka's own names) or an admin client. Raises :class:`BrokerError` if nobody
    answers or there is no such topic.

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
