"""replayfilter: removes replays and duplicates from Kafka streams.

The names here are for other teams' code, and need neither PySpark nor Java. Those that talk to Kafka are
imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from replayfilter.core.replay.marks import ReplayFilter
from replayfilter.core.stamp import (
    STAMP_HEADER,
    Stamp,
    aligned_group,
    parse_stamps,
    partition_for,
    producer_id,
    stamp_keys,
)
from replayfilter.errors import ReplayfilterError

if TYPE_CHECKING:
    from replayfilter.client.consumer import FilteringConsumer
    from replayfilter.client.file_sink import FileSink
    from replayfilter.client.pids import pid_for_topic
    from replayfilter.client.producer import StampingProducer

__all__ = [
    "STAMP_HEADER",
    "FileSink",
    "FilteringConsumer",
    "ReplayFilter",
    "ReplayfilterError",
    "Stamp",
    "StampingProducer",
    "aligned_group",
    "parse_stamps",
    "partition_for",
    "pid_for_topic",
    "producer_id",
    "stamp_keys",
]
__version__ = "0.1.0"

_LAZY = {
    "FileSink": "replayfilter.client.file_sink",
    "FilteringConsumer": "replayfilter.client.consumer",
    "StampingProducer": "replayfilter.client.producer",
    "pid_for_topic": "replayfilter.client.pids",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'replayfilter' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
