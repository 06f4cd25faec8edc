"""Dead letters: records in the error or the expired topic, and how they become again what they were.

The service adds headers to such a record, and perhaps puts its stamp into the key. :class:`Restoring` takes
back what it added, and writes a fresh stamp where the reader of the destination looks for one. The stamp that
the record came with is below its source's mark by now, so with that one it would be dropped as a replay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from replayfilter.core.input_partition import InputPartition
from replayfilter.core.stamp import STAMP_BYTES, STAMP_HEADER, Stamp, last_header
from replayfilter.core.watermark.carried import SERVICE_HEADER, WATERMARK_HEADER
from replayfilter.kafka.chunk import Headers
from replayfilter.kafka.chunk_reader import RecordHeaders
from replayfilter.service.tools.own_stamps import Writing
from replayfilter.spark.output_headers import CONNECT_HEADERS, CONNECT_MESSAGE, LATE_HEADER

REDRIVEN_HEADER = "rf-redriven"  # how often the record has been redriven, in decimal digits
REASON_HEADER, MESSAGE_HEADER = "rf-reason", "rf-message"
_ADDED = {
    "error": {REASON_HEADER, MESSAGE_HEADER, "rf-stage", CONNECT_MESSAGE, *CONNECT_HEADERS},
    "expired": {LATE_HEADER, *CONNECT_HEADERS},
}
# A record that is redriven says nothing about the progress of the services before it.
_REPLACED = {REDRIVEN_HEADER, WATERMARK_HEADER, SERVICE_HEADER}

StampPlace = Literal["key", "header", "none"]
Pids = Mapping[int, Writing]


class DeadLetter(NamedTuple):
    """A record in the error or the expired topic, as Kafka has it. ``timestamp_ms`` is -1 for none."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders

    def header(self, name: str) -> bytes | None:
        """The value of the last header with this name; None if there is none, or it is null."""
        return last_header(self.headers, name)

    def text(self, name: str) -> str:
        """The same as text; "" if there is none."""
        return (self.header(name) or b"").decode("utf-8", "replace")

    @property
    def times_redriven(self) -> int:
        """How often it has been redriven before."""
        text = self.text(REDRIVEN_HEADER)
        return int(text) if text.isascii() and text.isdecimal() else 0

    def has_own_key(self, pids: Pids) -> bool:
        """Whether its key is the one that it came with, and not a stamp of the service."""
        stamp = Stamp.from_bytes(self.key)
        return stamp is None or stamp.pid not in pids

    def origin(self, pids: Pids) -> InputPartition | None:
        """The input partition that it was read from: by the service's stamp, else by its headers.

        None if neither says it.
        """
        for blob in (self.key, self.header(STAMP_HEADER)):
            stamp = Stamp.from_bytes(blob)
            if stamp is not None and stamp.pid in pids:
                return pids[stamp.pid].input_topic, stamp.partition
        topic, partition, _ = (self.text(name) for name in CONNECT_HEADERS)
        if topic and partition.isascii() and partition.isdecimal():
            return topic, int(partition)
        return None


@dataclass(frozen=True, slots=True)
class Restoring:
    """How dead letters become again what they were.

    ``route``: the topic they are in, "error" or "expired". ``place``: where the destination's reader looks
    for stamps. ``pids`` are the service's own. With ``keep_unstamped`` a key that is no stamp stays as it is,
    because the reader lets records without a stamp pass.
    """

    route: str
    place: StampPlace
    pids: Pids
    keep_unstamped: bool

    def restored(self, letter: DeadLetter, stamp: bytes) -> tuple[bytes | None, Headers]:
        """The key and the headers with which a dead letter is written again; ``stamp``: its fresh one.

        If the service has put its stamp into the key, the record's own key is gone: where the key is no
        stamp, there is none.
        """
        headers: Headers = []
        added = set(_ADDED[self.route])
        for name, value in reversed(letter.headers):
            if name in added:
                added.discard(name)  # one that the record came with is before it, and stays
            elif name not in _REPLACED and not (name == STAMP_HEADER and self._is_replaced(value)):
                headers.append((name, value))
        headers.reverse()
        if self.place == "header":
            headers.append((STAMP_HEADER, stamp))
        headers.append((REDRIVEN_HEADER, str(letter.times_redriven + 1)))
        return self._key(letter, stamp), headers

    def _key(self, letter: DeadLetter, stamp: bytes) -> bytes | None:
        is_own = letter.has_own_key(self.pids)
        if self.place != "key":
            return letter.key if is_own else None
        is_unstamped = is_own and (letter.key is None or len(letter.key) != STAMP_BYTES)
        return letter.key if self.keep_unstamped and is_unstamped else stamp

    def _is_replaced(self, value: bytes | None) -> bool:
        """Whether a stamp in a header is the service's own, or the fresh one takes its place."""
        stamp = Stamp.from_bytes(value)
        return self.place == "header" or (stamp is not None and stamp.pid in self.pids)
