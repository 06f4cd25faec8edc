"""How far each input partition is behind its end: in records, and in seconds of waiting."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from replayfilter.errors import BrokerError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.chunk import InputPartition
from replayfilter.kafka.client_settings import client_settings
from replayfilter.service.monitor.poller import Watch

if TYPE_CHECKING:
    from replayfilter.service.monitor.status import Status
    from replayfilter.spark.pipeline_settings import PipelineSettings

POLL_SECONDS = 5.0  # between two looks; each is two requests, whatever the number of partitions
ANSWER_SECONDS = 10.0
SAMPLES = 720  # an hour of arrivals
LOOKS_MAX = 16  # partitions whose first waiting record is read in one look
LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Lag:
    """One input partition: ``next`` is the first offset not yet delivered, ``end`` the one after the last.

    ``seconds``: how long the first of the waiting records has waited; 0 if none does, None if not known.
    """

    topic: str
    partition: int
    next: int
    end: int
    seconds: float | None = None

    @property
    def records(self) -> int:
        """Offsets that wait; a few of them may be markers of transactions."""
        return max(0, self.end - self.next)

    def shown(self) -> dict[str, Any]:
        """As JSON has it."""
        seconds = None if self.seconds is None else round(self.seconds, 1)
        return {
            "topic": self.topic,
            "partition": self.partition,
            "next": self.next,
            "end": self.end,
            "records": self.records,
            "seconds": seconds,
        }


class Arrivals:
    """When the end of one partition was seen where: tells when a record arrived.

    >>> arrivals = Arrivals()
    >>> arrivals.see(end=10, at=100.0); arrivals.see(end=20, at=105.0)
    >>> arrivals.arrived(15), arrivals.arrived(5)
    (105.0, None)
    """

    def __init__(self) -> None:
        self._ends: deque[int] = deque(maxlen=SAMPLES)
        self._times: deque[float] = deque(maxlen=SAMPLES)

    def see(self, end: int, at: float) -> None:
        """The partition ended at ``end``; times must ascend."""
        if not self._ends or end > self._ends[-1]:
            self._ends.append(end)
            self._times.append(at)

    def arrived(self, offset: int) -> float | None:
        """When the record of that offset was there at the latest; None if it came before the first look."""
        place = bisect_right(self._ends, offset)
        return self._times[place] if 0 < place < len(self._times) else None


class LagWatch(Watch):
    """Asks Kafka every few seconds how far the input partitions are, and tells the status.

    What is done with is what the group has committed, or what Spark has finished if that is more: markers
    of transactions at a partition's end are no records, and nobody commits them. ``finished`` holds what the
    checkpoint was through with at the start. ``tell`` is called when Kafka falls silent, and when it is back:
    Spark waits for it without a word.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        partitions: Mapping[str, int],
        status: Status,
        finished: Mapping[InputPartition, int],
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("lag-watch", POLL_SECONDS)
        self._sources = [(topic, number) for topic in settings.topics for number in range(partitions[topic])]
        self._status, self._tell, self._clock = status, tell, clock
        self._finished = dict(finished)
        self._settings, self._cluster = settings, self._connect(settings)
        # "waiting" readers: nothing is committed with it, so the group's own offsets stay what they are
        reading = {"group.id": settings.service, "isolation.level": "read_committed", "log_level": 0}
        never = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
        self._consumer = Consumer(client_settings(settings.bootstrap, settings.options) | reading | never)
        self._arrivals = {source: Arrivals() for source in self._sources}
        self._first_waiting: dict[InputPartition, tuple[int, float]] = {}
        self._silent = False

    def run(self) -> None:
        """Look until the end."""
        try:
            super().run()
        finally:
            self._consumer.close()

    def look(self) -> None:
        """Tell the status how far all is, or what keeps Kafka from saying so."""
        fault = self._try()
        if fault and not self._silent:
            self._tell(fault)
        elif self._silent and not fault:
            self._tell("Kafka answers again")
        self._silent = fault is not None

    def _try(self) -> str | None:
        """Tell the status; returns what kept it from that."""
        try:
            lags = self.lags()
        except BrokerError as error:
            fault = str(error)
            self._cluster = self._connect(self._settings)  # the old one would go on with the old epochs
        except KafkaException as error:
            fault = f"the first waiting records can't be read: {error.args[0].str()}; is the broker up?"
        else:
            self._status.lag(lags, self._clock())
            return None
        self._status.kafka_silent(fault)
        return fault

    def _connect(self, settings: PipelineSettings) -> Cluster:
        return Cluster(settings.bootstrap, settings.options, ANSWER_SECONDS)

    def lags(self) -> list[Lag]:
        """The lag of each input partition. Raises BrokerError or KafkaException if Kafka does not answer."""
        # Not settled: else they are not told while a delivery is under way.
        committed = self._cluster.committed(self._settings.service, self._sources, settled=False)
        ends, begins = self._cluster.ends(self._sources), self._cluster.begins(self._sources)
        if (last := self._status.last) is not None:
            for topic, partitions in last.ends.items():
                self._finished |= {(topic, number): offset for number, offset in partitions.items()}
        now = self._clock()
        lags = []
        for source in self._sources:
            self._arrivals[source].see(ends[source], now)
            done = max(committed.get(source, -1), self._finished.get(source, -1), begins[source])
            lags.append(Lag(*source, min(done, ends[source]), ends[source]))
        since = self._waiting_since(lags)
        return [Lag(lag.topic, lag.partition, lag.next, lag.end, _waited(lag, since, now)) for lag in lags]

    def _waiting_since(self, lags: list[Lag]) -> dict[InputPartition, float]:
        """When the first waiting record of each partition came: as seen, else by its own timestamp."""
        since: dict[InputPartition, float] = {}
        unknown = []
        for lag in lags:
            source = lag.topic, lag.partition
            if not lag.records:
                continue
            arrived = self._arrivals[source].arrived(lag.next)
            read_at, read = self._first_waiting.get(source, (-1, 0.0))
            if arrived is not None:
                since[source] = arrived
            elif read_at == lag.next:
                since[source] = read
            else:
                unknown.append(lag)
        for source, (offset, stamp) in self._read_first(unknown[:LOOKS_MAX]).items():
            self._first_waiting[source] = offset, stamp
            since[source] = stamp
        return since

    def _read_first(self, lags: list[Lag]) -> dict[InputPartition, tuple[int, float]]:
        """The first waiting record's offset and timestamp, of those that can be read in time."""
        if not lags:
            return {}
        found: dict[InputPartition, tuple[int, float]] = {}
        wanted = {(lag.topic, lag.partition): lag.next for lag in lags}
        self._consumer.assign([TopicPartition(*source, offset) for source, offset in wanted.items()])
        deadline = time.monotonic() + LOOK_SECONDS
        while wanted.keys() - found.keys() and (left := deadline - time.monotonic()) > 0:
            for message in self._consumer.consume(len(lags), min(left, 0.2)):
                source = str(message.topic()), int(message.partition() or 0)
                if message.error() is None and source not in found:
                    found[source] = wanted[source], message.timestamp()[1] / 1000
                    self._consumer.incremental_unassign([TopicPartition(*source)])
        self._consumer.unassign()
        return found


def _waited(lag: Lag, since: Mapping[InputPartition, float], now: float) -> float | None:
    if not lag.records:
        return 0.0
    at = since.get((lag.topic, lag.partition))
    return None if at is None else max(0.0, now - at)
