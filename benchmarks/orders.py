"""The stream that all systems read: orders of 200 bytes in JSON, 14% of them sent twice, and what is unique.

The topic is keyed by order, so the second copy of an order is in the partition of the first, and
deduplication within partitions is right, too. Event times stay within the period, so no system forgets a key.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from typing import IO, NamedTuple

from confluent_kafka import Producer

from replayfilter.core.stamp import stamp_packer

PERIOD_MS = 3_600_000
SPAN_MS = PERIOD_MS // 2  # event time of the orders that are there at the start
LATE_MS = 30_000  # how far orders are out of order
COPIES = 0.14
RECENT = 500  # a second copy is of one of so many orders
KEY_BYTES, VALUE_BYTES = 20, 200
PID = 4711
# Fixed widths, so that a reader finds both without parsing.
ID = slice(13, 31)
SENT_US = slice(59, 75)


class Order(NamedTuple):
    """A record to write."""

    partition: int
    key: bytes
    value: bytes


class Orders:
    """An endless stream over ``partitions``; counts what it has yielded."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self._stamp = stamp_packer()
        self._random = random.Random(7)
        self._offsets = [0] * partitions
        self._recent: list[tuple[int, int]] = []
        self.records = self.unique = 0

    def next(self, now_ms: int) -> Order:
        """The next order, with an event time of up to half a minute before ``now_ms``."""
        chance = self._random
        if self._recent and chance.random() < COPIES:
            number, ts = self._recent[int(chance.random() * len(self._recent))]
        else:
            number, ts = self.unique, now_ms - int(chance.random() * LATE_MS)
            self.unique += 1
            if len(self._recent) < RECENT:
                self._recent.append((number, ts))
            elif number % 7 == 0:
                self._recent[int(chance.random() * RECENT)] = number, ts
        self.records += 1
        partition = number % self.partitions
        offset = self._offsets[partition]
        self._offsets[partition] = offset + 1
        return Order(
            partition, self._stamp(PID, partition, offset), value_of(number, ts, time.time_ns() // 1_000)
        )


def value_of(number: int, ts: int, sent_us: int) -> bytes:
    """An order in JSON; all orders have the same length.

    >>> value = value_of(7, 1_700_000_000_000, 1_700_000_000_123_456)
    >>> len(value), value[ID], value[SENT_US]
    (200, b'order-000000000007', b'1700000000123456')
    """
    text = f'{{"event_id":"order-{number:012d}","ts":{ts},"sent":{sent_us},"user":{number % 40_000}'
    text += f',"amount":{number % 9_973}.5,"note":"'
    return f'{text}{"x" * (VALUE_BYTES - len(text) - 2)}"}}'.encode()


class Backlog:
    """The orders that are there when a system starts, in a temporary file, to be written again for each run.

    ``orders`` goes on where they end; each run needs a copy of its own.
    """

    def __init__(self, records: int, partitions: int) -> None:
        self.orders = Orders(partitions)
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # kept open for __iter__
        start = int(time.time() * 1000) - SPAN_MS
        for number in range(records):
            order = self.orders.next(start + SPAN_MS * number // records)
            self._file.write(order.partition.to_bytes(4) + order.key + order.value)

    def __iter__(self) -> Iterator[Order]:
        self._file.seek(0)
        size = 4 + KEY_BYTES + VALUE_BYTES
        while block := self._file.read(size * 10_000):
            for at in range(0, len(block), size):
                record = block[at : at + size]
                yield Order(int.from_bytes(record[:4]), record[4 : 4 + KEY_BYTES], record[4 + KEY_BYTES :])


class Writer:
    """An idempotent producer of orders into one topic. Raises RuntimeError unless all arrive."""

    def __init__(self, bootstrap: str, topic: str, linger_ms: int) -> None:
        self._topic, self._failed = topic, 0
        self._producer = Producer({
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": linger_ms,
            "compression.type": "lz4", "batch.size": 1_000_000, "delivery.report.only.error": True,
            "log_level": 3,
        })  # fmt: skip

    def write(self, order: Order) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic, order.value, order.key, order.partition, on_delivery=self._fail
                )
                return
            except BufferError:
                self._producer.poll(0.05)

    def _fail(self, *_: object) -> None:
        self._failed += 1

    def poll(self) -> None:
        self._producer.poll(0)

    def flush(self) -> None:
        if (left := self._producer.flush(60)) or self._failed:
            raise RuntimeError(f"{left + self._failed} orders were not written to {self._topic}")
