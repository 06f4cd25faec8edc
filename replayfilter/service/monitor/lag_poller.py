"""Measures the lag of the input partitions every few seconds."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

from replayfilter.core.input_partition import InputPartition
from replayfilter.errors import BrokerError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.client_settings import client_settings
from replayfilter.kafka.reader import RangeReader, partition_of
from replayfilter.service.monitor.lag import Arrivals, Lag
from replayfilter.service.monitor.poller import Poller
from replayfilter.service.monitor.status import Status
from replayfilter.spark.pipeline_settings import PipelineSettings

POLL_SECONDS = 5.0  # each poll sends a few requests, whatever the number of partitions
ANSWER_SECONDS = 10.0
FIRST_READS_MAX = 16  # partitions whose first waiting record is read in one poll
FIRST_READ_SECONDS = 2.0


class LagPoller(Poller):
    """Asks Kafka how far the input partitions are, and updates the status.

    A partition's position is the offset that the group has committed, or the end of the last finished batch
    if that is larger: nobody commits the offsets of transaction markers at a partition's end. ``finished``
    holds the ends of the last batch that was finished before this start.

    ``warn`` is called when Kafka stops answering and when it answers again, since Spark itself waits for
    Kafka without logging anything.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        status: Status,
        finished: Mapping[InputPartition, int],
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("lag-poller", POLL_SECONDS)
        self._status, self._warn, self._clock = status, warn, clock
        self._finished = dict(finished)
        self._settings, self._cluster = settings, self._connect(settings)
        # Reads the first waiting records. Kept, since creating a consumer takes longer than such a read.
        consuming = client_settings(settings.bootstrap, settings.options)
        self._reader = RangeReader(consuming, settings.service, offset_reset="earliest")
        self._arrivals: defaultdict[InputPartition, Arrivals] = defaultdict(Arrivals)
        self._first_waiting: dict[InputPartition, tuple[int, float]] = {}
        self._held_back: dict[InputPartition, tuple[int, float]] = {}  # at which offset, since when
        self._kafka_silent = False

    def run(self) -> None:
        """Poll until the end."""
        try:
            super().run()
        finally:
            self._reader.close()

    def poll(self) -> None:
        """Update the status with the lags, or with the reason why Kafka doesn't report them."""
        problem = self._update_status()
        if problem and not self._kafka_silent:
            self._warn(problem)
        elif self._kafka_silent and not problem:
            self._warn("Kafka answers again")
        self._kafka_silent = problem is not None

    def _update_status(self) -> str | None:
        """Returns why the lags could not be read; None if they were."""
        try:
            lags = self.lags()
        except BrokerError as error:
            problem = str(error)
            self._cluster = self._connect(self._settings)  # the old client would keep stale leader epochs
        else:
            self._status.set_lags(lags, self._clock())
            return None
        self._status.set_kafka_error(problem)
        return problem

    def _connect(self, settings: PipelineSettings) -> Cluster:
        return Cluster(settings.bootstrap, settings.options, ANSWER_SECONDS)

    def lags(self) -> list[Lag]:
        """The lag of each input partition. Raises BrokerError if Kafka doesn't answer."""
        partitions = self._input_partitions()
        # Kafka doesn't report stable offsets while a delivery is in progress, so don't ask for those.
        committed = self._cluster.committed(self._settings.service, partitions, stable=False)
        # Before the ends that can be read: records that are written in between must not count as held back.
        written = self._cluster.written_ends(partitions)
        ends = self._cluster.end_offsets(partitions)
        begins = self._cluster.beginning_offsets(partitions)
        if (last := self._status.last) is not None:
            for topic, offsets in last.ends.items():
                self._finished |= {(topic, number): offset for number, offset in offsets.items()}
        now = self._clock()
        lags = []
        for partition in partitions:
            self._arrivals[partition].add(ends[partition], now)
            position = max(committed.get(partition, -1), self._finished.get(partition, -1), begins[partition])
            lags.append(Lag(*partition, min(position, ends[partition]), ends[partition]))
        since = self._waiting_since(lags)
        held_since = self._held_back_since(written, ends, now)
        return [
            replace(
                lag,
                seconds=_waited(lag, since, now),
                held_back=max(0, written[lag.topic, lag.partition] - lag.end),
                held_back_seconds=now - held_since.get((lag.topic, lag.partition), now),
            )
            for lag in lags
        ]

    def _input_partitions(self) -> list[InputPartition]:
        """The input partitions that there are now."""
        names = self._settings.topics
        topics = self._cluster.topics(names)
        for name in names:
            if name not in topics:
                raise BrokerError(f"there is no topic {name} at {self._settings.bootstrap}; create it again")
        return [(name, number) for name in names for number in range(topics[name].partitions)]

    def _held_back_since(
        self, written: Mapping[InputPartition, int], ends: Mapping[InputPartition, int], now: float
    ) -> dict[InputPartition, float]:
        """Since when each partition that is held back has been so at the same offset.

        When the transaction at that offset ends, the offset moves: at least past that transaction's marker.
        Another one that is open by then starts at 0 seconds.
        """
        before = self._held_back
        self._held_back = {
            partition: before[partition] if before.get(partition, (-1,))[0] == end else (end, now)
            for partition, end in ends.items()
            if written[partition] > end
        }
        return {partition: since for partition, (_, since) in self._held_back.items()}

    def _waiting_since(self, lags: list[Lag]) -> dict[InputPartition, float]:
        """When each partition's first waiting record arrived: as sampled, otherwise its own timestamp."""
        since: dict[InputPartition, float] = {}
        unknown = []
        for lag in lags:
            partition = lag.topic, lag.partition
            if not lag.records:
                continue
            arrived = self._arrivals[partition].arrived(lag.next)
            read_offset, read_time = self._first_waiting.get(partition, (-1, 0.0))
            if arrived is not None:
                since[partition] = arrived
            elif read_offset == lag.next:
                since[partition] = read_time
            else:
                unknown.append(lag)
        for partition, (offset, timestamp) in self._read_first(unknown[:FIRST_READS_MAX]).items():
            self._first_waiting[partition] = offset, timestamp
            since[partition] = timestamp
        return since

    def _read_first(self, lags: list[Lag]) -> dict[InputPartition, tuple[int, float]]:
        """The offset and timestamp of the first waiting record, for partitions that can be read in time."""
        ranges = {(lag.topic, lag.partition): (lag.next, lag.end) for lag in lags}
        messages = self._reader.read_available(ranges, FIRST_READ_SECONDS, per_partition=1)
        timestamps = {partition_of(message): message.timestamp()[1] / 1000 for message in messages}
        return {partition: (ranges[partition][0], timestamp) for partition, timestamp in timestamps.items()}


def _waited(lag: Lag, since: Mapping[InputPartition, float], now: float) -> float | None:
    if not lag.records:
        return 0.0
    arrived = since.get((lag.topic, lag.partition))
    return None if arrived is None else max(0.0, now - arrived)
