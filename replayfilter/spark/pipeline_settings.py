"""What the pipeline must know, as plain values: it travels to every Python worker with the tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from replayfilter.core.clock.expiry import Rules
from replayfilter.core.replay.mark_changes import MarkChange
from replayfilter.core.routing import Route
from replayfilter.formats import KeySpec

TIME_CLOCKS = ("tuple", "system", "watermark")  # with these a record can be later than now


class Output(NamedTuple):
    """A topic that records go to, and its number of partitions."""

    topic: str
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """One service's pipeline.

    - ``service``: names the consumer group and the transactional ids. ``checkpoint``: folder or URL for
      Spark's own checkpoint. ``master``: a Spark master.
    - ``shards``, ``lanes``: state partitions and delivery tasks; they belong to the checkpoint.
    - ``bootstrap``, ``options``: the cluster, and client settings by Kafka's own names, secrets resolved.
    - ``topics``: the input. ``starting``: "earliest", "latest", or first offsets as topic -> partition ->
      offset (others begin at the earliest); used only when the checkpoint is empty.
    - ``keys``: which fields to read. ``stamp``: "key", "header" or "none". ``on_invalid``: "pass" or
      "error", for records without a stamp. ``rules``: how to decide. ``max_future_us``: microseconds that
      a record may be ahead of the batch's time.
    - ``outputs``: where each route goes; a REPLAY that is not among them is dropped.
    - ``output_key``: "stamp" or "preserve". ``pids``: input topic -> the pid of this service's own stamps.
    - ``batch_records``, ``batch_bytes``: how much one micro-batch takes at most, the latter by average size.
    - ``cache_bytes``: how much of the state a host keeps at hand in files, for all its workers together.
    - ``mark_changes``: of marks by hand, all that the checkpoint ever had.
    - ``log_level``: of Spark's own log on stderr: "off", or "error", "warn", "info" to find a fault.
    """

    service: str
    checkpoint: str
    bootstrap: str
    topics: tuple[str, ...]
    keys: KeySpec
    rules: Rules
    outputs: Mapping[Route, Output]
    pids: Mapping[str, int]
    shards: int
    lanes: int
    master: str = "local[*]"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets
    starting: str | Mapping[str, Mapping[int, int]] = "earliest"
    stamp: str = "key"
    on_invalid: str = "pass"
    max_future_us: int = 600 * 10**6
    output_key: str = "stamp"
    batch_records: int = 1_200_000
    batch_bytes: int = 512_000_000
    cache_bytes: int = 2_000_000_000
    mark_changes: tuple[MarkChange, ...] = ()
    log_level: str = "off"

    @property
    def checks_future(self) -> bool:
        """Whether a record can be too far ahead of the batch's time."""
        return self.rules.dedup and self.rules.clock in TIME_CLOCKS
