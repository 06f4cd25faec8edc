"""``replayfilter topics``: creates the output topics that are missing."""

from __future__ import annotations

from replayfilter.errors import BrokerError
from replayfilter.kafka.admin import Cluster
from replayfilter.service.config.model import Config
from replayfilter.service.runtime.output_topics import output_settings


def create_output_topics(config: Config) -> list[str]:
    """Create the missing output topics, and return a line about each output topic.

    A new topic gets as many partitions as the input topic with the most, and settings under which it takes
    every record that the input topics take. Raises BrokerError if an input topic is missing.
    """
    inputs, outputs = config.input.topics, list(config.output_topics().values())
    cluster = Cluster(config.kafka.bootstrap, config.client_options())
    existing = cluster.topics([*inputs, *outputs])
    missing = [name for name in inputs if name not in existing]
    if missing:
        raise BrokerError(
            f"input.topics: there is no topic {', '.join(missing)} at {config.kafka.bootstrap}. Its producer "
            "decides how many partitions it has; create it first"
        )
    partitions = max(existing[name].partitions for name in inputs)
    settings = output_settings(list(cluster.settings(inputs).values()))
    wanted = {name: partitions for name in outputs if name not in existing}
    created = cluster.create(wanted, settings=settings)
    lines = []
    for name in outputs:
        if name in created:
            lines.append(f"{name}: created with {partitions} partitions")
        elif name in existing and existing[name].partitions != partitions:
            count = existing[name].partitions
            lines.append(f"{name}: exists with {count} partitions; the input has {partitions}")
        else:
            lines.append(f"{name}: exists")
    return lines
