"""What a rebuild reads, and when it may begin: once the service has ended, and nothing moves any more."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from replayfilter.core.input_partition import InputPartition
from replayfilter.errors import BrokerError, CheckpointError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.offsets import FIRST
from replayfilter.kafka.reader import Range
from replayfilter.service.config.model import Config
from replayfilter.service.runtime.preflight import Findings
from replayfilter.service.tools.transactions.open_transactions import POLL_SECONDS, held_back_of

SETTLE_SECONDS = 10.0  # the end of a transaction is written in milliseconds

Ranges = dict[InputPartition, Range]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a rebuild reads.

    ``ranges``: of output topics and of input topics. ``ends``: where the service goes on. ``notes``: what
    Kafka no longer has, in sentences.
    """

    ranges: Ranges
    ends: dict[InputPartition, int]
    notes: list[str]


def plan_reading(config: Config, findings: Findings, cluster: Cluster) -> Reading:
    """What to read. Raises CheckpointError if nothing was delivered, BrokerError for open transactions."""
    service = config.service.name
    inputs = _partitions(findings, config.input.topics)
    entries = cluster.committed_entries(service, inputs)
    if all(entry.metadata == FIRST for entry in entries.values()):
        raise CheckpointError(
            f'consumer group "{service}" has delivered nothing at {config.kafka.bootstrap}, so there is '
            "nothing to rebuild; start the service with `replayfilter run CONFIG`"
        )
    chosen = {
        (topic, part): at for topic, parts in (findings.starting or {}).items() for part, at in parts.items()
    }
    ends = chosen | {partition: entry.offset for partition, entry in entries.items()}
    ranges: Ranges = {}
    notes: list[str] = []
    if config.dedup.enabled:
        needs_duplicates = config.clock.moved_by_records or config.dedup.refresh
        paths = ["output.unique", *["output.duplicate", "output.conflict"] * needs_duplicates]
        topics = config.output_topics()
        outputs = _partitions(findings, [topics[path] for path in paths if path in topics])
        begins, last = cluster.beginning_offsets(outputs), _settled_ends(cluster, outputs)
        ranges |= {partition: (begins[partition], last[partition]) for partition in outputs}
        lost = [at for at in outputs if at[0] == config.output.unique and begins[at]]
        notes += _deleted(lost, begins, "keys of records that were delivered before are not known")
        notes += _compacted(cluster, config.output.unique)
    if config.replay.enabled:
        begins = cluster.beginning_offsets(inputs)
        ranges |= {partition: (begins[partition], ends[partition]) for partition in inputs}
        lost = [at for at in inputs if begins[at]]
        notes += _deleted(lost, begins, "sources whose last record was before have no mark")
    return Reading({at: each for at, each in ranges.items() if each[0] < each[1]}, ends, notes)


def check_unmoved(config: Config, cluster: Cluster, reading: Reading) -> None:
    """Raise CheckpointError if records have been delivered since the plan was made."""
    now = cluster.committed(config.service.name, reading.ends)
    for (topic, number), offset in now.items():
        if offset != reading.ends[topic, number]:
            raise CheckpointError(
                f'consumer group "{config.service.name}" is at offset {offset} of {topic}-{number}, and was '
                f"at {reading.ends[topic, number]} when the rebuild began: a service of this name has "
                "delivered meanwhile; stop it, and rebuild again"
            )


def _settled_ends(cluster: Cluster, partitions: list[InputPartition]) -> dict[InputPartition, int]:
    """The ends of output partitions, once no transaction is open in them."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        held_back = held_back_of(cluster, partitions)
        if not held_back:
            return cluster.end_offsets(partitions)
        if time.monotonic() > deadline:
            topic, number = held_back[0].partition
            raise BrokerError(
                f"{topic}-{number}: a transaction is open, perhaps of a service that was killed during a "
                "delivery; wait 5 minutes until Kafka ends it, and rebuild again"
            )
        time.sleep(POLL_SECONDS)


def _deleted(lost: list[InputPartition], begins: dict[InputPartition, int], what: str) -> list[str]:
    if not lost:
        return []
    some = ", ".join(f"{topic}-{number} begins at {begins[topic, number]}" for topic, number in lost[:3])
    more = f", and {len(lost) - 3} more partitions" if len(lost) > 3 else ""
    return [f"{some}{more}: {what}"]


def _compacted(cluster: Cluster, topic: str) -> list[str]:
    try:
        policy = cluster.settings([topic])[topic]["cleanup.policy"]
    except BrokerError:  # not allowed, for example
        return []
    removed = f"{topic} is compacted (cleanup.policy = {policy}): keys of removed records are not known"
    return [removed] if "compact" in policy else []


def _partitions(findings: Findings, topics: Sequence[str]) -> list[InputPartition]:
    return [(topic, number) for topic in topics for number in range(findings.topics[topic].partitions)]
