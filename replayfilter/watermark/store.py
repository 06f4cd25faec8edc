"""What the table writer needs of a store: one server at a time writes, and what is written stays.

There are two: a file (sqlite_store.py) for servers on one host, and a compacted Kafka topic (kafka_store.py)
for servers on several. Both fence writers in the same way: a server takes the lease by increasing the epoch,
and from then on the store refuses every transaction of the server before. Only the heartbeat says whether
another server is alive: the clocks of two servers are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from replayfilter.core.watermark.stages import Lows
from replayfilter.watermark.api import DEFAULT_APP
from replayfilter.watermark.snapshots import PartitionReport
from replayfilter.watermark.stage_row import StoredOrigin
from replayfilter.watermark.table import Changes

HISTORY_INTERVAL_US = 5_000_000  # between two points of history

HistoryPoint = tuple[int, int | None, int | None, int | None]  # at, input low, output low, largest time


def stored_name(app: str, stage: str) -> str:
    """The name under which a store keeps a stage. Names of applications and stages have no slash.

    >>> stored_name("default", "web"), stored_name("eu", "web")
    ('web', 'eu/web')
    """
    return stage if app == DEFAULT_APP else f"{app}/{stage}"


class FencedError(Exception):
    """Another server has taken the lease."""


class Lease(NamedTuple):
    """Who may write. ``beat`` increases while the owner is alive; ``owner`` is empty after a clean stop."""

    epoch: int
    beat: int
    owner: str


class StoredStage(NamedTuple):
    """What the store has of one stage."""

    lows: Lows
    moved_us: int | None
    origins: list[StoredOrigin]
    partitions: dict[str, PartitionReport]


class Store(Protocol):
    """A store, for use by one thread at a time; only ``history`` may be called by any thread.

    A ``stage`` here is a ``stored_name``. The methods raise one of ``failures`` if the store can't be used
    now. ``name``: the setting that names it, and ``remedy``: what to do, both for messages. ``epoch``: that
    of this server's lease; 0 before the first.
    """

    name: str
    remedy: str
    failures: tuple[type[Exception], ...]
    epoch: int

    def close(self) -> None:
        """Close the store. The lease stays as it is."""

    def lease(self) -> Lease:
        """The present lease, whoever has it."""

    def take_lease(self, seen: Lease, owner: str) -> bool:
        """Take the lease, if it is still as it was when ``seen`` was read; whether that worked.

        Afterwards no transaction of an earlier owner can be committed, and ``load`` has all they committed.
        """

    def transaction(self) -> AbstractContextManager[None]:
        """A transaction with a heartbeat. Raises FencedError if this server no longer has the lease.

        What was written in it is stored for good when the block has ended without an error, or not at all.
        """

    def release_lease(self) -> None:
        """Give the lease up, so that the next server can take it at once."""

    def load(self, stage: str) -> StoredStage:
        """A stage as it was stored when the lease was taken; empty if it is new."""

    def write(self, changes: Mapping[str, Changes]) -> None:
        """Write changes, within a transaction."""

    def add_history(self, at_us: int, points: Mapping[str, tuple[Lows, int]], keep_us: int) -> None:
        """Add a point for each stage (lows, largest event time), within a transaction.

        Points older than ``keep_us`` are forgotten.
        """

    def history(self, stage: str, since_us: int, points: int) -> list[HistoryPoint]:
        """The history of a stage since a time, reduced to about ``points`` points."""


def thin_out(history: list[HistoryPoint], points: int) -> list[HistoryPoint]:
    """About ``points`` points of a history; always with the newest.

    >>> [point[0] for point in thin_out([(at, None, None, None) for at in range(7)], 3)]
    [0, 2, 4, 6]
    """
    return history[::-1][:: max(1, len(history) // points)][::-1]
