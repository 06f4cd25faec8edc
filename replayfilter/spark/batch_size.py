"""How many records a micro-batch may take, so that it stays within its bytes as well."""

from __future__ import annotations

from itertools import product

from confluent_kafka import Message

from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.client_settings import client_settings
from replayfilter.kafka.reader import RangeReader
from replayfilter.spark.pipeline_settings import PipelineSettings

SAMPLE_PARTITIONS = 16
SAMPLE_RECORDS = 50  # of each partition, its last ones
SAMPLE_SECONDS = 2.0
ASSUMED_BYTES = 1_000  # of a record, where there are none to look at
_AROUND = 100  # bytes: offset, timestamp, stamp and the like, which go through the plan too


def batch_limit(settings: PipelineSettings) -> int:
    """``batch_records``, or fewer if records of the size seen at the topics' ends exceeded ``batch_bytes``.

    Raises BrokerError if no broker answers.
    """
    average = _average_bytes(_sample(settings)) + _AROUND
    return max(1, min(settings.batch_records, int(settings.batch_bytes / average)))


def _average_bytes(messages: list[Message]) -> float:
    if not messages:
        return ASSUMED_BYTES
    return sum(map(_size, messages)) / len(messages)


def _size(message: Message) -> int:
    headers = message.headers() or []
    around = sum(len(name) + len(value or b"") for name, value in dict(headers).items())
    return len(message.value() or b"") + len(message.key() or b"") + around


def _sample(settings: PipelineSettings) -> list[Message]:
    cluster = Cluster(settings.bootstrap, settings.options)
    topics = cluster.topics(settings.topics)
    counts = {name: topic.partitions for name, topic in topics.items()}
    sources = [source for name, count in counts.items() for source in product([name], range(count))]
    begins, ends = cluster.begins(sources), cluster.ends(sources)
    filled = [source for source in sources if ends[source] > begins[source]]
    chosen = filled[:: -(-len(filled) // SAMPLE_PARTITIONS) or 1]
    ranges = {at: (max(begins[at], ends[at] - SAMPLE_RECORDS), ends[at]) for at in chosen}
    if not ranges:
        return []
    consuming = client_settings(settings.bootstrap, settings.options)
    with RangeReader(consuming, settings.service, offset_reset="earliest") as reader:
        return reader.read_available(ranges, SAMPLE_SECONDS)
