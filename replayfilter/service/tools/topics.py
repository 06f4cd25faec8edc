"""What an output topic must allow, so that it takes every record that the input took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

ADDED_BYTES = 4_096
"""A record grows by the stamp and the headers that say why it is where it is."""

UNBOUNDED_MS = 2**63 - 1
_FOREVER = -1  # Kafka's word for no limit of retention

TopicSettings = Mapping[str, str]


def output_settings(inputs: Sequence[TopicSettings]) -> dict[str, str]:
    """Settings for a new output topic, given those of the input topics.

    Timestamps are passed on, so any must do: by default a broker refuses those an hour ahead of its clock,
    and one such record would stop delivery.

    >>> output_settings([{"max.message.bytes": "1000", "retention.ms": "5", "retention.bytes": "-1"}])[
    ...     "max.message.bytes"
    ... ]
    '5096'
    """
    return {
        "message.timestamp.type": "CreateTime",
        "message.timestamp.after.max.ms": str(UNBOUNDED_MS),
        "message.timestamp.before.max.ms": str(UNBOUNDED_MS),
        "max.message.bytes": str(max(int(topic["max.message.bytes"]) for topic in inputs) + ADDED_BYTES),
        "retention.ms": str(_longest(inputs, "retention.ms")),
        "retention.bytes": str(_longest(inputs, "retention.bytes")),
    }


def too_tight(inputs: Sequence[TopicSettings], output: TopicSettings) -> list[str]:
    """What of an existing output topic may stop delivery one day: a clause for each setting."""
    found = []
    own, largest = int(output["max.message.bytes"]), max(int(topic["max.message.bytes"]) for topic in inputs)
    if own < largest:  # equal is everybody's default: records that large are rare, and told when they come
        found.append(f"max.message.bytes = {own}, and the input takes {largest}")
    for name in ("message.timestamp.after.max.ms", "message.timestamp.before.max.ms"):
        allowed = max(_time_limit(topic, name) for topic in inputs)
        if int(output.get(name, UNBOUNDED_MS)) < allowed:
            found.append(f"{name} = {output[name]}, and the input takes {allowed}")
    if output.get("message.timestamp.type") == "LogAppendTime":
        found.append("message.timestamp.type = LogAppendTime, so the records' own timestamps are lost")
    return found


def _time_limit(topic: TopicSettings, name: str) -> int:
    """How far a record's timestamp may be from the broker's clock; with LogAppendTime it is that clock's."""
    if topic.get("message.timestamp.type") == "LogAppendTime":
        return 0
    return int(topic.get(name, UNBOUNDED_MS))


def _longest(inputs: Sequence[TopicSettings], name: str) -> int:
    limits = [int(topic[name]) for topic in inputs]
    return _FOREVER if _FOREVER in limits else max(limits)
