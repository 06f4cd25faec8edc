"""Other teams' programs around the service: jobs that feed it, and a reader of a stream with replays.

Both use the real client library. They die, and start again from what they have saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from replayfilter.client.consumer import FilteringConsumer
from replayfilter.client.producer import StampingProducer
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.stamp import producer_id
from replayfilter.errors import ReplayfilterError
from tests.sim.scenario import SourceRecord
from tests.sim.scheduler import Process
from tests.sim.service_model import INPUT
from tests.sim.world import Simulation


class Program:
    """A program that is started again until it is ``done``."""

    def __init__(self, sim: Simulation, name: str) -> None:
        self._sim, self.name = sim, name
        self.process = Process(name)
        self.done = False

    def start(self) -> None:
        """Keep the program running until it is done."""
        keeper = Process(f"keeper of {self.name}")
        self._sim.spawn(keeper.name, keeper, self._keep_running)

    def run(self) -> None:
        """One execution."""

    def _keep_running(self) -> None:
        while not self.done:
            self.process = Process(self.name)
            actor = self._sim.spawn(self.name, self.process, self._execute)
            self._sim.wait(lambda actor=actor: actor.done)  # type: ignore[misc]
            self._sim.sleep(self._sim.chance.choice((0.5, 5.0)))

    def _execute(self) -> None:
        with suppress(ReplayfilterError):
            self.run()


class Job(Program):
    """An upstream job: it writes its records in order, and again from its last checkpoint after a kill."""

    def __init__(
        self, sim: Simulation, number: int, records: tuple[SourceRecord, ...], transactional: bool
    ) -> None:
        super().__init__(sim, f"job {number}")
        self._records, self._id = records, f"job-{number}" if transactional else None
        self._pid = producer_id("sim", self.name, INPUT)
        self._saved = 0

    def run(self) -> None:
        """Write the rest of the records."""
        sim, chance = self._sim, self._sim.chance
        producer = StampingProducer(
            {"bootstrap.servers": "sim:9092"}, INPUT, self._pid, transactional_id=self._id
        )
        at = self._saved
        while at < len(self._records):
            end = at + chance.randint(1, 8)
            if self._id:
                with producer.transaction():
                    self._produce(producer, at, end)
            else:
                self._produce(producer, at, end)
                producer.flush()
            at = min(end, len(self._records))
            if chance.random() < 0.6:
                self._saved = at
            elif chance.random() < 0.3:
                return  # it fails, and is started again
            sim.sleep(chance.choice((0.01, 0.5, 2.0)))
        self.done = True

    def _produce(self, producer: StampingProducer, at: int, end: int) -> None:
        for record in self._records[at:end]:
            producer.produce(record.partition, record.offset, record.value)


class Reader(Program):
    """Reads the input topic without replays. ``handled``: the values that it got, up to its last commit.

    With a store, what it handled is saved together with the offsets; otherwise Kafka's commit decides.
    """

    def __init__(self, sim: Simulation, all_written: Callable[[], bool]) -> None:
        super().__init__(sim, "reader")
        self._all_written, self._has_store = all_written, sim.chance.random() < 0.5
        self._saved: dict[InputPartition, tuple[int, str]] = {}
        self._got: list[bytes] = []
        self.handled: list[bytes] = []
        sim.on_commit = self._keep

    def run(self) -> None:
        """Read to the end, with commits now and then."""
        settings, self._got = {"bootstrap.servers": "sim:9092", "group.id": "reader"}, []
        consumer = FilteringConsumer(settings, store=self if self._has_store else None)
        consumer.subscribe([INPUT])
        while not self.done:
            last = self._all_written()
            message = consumer.poll(1.0)
            if message is not None:
                self._got.append(message.value() or b"")
            if message is None or self._sim.chance.random() < 0.3:
                consumer.commit()
                self.done = last and message is None

    def load(self, topic: str, partition: int) -> tuple[int, str] | None:
        """What a start goes on with; for the consumer, as :meth:`save`."""
        return self._saved.get((topic, partition))

    def save(self, entries: Mapping[InputPartition, tuple[int, str]]) -> None:
        """Save offsets and marks, and what was handled before them."""
        self._sim.point("save: before")
        self._saved |= entries
        self._keep(stored=True)
        self._sim.point("save: after")

    def _keep(self, stored: bool = False) -> None:
        if stored == self._has_store:
            self.handled += self._got
            self._got = []
