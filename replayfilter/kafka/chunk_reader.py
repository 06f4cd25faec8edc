"""Reads ranges of input partitions in chunks: the service's reader, kept in each worker.

A chunk is a stretch of consecutive records of one input partition. The reader collects records until there
are enough, and then gives them together: one chunk for each partition that it has records of. Values, keys
and headers are the bytes that Kafka has; timestamps are its milliseconds, whatever their size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from replayfilter.core.input_partition import InputPartition
from replayfilter.kafka.client_settings import Settings, client_settings
from replayfilter.kafka.reader import Range, RangeReader

CHUNK_RECORDS = 8_000  # records in memory before they are given, over all partitions
CHUNK_BYTES = 16 << 20  # and bytes of values
NO_TIMESTAMP = -1  # as in Kafka
POLL_S = 0.01  # a range that ends in a transaction marker is read until a poll brings nothing
SILENCE_LIMIT_S = 20.0  # Spark tries a failed task four times, and only then the service learns of it

_FETCHING: Settings = {
    "fetch.wait.max.ms": 10,  # the end of a partition is known only from an empty answer: don't wait for it
    "fetch.queue.backoff.ms": 5,
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 32_768,
    "check.crcs": True,
}

RecordHeaders = list[tuple[str, bytes | None]]


class InputChunk(NamedTuple):
    """n consecutive records of one input partition: lists of n items.

    ``offsets`` ascend, with gaps where Kafka has no record to give. ``timestamps_ms`` are int milliseconds,
    :data:`NO_TIMESTAMP` for none. ``headers`` is None if no record has any. ``unreadable``: indexes of the
    records whose headers the client can't give, since the name of one is not UTF-8; here they are None.
    """

    topic: str
    partition: int
    offsets: list[int]
    timestamps_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[RecordHeaders | None] | None
    unreadable: Sequence[int] = ()


class ChunkReader:
    """Reads ranges in chunks with one consumer, again and again; for one thread.

    ``options`` are the user's client settings by Kafka's own names, ``offset_reset`` is as in
    :class:`~replayfilter.kafka.reader.RangeReader`. Raises ConfigError for settings that can't be used.
    """

    def __init__(
        self,
        bootstrap: str,
        group: str,
        options: Mapping[str, str],
        offset_reset: Literal["error", "earliest"] = "error",
    ) -> None:
        self._reader = RangeReader(_FETCHING | client_settings(bootstrap, options), group, offset_reset)

    def read_chunks(self, ranges: Mapping[InputPartition, Range]) -> Iterator[list[InputChunk]]:
        """All records in the ranges, as lists of chunks of different partitions; each partition in its order.

        Raises BrokerError if a partition can't be read, or if nothing arrives for a while.
        """
        collected: dict[InputPartition, list[Message]] = {}
        records = size = 0
        for runs in self._reader.read_runs(ranges, silence_s=SILENCE_LIMIT_S, poll_s=POLL_S):
            for partition, messages in runs:
                collected.setdefault(partition, []).extend(messages)
                records += len(messages)
                size += sum(map(len, messages))
            if records >= CHUNK_RECORDS or size >= CHUNK_BYTES:
                yield list(_chunks(collected))
                collected, records, size = {}, 0, 0
        if collected:
            yield list(_chunks(collected))

    def close(self) -> None:
        """Close the consumer."""
        self._reader.close()


def _chunks(collected: Mapping[InputPartition, list[Message]]) -> Iterator[InputChunk]:
    for (topic, partition), messages in collected.items():
        headers, unreadable = _headers(messages)
        yield InputChunk(
            topic,
            partition,
            list(map(Message.offset, messages)),  # type: ignore[arg-type]  # None only for errors
            [
                NO_TIMESTAMP if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms
                for kind, timestamp_ms in map(Message.timestamp, messages)
            ],
            list(map(Message.key, messages)),
            list(map(Message.value, messages)),
            headers if any(headers) else None,
            unreadable,
        )


def _headers(messages: list[Message]) -> tuple[list[RecordHeaders | None], list[int]]:
    """The headers of each message, and the indexes of those that can't be read."""
    found: list[RecordHeaders | None] = []
    unreadable: list[int] = []
    while len(found) < len(messages):
        try:
            # The stubs also allow what only a producer's message can have: a dict, and text as values.
            found.extend(map(Message.headers, islice(messages, len(found), None)))  # type: ignore[arg-type]
        except (SystemError, UnicodeDecodeError):  # what came before it is in the list
            unreadable.append(len(found))
            found.append(None)
    return found, unreadable
