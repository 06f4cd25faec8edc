"""How many records a batch may have, so that it also stays within its limit in bytes."""

from __future__ import annotations

from itertools import product

from confluent_kafka import Message

from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.client_settings import client_settings
from replayfilter.kafka.reader import RangeReader
from replayfilter.spark.pipeline_settings import PipelineSettings

SAMPLE_PARTITIONS = 16
SAMPLE_RECORDS = 50  # the last ones of each partition
SAMPLE_SECONDS = 2.0
ASSUMED_BYTES = 1_000  # per record, if the topics are empty
_OVERHEAD_BYTES = 100  # per record: offset, timestamp, stamp and others that go through the plan too


def batch_limit(settings: PipelineSettings) -> int:
    """``batch_records``, or as many records of average size as fit into ``batch_bytes`` if that is fewer.

    The average is that of a few records at the ends of the input topics. Raises BrokerError if no broker
    answers.
    """
    average = _average_bytes(_sample(settings)) + _OVERHEAD_BYTES
    return max(1, min(settings.batch_records, int(settings.batch_bytes / average)))


def _average_bytes(messages: list[Message]) -> float:
    if not messages:
        return ASSUMED_BYTES
    return sum(map(_size, messages)) / len(messages)


def _size(message: Message) -> int:
    headers = message.headers() or []
    in_headers = sum(len(name) + len(value or b"") for name, value in dict(headers).items())
    return len(message.value() or b"") + len(message.key() or b"") + in_headers


def _sample(settings: PipelineSettings) -> list[Message]:
    cluster = Cluster(settings.bootstrap, settings.options)
    topics = cluster.topics(settings.topics)
    counts = {name: topic.partitions for name, topic in topics.items()}
    partitions = [partition for name, count in counts.items() for partition in product([name], range(count))]
    beginnings, ends = cluster.beginning_offsets(partitions), cluster.end_offsets(partitions)
    filled = [partition for partition in partitions if ends[partition] > beginnings[partition]]
    chosen = filled[:: -(-len(filled) // SAMPLE_PARTITIONS) or 1]
    ranges = {at: (max(beginnings[at], ends[at] - SAMPLE_RECORDS), ends[at]) for at in chosen}
    if not ranges:
        return []
    consuming = client_settings(settings.bootstrap, settings.options)
    with RangeReader(consuming, settings.service, offset_reset="earliest") as reader:
        return reader.read_available(ranges, SAMPLE_SECONDS)
