"""Commits where each input partition begins, before the query reads it.

A partition that is idle since the first start would have no committed offset otherwise. If the checkpoint is
lost later, nobody could say where in such a partition the service has to go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from confluent_kafka import KafkaError, KafkaException, Producer

from replayfilter.core.input_partition import InputPartition
from replayfilter.errors import BrokerError, ServiceReplaced
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.client_settings import lane_settings
from replayfilter.kafka.membership import Membership, is_replaced, replaced
from replayfilter.kafka.offsets import FIRST
from replayfilter.kafka.transactions import LaneStats, commit, discard, initialise, send_offsets
from replayfilter.spark.pipeline_settings import PipelineSettings

Offsets = dict[InputPartition, int]


def as_member(
    settings: PipelineSettings, planned: Mapping[InputPartition, int], membership: Membership
) -> PipelineSettings:
    """Join the group, and commit the first offsets as its member; the settings with the membership.

    ``planned``: as for :func:`with_first_offsets`. Raises ServiceReplaced if another service has taken this
    one's place.
    """
    while True:
        joined = replace(settings, membership=membership.current())
        try:
            return with_first_offsets(joined, planned)
        except ServiceReplaced:
            membership.ask()  # raises, unless it was this service that has joined again


def with_first_offsets(settings: PipelineSettings, planned: Mapping[InputPartition, int]) -> PipelineSettings:
    """Commit an offset for each input partition that has none; the settings that begin there.

    ``planned``: the ends of the last batch that Spark has planned, empty at the first start. A partition
    that no batch has read begins where ``settings.starting`` says, or at its earliest offset if it is new
    since the first start.
    """
    cluster = Cluster(settings.bootstrap, settings.options)
    topics = cluster.topics(settings.topics)
    partitions = [(name, number) for name, topic in topics.items() for number in range(topic.partitions)]
    given = _given(settings)
    new = [partition for partition in partitions if partition not in planned]
    from_the_end = settings.starting == "latest" and not planned
    begin = cluster.end_offsets(new) if from_the_end else cluster.beginning_offsets(new)
    begin |= {partition: offset for partition, offset in given.items() if partition in begin}
    expired = {partition: offset for partition, offset in given.items() if partition in planned}
    known = cluster.committed(settings.service, begin | expired)
    missing = {
        text: {partition: offset for partition, offset in offsets.items() if partition not in known}
        for text, offsets in ((FIRST, begin), ("", expired))
    }
    if any(missing.values()):
        _commit(settings, missing)
    return settings if planned else replace(settings, starting=offsets_by_topic(begin))


def offsets_by_topic(offsets: Mapping[InputPartition, int]) -> dict[str, dict[int, int]]:
    """By topic and partition.

    >>> offsets_by_topic({("t", 0): 5, ("t", 1): 7})
    {'t': {0: 5, 1: 7}}
    """
    nested: dict[str, dict[int, int]] = {}
    for (topic, number), offset in offsets.items():
        nested.setdefault(topic, {})[number] = offset
    return nested


def _commit(settings: PipelineSettings, offsets: Mapping[str, Offsets]) -> None:
    """Commit offsets, by the text that goes with them, in a transaction that carries the membership.

    Like the lanes' transactions it fails if another service has started.
    """
    own = {"transactional.id": f"{settings.service}-first", "log_level": 0}  # every failure is raised
    producer = Producer(lane_settings(settings.bootstrap, settings.options) | own)
    stats = LaneStats()
    try:
        initialise(producer, stats)
        producer.begin_transaction()
        for text, found in offsets.items():
            if found:
                send_offsets(producer, found, settings.membership, stats, text)
        commit(producer, stats)
    except KafkaException as error:
        reason: KafkaError = error.args[0]
        if is_replaced(reason):
            raise replaced(settings.service) from error
        raise BrokerError(
            f"consumer group {settings.service!r}: the offsets where its input partitions begin could not be "
            f"committed: {reason.str()}; check that the brokers are up, and that the service may use this "
            f"group and the transactional id {own['transactional.id']}"
        ) from error
    finally:
        discard(producer)


def _given(settings: PipelineSettings) -> Offsets:
    if isinstance(settings.starting, str):
        return {}
    return {(topic, number): at for topic, parts in settings.starting.items() for number, at in parts.items()}
