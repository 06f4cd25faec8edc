"""The settings of output topics: what they must allow to take every record that an input topic takes.

The inputs and outputs here are topic settings by Kafka's own names, as texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

ADDED_BYTES = 4_096
"""How much larger than in the input a record may be: it gets a stamp, and headers that explain its route."""

UNBOUNDED_MS = 2**63 - 1
_FOREVER = -1  # how Kafka writes unlimited retention

TopicSettings = Mapping[str, str]


def output_settings(inputs: Sequence[TopicSettings]) -> dict[str, str]:
    """Return the settings for a new output topic, given those of the input topics.

    Records keep their timestamps, so the topic must accept any timestamp. By default a broker refuses records
    that are more than an hour ahead of its clock, and one such record would stop delivery.

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


def too_strict(inputs: Sequence[TopicSettings], output: TopicSettings) -> list[str]:
    """Return the settings of an existing output topic that could stop delivery, a clause for each."""
    found = []
    limit, largest = (
        int(output["max.message.bytes"]),
        max(int(topic["max.message.bytes"]) for topic in inputs),
    )
    # Equal limits are the brokers' default. Records so large that only the added bytes exceed the limit are
    # rare, and delivery reports them.
    if limit < largest:
        found.append(f"max.message.bytes = {limit}, and the input takes {largest}")
    for name in ("message.timestamp.after.max.ms", "message.timestamp.before.max.ms"):
        allowed = max(_time_limit(topic, name) for topic in inputs)
        if int(output.get(name, UNBOUNDED_MS)) < allowed:
            found.append(f"{name} = {output[name]}, and the input takes {allowed}")
    if output.get("message.timestamp.type") == "LogAppendTime":
        found.append("message.timestamp.type = LogAppendTime, so the records' own timestamps are lost")
    return found


def _time_limit(topic: TopicSettings, name: str) -> int:
    """How far a record's timestamp may be from the broker's clock: 0 if the broker sets the timestamp."""
    if topic.get("message.timestamp.type") == "LogAppendTime":
        return 0
    return int(topic.get(name, UNBOUNDED_MS))


def _longest(inputs: Sequence[TopicSettings], name: str) -> int:
    limits = [int(topic[name]) for topic in inputs]
    return _FOREVER if _FOREVER in limits else max(limits)
