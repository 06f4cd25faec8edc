"""A service that is nothing but its lanes: topics, chunks to deliver, and a check of what was delivered."""

from __future__ import annotations

import time
from itertools import count, pairwise

from confluent_kafka import Message
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from replayfilter.core.input_partition import InputPartition
from replayfilter.errors import DeliveryError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.chunk import Chunk
from replayfilter.kafka.lanes import Delivery, Lanes
from replayfilter.kafka.transactions import LaneStats
from tests.support.topics import read_all

PARTITIONS, LANES = 4, 2
OLD_MS = 1_700_000_000_000
ATTEMPTS = 8
_numbers = count()


class LaneService:
    """One input topic named like the service, two lanes, two output topics; four partitions in each topic."""

    def __init__(self, bootstrap: str, name: str = "", **topic_config: str) -> None:
        self.bootstrap = bootstrap
        self.name = name or f"lanes{next(_numbers)}-{time.time_ns()}"
        self.outputs = [f"{self.name}.a", f"{self.name}.b"]
        if not name:
            admin = AdminClient({"bootstrap.servers": bootstrap})
            made = admin.create_topics([NewTopic(t, PARTITIONS, config=topic_config) for t in self.outputs])
            for future in made.values():
                future.result(20)
            # offsets can only be committed for topics that exist
            Cluster(bootstrap).create({self.name: PARTITIONS})

    def lanes(self, **options: str) -> Lanes:
        """The lanes of a new worker."""
        return Lanes(self.bootstrap, self.name, {k.replace("_", "."): v for k, v in options.items()})

    def partitions(self, lane: int) -> list[InputPartition]:
        """The input partitions of a lane."""
        return [(self.name, number) for number in range(PARTITIONS) if number % LANES == lane]

    def chunk(self, partition: InputPartition, first: int, end: int) -> Chunk:
        """Input offsets first..end-1, even ones to the first topic, odd ones to the second."""
        offsets = list(range(first, end))
        return Chunk(
            partition,
            offsets,
            [self.outputs[offset % 2] for offset in offsets],
            [partition[1]] * len(offsets),
            [b"k%d" % offset for offset in offsets],
            [b"%d" % offset for offset in offsets],
            [OLD_MS + offset for offset in offsets],
        )

    def write(self, delivery: Delivery, lane: int, first: int, end: int, pieces: int = 3) -> None:
        """Write offsets first..end-1 of each partition of a lane, in several chunks."""
        edges = [first + (end - first) * i // pieces for i in range(pieces + 1)]
        for partition in self.partitions(lane):
            for left, right in pairwise(edges):
                delivery.write(self.chunk(partition, left, right))

    def deliver(self, lanes: Lanes, lane: int, first: int, end: int) -> LaneStats:
        """Deliver one batch, as a task does: offsets first..end-1 of each partition of the lane."""
        with lanes.open(lane, self.partitions(lane)) as delivery:
            self.write(delivery, lane, first, end)
            return delivery.commit(dict.fromkeys(self.partitions(lane), end))

    def deliver_with_retries(self, lanes: Lanes, lane: int, first: int, end: int) -> LaneStats:
        """Deliver one batch, as Spark does: a failed task is tried again, a limited number of times."""
        for _ in range(ATTEMPTS):
            try:
                return self.deliver(lanes, lane, first, end)
            except DeliveryError:
                time.sleep(0.02)
        raise AssertionError(f"{ATTEMPTS} attempts failed")

    def deliver_chunk(self, lanes: Lanes, chunk: Chunk) -> None:
        """Deliver one chunk through lane 0."""
        with lanes.open(0, [chunk.input_partition]) as delivery:
            delivery.write(chunk)
            delivery.commit({chunk.input_partition: chunk.offsets[-1] + 1})

    def read(self) -> dict[tuple[str, int], list[Message]]:
        """All that a read_committed consumer sees now, by output partition."""
        found: dict[tuple[str, int], list[Message]] = {
            (topic, number): [] for topic in self.outputs for number in range(PARTITIONS)
        }
        for message in read_all(self.bootstrap, *self.outputs):
            found[str(message.topic()), int(message.partition() or 0)].append(message)
        return found

    def read_offsets(self) -> dict[tuple[str, int], list[int]]:
        """The input offset of each delivered record, by output partition."""
        return {at: [int(m.value() or b"-1") for m in messages] for at, messages in self.read().items()}

    def assert_exactly(self, end: int, lanes: tuple[int, ...] = (0, 1)) -> None:
        """Offsets 0..end-1 of each partition of these lanes are there once, in order, and no others."""
        ends = {
            partition: end if lane in lanes else 0
            for lane in range(LANES)
            for partition in self.partitions(lane)
        }
        wanted = {
            (topic, number): list(range(parity, ends[self.name, number], 2))
            for parity, topic in enumerate(self.outputs)
            for number in range(PARTITIONS)
        }
        deadline = time.monotonic() + 5  # a commit is visible once its markers are written
        while (found := self.read_offsets()) != wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        assert found == wanted
        time.sleep(0.05)
        assert self.read_offsets() == wanted
        committed = Cluster(self.bootstrap).committed(self.name, ends)
        assert committed == {partition: reached for partition, reached in ends.items() if reached}
