"""The newest record of each key of a compacted topic of one partition, kept in memory."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Message

from replayfilter.errors import BrokerError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.client_settings import Settings, client_settings
from replayfilter.kafka.reader import SILENCE_LIMIT_S, RangeReader

# Kafka forgets the deletion of a key after delete.retention.ms, a day by default. Who has read before the
# deletion, and goes on after that, would keep the key.
MAX_PAUSE_S = 3600.0
_POLL_S = 0.1
# At the end of the partition a fetch waits that long, and what is assigned next waits behind it.
_FAST: Settings = {"fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 5}


class CompactedTopic:
    """``rows`` has the value of each key, as of the last :meth:`catch_up`. Only committed records count.

    Not for use by several threads at once. Raises ConfigError for ``options`` that can't be used.
    """

    def __init__(self, topic: str, bootstrap: str, options: Mapping[str, str]) -> None:
        self.rows: dict[bytes, bytes] = {}
        self._partition = topic, 0
        self._bootstrap, self._options = bootstrap, options
        self._reader = RangeReader(
            client_settings(bootstrap, options) | _FAST, f"compacted-{topic}", offset_reset="earliest"
        )
        self._cluster: Cluster | None = None
        self._position, self._read_at = 0, time.monotonic()

    def catch_up(self, *, wait_for_open: bool = False) -> None:
        """Read to the end; raises BrokerError if that isn't possible.

        With ``wait_for_open``, transactions that are open now are waited for: their records count too.
        """
        try:
            # An admin client that lived through a broker's restart may be refused offsets for minutes.
            self._cluster = self._cluster or Cluster(self._bootstrap, self._options)
            ask = self._cluster.written_ends if wait_for_open else self._cluster.end_offsets
            end = ask([self._partition])[self._partition]
            if end < self._position or time.monotonic() - self._read_at > MAX_PAUSE_S:
                self.forget()
            ranges = {self._partition: (self._position, end)}
            for runs in self._reader.read_runs(ranges, silence_s=SILENCE_LIMIT_S, poll_s=_POLL_S):
                for _, messages in runs:
                    self._apply(messages)
            self._position, self._read_at = end, time.monotonic()
        except BrokerError:
            self._cluster = None
            raise

    def forget(self) -> None:
        """Forget all rows; the next :meth:`catch_up` reads from the start."""
        self.rows, self._position = {}, 0

    def close(self) -> None:
        """Close the clients."""
        self._reader.close()
        self._cluster = None

    def _apply(self, messages: list[Message]) -> None:
        for message in messages:
            key, value = message.key() or b"", message.value()
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
        self._position = int(messages[-1].offset() or 0) + 1
