"""Finds single records in Kafka: the one at an address, the one written for it, earlier writes, equal keys.

An output partition has the records of an input partition in input order, among those of others. So the record
with a given input offset is found by halving the partition: from the middle on, the first record of the same
input partition says on which side it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from confluent_kafka import Message
from numpy.typing import NDArray

from replayfilter.core.input_partition import InputPartition
from replayfilter.core.stamp import Stamp
from replayfilter.errors import ConfigError
from replayfilter.formats import Extractor, RecordColumns
from replayfilter.kafka.chunk_reader import ChunkReader, RecordHeaders
from replayfilter.kafka.reader import Range, RangeReader

WINDOW = 500  # records that are read at a time to find one of the right input partition
SCANNED = 2_000  # so few records are read one after the other

OffsetOf = Callable[[Message], int | None]  # the input offset of a record, None if it is of another partition
StampOf = Callable[[Message], Stamp | None]


class Address(NamedTuple):
    """Where a record is in Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def input_partition(self) -> InputPartition:
        """Topic and partition."""
        return self.topic, self.partition


def parse_address(text: str) -> Address:
    """The address that a text ``TOPIC/PARTITION/OFFSET`` says. Raises ConfigError for another text.

    >>> parse_address("orders/3/41")
    Address(topic='orders', partition=3, offset=41)
    """
    topic, *numbers = text.split("/")
    if not topic or len(numbers) != 2 or not all(each.isascii() and each.isdecimal() for each in numbers):
        raise ConfigError([f"--record {text}: write TOPIC/PARTITION/OFFSET, such as orders/3/41"])
    return Address(topic, int(numbers[0]), int(numbers[1]))


def address_of(message: Message) -> Address:
    """Where a message was read."""
    return Address(str(message.topic()), int(message.partition() or 0), int(message.offset() or 0))


def read_one(reader: RangeReader, at: Address) -> Message | None:
    """The record at this address; None if no record is there that can be read.

    The offset must be within what the partition holds.
    """
    found = list(reader.read({at.input_partition: (at.offset, at.offset + 1)}))
    return found[0] if found else None


def find_by_input_offset(
    reader: RangeReader, partition: InputPartition, begin: int, end: int, wanted: int, offset_of: OffsetOf
) -> Message | None:
    """The record in an output partition, from ``begin`` to ``end``, that was made from an input offset."""
    while end - begin > SCANNED:
        middle = (begin + end) // 2
        first = next(_read_on(reader, partition, middle, end, offset_of), None)
        if first is None:
            end = middle
            continue
        message, offset = first
        if offset == wanted:
            return message
        if offset > wanted:
            end = middle
        else:
            begin = address_of(message).offset + 1
    for message, offset in _read_on(reader, partition, begin, end, offset_of):
        if offset == wanted:
            return message
    return None


class EarlierWrites(NamedTuple):
    """Why a record is a replay, as far as its input partition shows it.

    ``same``: an earlier record with the same stamp. ``above``: the nearest record before it that is of the
    same source and has a higher offset. ``begin``: how far back was read.
    """

    same: Address | None
    above: tuple[Address, Stamp] | None
    begin: int


def find_earlier_writes(
    reader: RangeReader, at: Address, begin: int, stamp: Stamp, stamp_of: StampOf
) -> EarlierWrites:
    """Look back from a record for what was written of its source before it.

    Ends where the source's records are below the stamp and some later one was not, or at ``begin``.
    """
    above: tuple[Address, Stamp] | None = None
    end, size = at.offset, WINDOW
    while end > begin:
        start = max(begin, end - size)
        lower = False
        for message in reversed(list(reader.read({at.input_partition: (start, end)}))):
            other = stamp_of(message)
            if other is None or other[:2] != stamp[:2]:
                continue
            if other.offset == stamp.offset:
                return EarlierWrites(address_of(message), above, start)
            if other.offset > stamp.offset:
                above = above or (address_of(message), other)
            elif above is not None:
                lower = True
        if lower:
            return EarlierWrites(None, above, start)
        end, size = start, size * 2
    return EarlierWrites(None, above, begin)


def find_equal_keys(
    reader: ChunkReader,
    ranges: Mapping[InputPartition, Range],
    extract: Extractor,
    digest: NDArray[np.uint64],
) -> Iterator[tuple[Address, bytes | None, RecordHeaders]]:
    """The records whose dedup key has this digest, uint64[2]: where each is, its Kafka key and its headers.

    Reads all records in the ranges.
    """
    for chunks in reader.read_chunks(ranges):
        for chunk in chunks:
            headers = chunk.headers or [None] * len(chunk.offsets)
            columns = RecordColumns(chunk.values, chunk.keys, chunk.timestamps_ms, headers)
            for row in np.flatnonzero((extract(columns).digests == digest).all(axis=1)).tolist():
                place = Address(chunk.topic, chunk.partition, chunk.offsets[row])
                yield place, chunk.keys[row], headers[row] or []


def _read_on(
    reader: RangeReader, partition: InputPartition, begin: int, end: int, offset_of: OffsetOf
) -> Iterator[tuple[Message, int]]:
    """The records from ``begin`` to ``end`` that ``offset_of`` knows, read in windows that grow."""
    size = WINDOW
    while begin < end:
        stop = min(end, begin + size)
        for message in reader.read({partition: (begin, stop)}):
            offset = offset_of(message)
            if offset is not None:
                yield message, offset
        begin, size = stop, size * 2
