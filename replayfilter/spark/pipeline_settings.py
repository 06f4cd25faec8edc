"""What the pipeline must know, as plain values: they travel to every Python worker with the tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from replayfilter.core.replay.mark_changes import MarkChange
from replayfilter.core.routing import Route
from replayfilter.core.rules import Rules
from replayfilter.formats import KeySpec


class Output(NamedTuple):
    """An output topic and its number of partitions."""

    topic: str
    partitions: int


class FollowedUpstream(Protocol):
    """What a watermark server last said of the services before this one, asked in the background.

    ``lows``: the low watermark of each, in microseconds; None until all of them have one.
    """

    lows: Mapping[str, int] | None

    def stop(self) -> None:
        """Stop asking."""


class Upstream(Protocol):
    """The services before this one. It is pickled with the settings."""

    def follow(self) -> FollowedUpstream:
        """Begin to ask for their watermarks. Raises nothing: without an answer there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """The settings of one service's pipeline.

    Service and cluster:

    - ``service``: the name of the consumer group, and the start of the transactional ids.
    - ``master``: a Spark master.
    - ``bootstrap``: the Kafka cluster. ``options``: client settings by Kafka's own names, with the secrets.
    - ``membership``: of the consumer group, which commits carry: see kafka/membership.py. Empty: none.
    - ``log_level``: Spark's own log on stderr: "off", "error", "warn" or "info".

    Checkpoint:

    - ``checkpoint``: folder or URL of Spark's checkpoint.
    - ``shards``, ``lanes``: numbers of state partitions and of delivery tasks. They can't change on a live
      checkpoint. There are no more lanes than shards, since each lane needs a shard's report.
    - ``mark_changes``: all manual changes to marks since the checkpoint was created.

    Input:

    - ``topics``: the input topics.
    - ``starting``: "earliest", "latest", or offsets by topic and partition; partitions that are not in it
      start at the earliest offset. On a checkpoint that isn't empty, only offsets are used: those of
      partitions whose committed offset is gone.
    - ``topic_ids``: Kafka's ids of the input topics by name; a topic that is not in it may have any.
    - ``stamp``: where stamps are: "key", "header" or "none".
    - ``on_invalid``: what happens to records without a valid stamp: "pass" or "error".
    - ``upstream``: an :class:`Upstream` that tells how far the services before this one are; None: only their
      records do.

    Decisions:

    - ``keys``: the fields to read. ``rules``: how to decide.
    - ``max_future_us``: how many microseconds a record may be ahead of the batch time.

    Output:

    - ``outputs``: the output of each route. Without one for REPLAY, replays are dropped.
    - ``max_message_bytes``: the largest batch of records that each output topic takes; None if unknown. It is
      read at each start of the query.
    - ``output_stamp``: where this service's own stamps go: "key", "header" or "none". ``output_pids``: by
      output topic and input topic, their pid.

    Limits:

    - ``batch_records``, ``batch_bytes``: the most records and bytes in a batch. The bytes are estimated from
      the average size of records.
    - ``interval_us``: the shortest time between the starts of two batches. After a batch that could not take
      all records, the next one starts at once.
    - ``cache_bytes``: the most bytes of state that a host keeps in files, for all its workers together.
    """

    service: str
    checkpoint: str
    bootstrap: str
    topics: tuple[str, ...]
    keys: KeySpec
    rules: Rules
    outputs: Mapping[Route, Output]
    output_pids: Mapping[str, Mapping[str, int]]
    shards: int
    lanes: int
    master: str = "local[*]"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets
    starting: str | Mapping[str, Mapping[int, int]] = "earliest"
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    stamp: str = "key"
    on_invalid: str = "pass"
    upstream: Any = field(default=None, repr=False)  # an Upstream, no plain value; may hold a token
    max_future_us: int = 600 * 10**6
    max_message_bytes: int | None = None
    output_stamp: str = "key"
    batch_records: int = 1_200_000
    batch_bytes: int = 512_000_000
    interval_us: int = 0
    cache_bytes: int = 2_000_000_000
    mark_changes: tuple[MarkChange, ...] = ()
    membership: bytes = field(default=b"", repr=False)
    log_level: str = "off"

    def __post_init__(self) -> None:
        """Raise ValueError for more lanes than shards."""
        if self.lanes > self.shards:
            raise ValueError(f"lanes = {self.lanes}: more than shards = {self.shards}; use as many")
