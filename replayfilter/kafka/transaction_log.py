"""The transactions that are open in a cluster, from ``__transaction_state``, Kafka's own log of them.

librdkafka can't ask a coordinator for its transactions (Kafka's DescribeTransactions), so their log is read.
Each change of a transaction is a record there: the transactional id as the key, the whole state as the value,
in the layout of Kafka's ``TransactionLogKey.json`` and ``TransactionLogValue.json``.

A coordinator aborts a transaction that is older than its timeout, and no timeout is longer than the brokers'
``transaction.max.timeout.ms``. So the records of that time have every open transaction.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass

from replayfilter.core.input_partition import InputPartition
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.client_settings import client_settings
from replayfilter.kafka.reader import RangeReader

TOPIC = "__transaction_state"
LONGEST_MS = 15 * 60_000  # transaction.max.timeout.ms, by default
SLACK_MS = 60_000  # coordinators look every 10 s for transactions that are too old; and clocks differ

_ONGOING, _PREPARE_COMMIT, _PREPARE_ABORT = 1, 2, 3
_OPEN = {_ONGOING: "open", _PREPARE_COMMIT: "being committed", _PREPARE_ABORT: "being aborted"}
_HEAD = struct.Struct(">hqhib")  # version, producer id, producer epoch, timeout, status
_TIMES = struct.Struct(">qq")  # of the last update, of the start
_LENGTH, _COUNT = struct.Struct(">h"), struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that is open.

    ``state`` in words. ``partitions``: those that it has written to, with Kafka's own topic of offsets.
    ``start_ms``: when it was begun, in ms since 1970. ``timeout_ms``: after how long Kafka aborts it.
    """

    id: str
    state: str
    partitions: tuple[InputPartition, ...]
    start_ms: int
    timeout_ms: int


def open_transactions(cluster: Cluster, options: Mapping[str, str] | None = None) -> list[Transaction]:
    """All transactions that are open in the cluster, by id. ``options`` are the user's client settings.

    Those with timeouts of more than 15 minutes, which the brokers' ``transaction.max.timeout.ms`` may allow,
    are not found when nothing was added to them for that long. Raises BrokerError if the log can't be read;
    most clusters let only administrators read it.
    """
    log = cluster.topics([TOPIC]).get(TOPIC)
    if log is None:  # made at the first transaction
        return []
    partitions = [(TOPIC, number) for number in range(log.partitions)]
    since = cluster.offsets_at(partitions, time.time_ns() // 1_000_000 - LONGEST_MS - SLACK_MS)
    ends = cluster.end_offsets([at for at in partitions if since[at] >= 0])
    states: dict[bytes, bytes | None] = {}
    with RangeReader(client_settings(cluster.bootstrap, options), "replayfilter-transactions") as reader:
        for message in reader.read({at: (since[at], end) for at, end in ends.items()}):
            states[message.key() or b""] = message.value()
    found = [parse_transaction(key, value) for key, value in states.items() if value is not None]
    return sorted((each for each in found if each is not None), key=lambda each: each.id)


def parse_transaction(key: bytes, value: bytes) -> Transaction | None:
    r"""The transaction of a record of the log; None if it isn't open, or if the layout is not known.

    >>> value = bytes.fromhex("0001 0000000000000007 0002 0000ea60 01 02 02 61 02 00000003 00"
    ...                       "0000000000000005 0000000000000004 00")
    >>> parse_transaction(b"\x00\x00\x00\x02id", value)
    Transaction(id='id', state='open', partitions=(('a', 3),), start_ms=4, timeout_ms=60000)
    """
    try:
        if _LENGTH.unpack_from(key)[0] != 0:
            return None
        version, _, _, timeout_ms, status = _HEAD.unpack_from(value)
        if version not in (0, 1) or status not in _OPEN:
            return None
        fields = _Fields(value, _HEAD.size, compact=version == 1)
        partitions = fields.partitions()
        start_ms = _TIMES.unpack_from(value, fields.at)[1]
        return Transaction(
            key[2 + _LENGTH.size :].decode(), _OPEN[status], tuple(sorted(partitions)), start_ms, timeout_ms
        )
    except (struct.error, IndexError, UnicodeDecodeError):
        return None


class _Fields:
    """Reads fields of Kafka's message format, from a place in a message on."""

    def __init__(self, message: bytes, at: int, compact: bool) -> None:
        self._message = message
        self.at = at
        self._compact = compact  # the flexible versions: lengths are varints, structs end with tagged fields

    def partitions(self) -> list[InputPartition]:
        """An array of topics with their partitions."""
        found: list[InputPartition] = []
        for _ in range(self._length(_COUNT)):
            size = self._length(_LENGTH)
            topic = self._message[self.at : self.at + size].decode()
            self.at += size
            found += [(topic, self._number(_COUNT)) for _ in range(self._length(_COUNT))]
            if self._compact:
                self._skip_tags()
        return found

    def _length(self, plain: struct.Struct) -> int:
        """The length of an array or a string; 0 for null."""
        length = self._varint() - 1 if self._compact else self._number(plain)
        return max(0, length)

    def _number(self, layout: struct.Struct) -> int:
        (number,) = layout.unpack_from(self._message, self.at)
        self.at += layout.size
        return int(number)

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._message[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def _skip_tags(self) -> None:
        for _ in range(self._varint()):
            self._varint()
            size = self._varint()
            self.at += size
