"""Marks as a short text for the metadata of a committed offset, which has room for 4,095 characters.

The text is the base85 encoding of: version 1 (one byte), the hour of writing, the number of pids, and for
each pid: the pid (8 bytes, big-endian), the number of its sources, and for each source in order of partition:
the difference to the previous partition, mark + 1, and hours since last seen. All numbers but the version and
the pid are varints: 7 bits per byte, lowest first. A source takes about 7 bytes.
"""

from __future__ import annotations

from base64 import b85decode, b85encode
from collections.abc import Iterator, Mapping
from itertools import groupby

from replayfilter.errors import StampError

VERSION = 1
Source = tuple[int, int]  # pid, source partition
_MASK = (1 << 64) - 1


def marks_to_text(marks: Mapping[Source, int], seen: Mapping[Source, int], hour: int) -> str:
    """ASCII text for the marks; ``seen`` and ``hour`` are hours since the epoch.

    >>> text = marks_to_text({(7, 0): 1_000_000, (7, 4): 5}, {(7, 0): 490_000, (7, 4): 489_990}, 490_001)
    >>> len(text)
    28
    >>> marks_from_text(text)
    ({(7, 0): 1000000, (7, 4): 5}, {(7, 0): 490000, (7, 4): 489990})
    """
    out = bytearray([VERSION])
    _put(out, hour)
    _put(out, len({pid for pid, _ in marks}))
    for pid, sources in groupby(sorted(marks), key=lambda source: source[0]):
        partitions = [partition for _, partition in sources]
        out += (pid & _MASK).to_bytes(8, "big")
        _put(out, len(partitions))
        before = 0
        for partition in partitions:
            _put(out, partition - before & _MASK)  # negative ones don't occur in Kafka; they take 10 bytes
            _put(out, marks[pid, partition] + 1 & _MASK)
            _put(out, max(0, hour - seen[pid, partition]))
            before = partition
    return b85encode(out).decode()


def marks_from_text(text: str) -> tuple[dict[Source, int], dict[Source, int]]:
    """The marks, and the hours when their sources were last seen.

    Raises StampError for a text that :func:`marks_to_text` didn't write.
    """
    marks: dict[Source, int] = {}
    seen: dict[Source, int] = {}
    try:
        data = b85decode(text)
        if data[0] != VERSION:
            raise ValueError(f"version {data[0]}")
        numbers = iter(data[1:])
        hour = _get(numbers)
        for _ in range(_get(numbers)):
            pid = int.from_bytes([next(numbers) for _ in range(8)], "big", signed=True)
            partition = 0
            for _ in range(_get(numbers)):
                partition = _signed(_get(numbers) + partition)
                marks[pid, partition] = _signed(_get(numbers) - 1)
                seen[pid, partition] = hour - _get(numbers)
    except (ValueError, IndexError, StopIteration, RuntimeError) as error:
        raise StampError(
            f"the committed offset's metadata {text[:40]!r} is not by a filtering consumer ({error}): "
            "another program commits offsets in this group; give this one its own group.id"
        ) from None
    return marks, seen


def _put(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _get(numbers: Iterator[int]) -> int:
    result = shift = 0
    while True:
        byte = next(numbers, None)
        if byte is None:
            raise ValueError("cut short")
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result
        shift += 7


def _signed(number: int) -> int:
    number &= _MASK
    return number - (1 << 64) if number >> 63 else number
