"""What the service must be allowed to do, so that a missing permission is reported by name before the start.

Kafka tells a client which operations it is allowed on topics and groups. It doesn't for transactional ids:
whether those may be used is known when a lane is opened, and the error of a lane names its id.
"""

from __future__ import annotations

from collections.abc import Iterable

from replayfilter.kafka.admin import Cluster


def missing_permissions(
    cluster: Cluster, inputs: Iterable[str], outputs: Iterable[str], group: str
) -> list[str]:
    """A sentence for each permission that a service lacks: for its topics, and for its consumer group.

    Nothing is said about topics that don't exist, and where Kafka doesn't tell what is allowed. Raises
    BrokerError if Kafka doesn't answer.
    """
    inputs, outputs = list(inputs), list(outputs)
    needed = dict.fromkeys([(name, "READ") for name in inputs] + [(name, "WRITE") for name in outputs])
    allowed = cluster.topic_operations({name: None for name, _ in needed})
    missing = [
        _sentence("topic", name, operation)
        for name, operation in needed
        if (operations := allowed.get(name)) is not None and operation not in operations
    ]
    operations = cluster.group_operations(group)
    if operations is not None and "READ" not in operations:
        missing.append(_sentence("group", group, "READ"))
    return missing


def _sentence(kind: str, name: str, operation: str) -> str:
    return (
        f"the service may not {operation} {kind} {name!r}: its principal lacks this permission; add it with: "
        f"kafka-acls --add --allow-principal User:NAME --operation {operation} --{kind} {name}"
    )
