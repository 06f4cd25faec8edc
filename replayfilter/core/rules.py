"""The rules by which a service decides, as plain numbers.

They come from the config once, at the start, and travel with every task. All lengths are in units of the
expiry key.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from replayfilter.core.clock.clocks import Clock
from replayfilter.core.watermark.watermark_state import WatermarkRules


class Match(StrEnum):
    """Where an equal key makes a record a duplicate; the values are those of the config."""

    WINDOW = "window"  # accepted within the period
    BUCKET = "bucket"  # accepted in the same bucket


class Scope(StrEnum):
    """Where a key is the same key; the values are those of the config."""

    INPUT = "input"  # in all input partitions
    PARTITION = "partition"  # in its own input partition only


class OnNull(StrEnum):
    """What a record with a null value is; the values are those of the config."""

    ERROR = "error"  # an error, where the format needs a value
    UNIQUE = "unique"  # unique, unless it is a replay
    KEY = "key"  # unique or duplicate, by its Kafka key


@dataclass(frozen=True, slots=True)
class Rules:
    """How a service decides.

    - ``replay``: whether replays are dropped. ``mark_ttl_us``: microseconds until an idle mark is forgotten.
      ``max_sources``: with more sources than this nothing is decided.
    - ``dedup``: whether records expire and are compared with earlier ones.
    - ``clock``, ``scope``, ``match``, ``unit``: as in the config.
    - ``period``: how far behind the latest point a record is expired; with clock ``categorical`` the number
      of earlier categories that are still open. ``span``: the width of a bucket.
    - ``max_jump``: the largest step of the latest point, None for any; clock ``ordered`` only.
    - ``remember_first``: keep with each key where its first record is.
    - ``content``: the name of the digests of the content that are kept with each key, by which conflicts are
      found; only digests of one name can be compared. Empty: none are kept.
    - ``refresh``: a duplicate starts the period of its key again; only where ages are kept.
    - ``watermark``: how the low watermark is computed, None for none.
    - ``on_null``: what records are that have no value, and so no expiry key. They are as old as the latest
      point, so they never expire, and don't advance it.
    """

    replay: bool = True
    mark_ttl_us: int = 48 * 3600 * 10**6
    max_sources: int = 100_000
    dedup: bool = True
    clock: Clock = Clock.TUPLE
    period: int = 3_600_000
    span: int = 300_000
    match: Match = Match.WINDOW
    unit: str = "ms"
    max_jump: int | None = None
    remember_first: bool = False
    watermark: WatermarkRules | None = None
    scope: Scope = Scope.INPUT
    on_null: OnNull = OnNull.ERROR
    refresh: bool = False
    content: str = ""

    @property
    def checks_future(self) -> bool:
        """Whether a record can be too far ahead of the batch time."""
        return self.dedup and self.clock.reads_time

    @property
    def shards_by_partition(self) -> bool:
        """Whether all records of an input partition belong to one shard, and not each by its key."""
        return not self.dedup or self.scope is Scope.PARTITION

    @property
    def searches_all_buckets(self) -> bool:
        """Whether a key is searched for in all buckets, and not only in its own."""
        return self.match is Match.WINDOW and self.clock.expires

    @property
    def keeps_ages(self) -> bool:
        """Whether each remembered key has its expiry key: "within the period" depends on it."""
        return self.match is Match.WINDOW and self.clock.has_latest_point

    @property
    def needs_expiry_order(self) -> bool:
        """Whether the order of the expiry keys in an input partition matters, not only the largest."""
        return self.clock is Clock.CATEGORICAL or self.max_jump is not None
