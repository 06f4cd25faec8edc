"""The service's own stamps: which input record a record in an output topic was made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from replayfilter.core.stamp import producer_id
from replayfilter.kafka.admin import Topic
from replayfilter.spark.partitioning import output_pid


class Writing(NamedTuple):
    """What a pid of the service says of a record: input topic, output topic, and partitions of the latter.

    Pids of version 0.1.0 say only the input topic.
    """

    input_topic: str
    output_topic: str | None = None
    partitions: int | None = None


def own_pids(
    cluster_id: str, service: str, topics: Mapping[str, Topic], inputs: Iterable[str], outputs: Iterable[str]
) -> dict[int, Writing]:
    """All pids that a service may have had for these inputs and outputs.

    An output may have had fewer partitions when a record was written, and each number of them has a pid.
    ``topics`` has all of both by name.
    """
    pids = {}
    outputs = list(outputs)
    for name in inputs:
        id_ = topics[name].id
        pids[producer_id(cluster_id, id_, service)] = Writing(name)
        for output in outputs:
            for count in range(1, topics[output].partitions + 1):
                then = topics[output]._replace(partitions=count)
                pids[output_pid(cluster_id, id_, service, then)] = Writing(name, output, count)
    return pids
