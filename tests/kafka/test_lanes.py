"""The lane protocol on a real broker: whatever happens to a task, each record is there once, in order."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections.abc import Iterator
from itertools import count, pairwise
from multiprocessing.synchronize import Event
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from replayfilter.core.input_partition import InputPartition
from replayfilter.devbroker import DevBroker
from replayfilter.errors import ConfigError, DeliveryError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.chunk import Chunk
from replayfilter.kafka.lanes import Delivery, Lanes
from replayfilter.kafka.transactions import LaneStats, send_offsets
from tests.support.clients import clients

PARTITIONS, LANES = 4, 2
OLD_MS = 1_700_000_000_000
SPAWN = multiprocessing.get_context("spawn")
_numbers = count()


class Stage:
    """A service of its own: input partitions 0-3, two lanes, two output topics of four partitions."""

    def __init__(self, bootstrap: str, name: str = "", **topic_config: str) -> None:
        self.bootstrap = bootstrap
        self.service = name or f"lanes{next(_numbers)}-{time.time_ns()}"
        self.outputs = [f"{self.service}.a", f"{self.service}.b"]
        if not name:
            admin = AdminClient({"bootstrap.servers": bootstrap})
            made = admin.create_topics([NewTopic(t, PARTITIONS, config=topic_config) for t in self.outputs])
            for future in made.values():
                future.result(20)
            # offsets can only be committed for topics that exist
            Cluster(bootstrap).create({self.service: PARTITIONS})

    def lanes(self, **options: str) -> Lanes:
        return Lanes(self.bootstrap, self.service, {k.replace("_", "."): v for k, v in options.items()})

    def sources(self, lane: int) -> list[InputPartition]:
        return [(self.service, number) for number in range(PARTITIONS) if number % LANES == lane]

    def run(self, source: InputPartition, first: int, end: int) -> Chunk:
        """Input offsets first..end-1, even ones to the first topic, odd ones to the second."""
        offsets = list(range(first, end))
        return Chunk(
            source,
            offsets,
            [self.outputs[offset % 2] for offset in offsets],
            [source[1]] * len(offsets),
            [b"k%d" % offset for offset in offsets],
            [b"%d" % offset for offset in offsets],
            [OLD_MS + offset for offset in offsets],
        )

    def write(self, delivery: Delivery, lane: int, first: int, end: int, pieces: int = 3) -> None:
        edges = [first + (end - first) * i // pieces for i in range(pieces + 1)]
        for source in self.sources(lane):
            for left, right in pairwise(edges):
                delivery.write(self.run(source, left, right))

    def deliver(self, lanes: Lanes, lane: int, first: int, end: int) -> LaneStats:
        """What a delivery task does with one batch of offsets first..end-1 in each partition of its lane."""
        with lanes.open(lane, self.sources(lane)) as delivery:
            self.write(delivery, lane, first, end)
            return delivery.commit(dict.fromkeys(self.sources(lane), end))

    def read(self) -> dict[tuple[str, int], list[Any]]:
        """All that a read_committed reader sees now, by output partition."""
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
            | {"enable.partition.eof": True, "enable.auto.commit": False}
        )
        wanted = [TopicPartition(topic, n, 0) for topic in self.outputs for n in range(PARTITIONS)]
        seen: dict[tuple[str, int], list[Any]] = {(at.topic, at.partition): [] for at in wanted}
        consumer.assign(wanted)
        ended: set[tuple[str, int]] = set()
        deadline = time.monotonic() + 30
        while len(ended) < len(wanted):
            assert time.monotonic() < deadline, "the reader got no end of partition"
            message = consumer.poll(1)
            if message is None:
                continue
            place = (str(message.topic()), int(message.partition() or 0))
            if message.error() is None:
                seen[place].append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(place)
        consumer.close()
        return seen

    def assert_exactly(self, end: int, lanes: tuple[int, ...] = (0, 1)) -> None:
        """Offsets 0..end-1 of each partition of these lanes are there once, in order, and no others."""
        ends = {s: (end if s[1] % LANES in lanes else 0) for lane in range(LANES) for s in self.sources(lane)}
        wanted = {
            (topic, number): list(range(parity, ends[self.service, number], 2))
            for parity, topic in enumerate(self.outputs)
            for number in range(PARTITIONS)
        }
        deadline = time.monotonic() + 5  # a commit is seen once its markers are written
        while (got := self.read_numbers()) != wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        assert got == wanted
        time.sleep(0.05)
        assert self.read_numbers() == wanted
        committed = Cluster(self.bootstrap).committed(self.service, ends)
        assert committed == {source: reached for source, reached in ends.items() if reached}

    def read_numbers(self) -> dict[tuple[str, int], list[int]]:
        return {place: [int(m.value()) for m in messages] for place, messages in self.read().items()}


@pytest.fixture
def stage(bootstrap: str) -> Stage:
    return Stage(bootstrap)


def insist(stage: Stage, lanes: Lanes, lane: int, first: int, end: int) -> LaneStats:
    """As Spark does: a failed task is run again, at most so often."""
    for _ in range(8):
        try:
            return stage.deliver(lanes, lane, first, end)
        except DeliveryError:
            time.sleep(0.02)
    raise AssertionError("eight attempts failed")


def deliver_run(lanes: Lanes, run: Chunk) -> None:
    with lanes.open(0, [run.source]) as delivery:
        delivery.write(run)
        delivery.commit({run.source: run.offsets[-1] + 1})


# -- one task after another ---------------------------------------------------------------------------


def test_batches_in_a_row_use_the_kept_producer(stage: Stage) -> None:
    lanes = stage.lanes()
    total = LaneStats()
    for first in range(0, 60, 20):
        for lane in range(LANES):
            total += stage.deliver(lanes, lane, first, first + 20)
    assert total == LaneStats(written=240, transactions=6, takeovers=2, retries=total.retries)
    stage.assert_exactly(60)


def test_a_batch_run_again_after_everything_was_committed_writes_nothing(stage: Stage) -> None:
    before = stage.lanes()
    for lane in range(LANES):
        stage.deliver(before, lane, 0, 30)
    stage.assert_exactly(30)
    outputs = [(topic, n) for topic in stage.outputs for n in range(PARTITIONS)]
    cluster = Cluster(stage.bootstrap)
    ends = cluster.end_offsets(outputs)
    for lanes in (before, stage.lanes()):  # the same worker, and another one
        for lane in range(LANES):
            stats = stage.deliver(lanes, lane, 0, 30)
            assert (stats.written, stats.skipped, stats.transactions) == (0, 60, 0)
    assert cluster.end_offsets(outputs) == ends
    stage.assert_exactly(30)


def test_a_batch_run_again_after_half_of_the_lanes_were_committed(stage: Stage) -> None:
    stage.deliver(stage.lanes(), 0, 0, 30)
    again = stage.lanes()
    assert stage.deliver(again, 0, 0, 30).written == 0
    assert stage.deliver(again, 1, 0, 30).written == 60
    stage.assert_exactly(30)


def test_records_below_the_committed_offset_are_left_out_in_mid_run(stage: Stage) -> None:
    stage.deliver(stage.lanes(), 0, 0, 17)
    stats = stage.deliver(stage.lanes(), 0, 0, 30)
    assert (stats.written, stats.skipped) == (26, 34)
    stage.assert_exactly(30, lanes=(0,))


def test_sources_need_not_be_known_at_open(stage: Stage) -> None:
    stage.deliver(stage.lanes(), 0, 0, 10)
    with stage.lanes().open(0) as delivery:
        stage.write(delivery, 0, 0, 20)
        stats = delivery.commit(dict.fromkeys(stage.sources(0), 20))
    assert (stats.written, stats.skipped) == (20, 20)
    stage.assert_exactly(20, lanes=(0,))


def test_offsets_advance_without_records(stage: Stage) -> None:
    """A batch of nothing but replays still moves on."""
    with stage.lanes().open(0) as delivery:
        delivery.commit(dict.fromkeys(stage.sources(0), 9))
    assert set(Cluster(stage.bootstrap).committed(stage.service, stage.sources(0)).values()) == {9}


# -- tasks that end in mid-work -----------------------------------------------------------------------


def _work(bootstrap: str, service: str, lane: int, end: int, commits: bool, reached: Event) -> None:
    stage = Stage(bootstrap, service)
    with stage.lanes().open(lane, stage.sources(lane)) as delivery:
        stage.write(delivery, lane, 0, end)
        if commits:
            delivery.commit(dict.fromkeys(stage.sources(lane), end))
        else:
            delivery._get_owner().producer.flush(20)  # the records are in the log, not committed
        reached.set()
        time.sleep(60)


@pytest.mark.parametrize("commits", [False, True], ids=["before commit", "after commit"])
def test_a_task_killed(stage: Stage, commits: bool) -> None:
    reached = SPAWN.Event()
    task = SPAWN.Process(target=_work, args=(stage.bootstrap, stage.service, 0, 40, commits, reached))
    task.start()
    assert reached.wait(30)
    task.kill()
    task.join()
    stage.assert_exactly(40 if commits else 0, lanes=(0,))
    stats = stage.deliver(stage.lanes(), 0, 0, 40)
    assert stats.written == (0 if commits else 80)
    stage.assert_exactly(40, lanes=(0,))


def test_an_exception_in_the_task_aborts(stage: Stage) -> None:
    lanes = stage.lanes()

    def fails() -> None:
        with lanes.open(0, stage.sources(0)) as delivery:
            stage.write(delivery, 0, 0, 10)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    stage.assert_exactly(0)
    assert stage.deliver(lanes, 0, 0, 20).written == 40
    stage.assert_exactly(20, lanes=(0,))


def test_a_commit_whose_answer_is_lost_counts(stage: Stage) -> None:
    """The commit went through, but the producer was told otherwise: the offsets decide."""

    class Deaf:
        def __init__(self, producer: Producer) -> None:
            self._producer = producer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._producer, name)

        def commit_transaction(self, timeout: float) -> None:
            self._producer.commit_transaction(timeout)
            raise KafkaException(KafkaError(KafkaError._FENCED, fatal=True))

    lanes = stage.lanes()
    with lanes.open(0, stage.sources(0)) as delivery:
        stage.write(delivery, 0, 0, 20)
        delivery._get_owner().producer = Deaf(delivery._get_owner().producer)  # type: ignore[assignment]
        assert delivery.commit(dict.fromkeys(stage.sources(0), 20)).transactions == 0
    assert stage.deliver(lanes, 0, 0, 30).written == 20
    stage.assert_exactly(30, lanes=(0,))


# -- two owners ---------------------------------------------------------------------------------------


def test_the_earlier_owner_cannot_commit_and_the_later_one_can(stage: Stage) -> None:
    early, late = stage.lanes().open(0, stage.sources(0)), stage.lanes().open(0, stage.sources(0))
    stage.write(late, 0, 0, 20)

    def deliver() -> None:
        stage.write(early, 0, 0, 20)  # may be told so here already
        early.commit(dict.fromkeys(stage.sources(0), 20))

    with pytest.raises(DeliveryError, match="try the task again"):
        deliver()
    late.commit(dict.fromkeys(stage.sources(0), 20))
    stage.assert_exactly(20, lanes=(0,))


def test_an_owner_fenced_after_another_delivered_the_same_is_done(stage: Stage) -> None:
    early = stage.lanes().open(0, stage.sources(0))
    stage.write(early, 0, 0, 20)
    stage.deliver(stage.lanes(), 0, 0, 20)
    stats = early.commit(dict.fromkeys(stage.sources(0), 20))
    assert (stats.transactions, stats.fences) == (0, 1)
    stage.assert_exactly(20, lanes=(0,))


def test_a_fenced_owner_is_told_while_it_writes(stage: Stage) -> None:
    early = stage.lanes().open(0, stage.sources(0))
    stage.write(early, 0, 0, 20)
    early._get_owner().producer.flush(20)
    stage.lanes().open(0, stage.sources(0))

    def writes_on() -> None:
        with early:
            for first in range(20, 20_000, 20):
                stage.write(early, 0, first, first + 20)
                time.sleep(0.01)

    with pytest.raises(DeliveryError, match=r"could not deliver .* fenced"):
        writes_on()
    assert early.stats.fences == 1
    stage.assert_exactly(0)


def test_a_kept_producer_that_was_fenced_is_found_out_at_open(stage: Stage) -> None:
    mine, other = stage.lanes(), stage.lanes()
    stage.deliver(mine, 0, 0, 10)
    stage.deliver(other, 0, 10, 20)
    with mine.open(0, stage.sources(0)) as delivery:
        assert (delivery.stats.fences, delivery.stats.takeovers) == (1, 1)
        assert [delivery.committed(source) for source in stage.sources(0)] == [20, 20]
        stage.write(delivery, 0, 10, 30)  # the other's batch may come again
        stats = delivery.commit(dict.fromkeys(stage.sources(0), 30))
    assert (stats.written, stats.skipped) == (20, 20)
    stage.assert_exactly(30, lanes=(0,))


def test_over_an_open_transaction_with_pending_offsets(stage: Stage) -> None:
    hanging = stage.lanes().open(0, stage.sources(0))
    stage.write(hanging, 0, 0, 20)
    owner = hanging._get_owner().producer
    pending = dict.fromkeys(stage.sources(0), 20)
    send_offsets(owner, pending, hanging._lanes.offsets.metadata, LaneStats())
    owner.flush(20)
    started = time.monotonic()
    assert stage.deliver(stage.lanes(), 0, 0, 20).written == 40
    assert time.monotonic() - started < 20  # it does not wait for transaction.timeout.ms
    with pytest.raises(KafkaException, match="fenced"):
        owner.commit_transaction(20)
    stage.assert_exactly(20, lanes=(0,))


def test_two_tasks_with_the_same_lane_at_once(stage: Stage) -> None:
    """Both deliver the same ten batches in a race: they fence each other, and try again."""
    start = threading.Barrier(2)
    totals = [LaneStats(), LaneStats()]
    faults: list[BaseException] = []

    def task(mine: LaneStats, seed: int) -> None:
        pause = random.Random(seed)
        lanes = stage.lanes()
        lanes.prepare([0])
        start.wait(30)
        try:
            for first in range(0, 200, 20):
                time.sleep(pause.random() * 0.03)
                mine += insist(stage, lanes, 0, first, first + 20)
        except BaseException as fault:
            faults.append(fault)

    tasks = [threading.Thread(target=task, args=(total, seed)) for seed, total in enumerate(totals)]
    for each in tasks:
        each.start()
    for each in tasks:
        each.join(120)
    assert not faults
    stage.assert_exactly(200, lanes=(0,))


def test_a_fenced_producer_is_let_go(stage: Stage) -> None:
    """Whoever finds out that it was fenced is in the middle of raising: nothing of that may stay."""
    before = len(clients())
    mine, other = stage.lanes(), stage.lanes()
    for first in range(0, 40, 20):
        stage.deliver(mine, 0, first, first + 10)
        stage.deliver(other, 0, first + 10, first + 20)
    late = mine.open(0, stage.sources(0))
    other.open(0, stage.sources(0))
    with pytest.raises(DeliveryError), late:  # noqa: PT012
        stage.write(late, 0, 40, 50)
        late.commit(dict.fromkeys(stage.sources(0), 50))
    mine.close()
    other.close()
    del mine, other, late
    assert len(clients()) <= before


@pytest.mark.parametrize("seed", range(4))
def test_any_mishaps_in_any_order(stage: Stage, seed: int) -> None:
    """Three workers, batches tried until a worker says that they are done, hung owners that wake up late."""
    chance = random.Random(seed)
    workers = [stage.lanes() for _ in range(3)]
    hung: list[tuple[Delivery, int]] = []
    first, ends = 0, list(_batch_ends(chance))
    for end in ends:
        done = False
        while not done:
            lanes, fate = chance.choice(workers), chance.choice(["ok", "ok", "raise", "hang", "forget"])
            delivery = lanes.open(0, stage.sources(0))
            try:
                stage.write(delivery, 0, first, end, pieces=chance.randint(1, 4))
                if fate == "hang":
                    hung.append((delivery, end))
                elif fate == "raise":
                    delivery.abort()
                else:
                    delivery.commit(dict.fromkeys(stage.sources(0), end))
                    done = fate == "ok"  # "forget": committed, but nobody was told
            except DeliveryError:
                delivery.abort()
            if hung and chance.random() < 0.5:
                late, its_end = hung.pop(chance.randrange(len(hung)))
                try:
                    late.commit(dict.fromkeys(stage.sources(0), its_end))
                except DeliveryError:
                    assert (
                        its_end == end
                    )  # an older batch is delivered, so its commit has nothing to fail for
        first = end
    stage.assert_exactly(ends[-1], lanes=(0,))


def _batch_ends(chance: random.Random) -> Iterator[int]:
    end = 0
    for _ in range(12):
        end += chance.randint(1, 12)
        yield end


# -- records that Kafka refuses, and what passes through ----------------------------------------------


def test_a_record_too_large_for_the_topic(bootstrap: str) -> None:
    stage = Stage(bootstrap, **{"max.message.bytes": "20000", "compression.type": "uncompressed"})
    lanes = stage.lanes(compression_type="none", batch_size="10000")
    source = (stage.service, 0)
    good = stage.run(source, 0, 50)
    values = [*good.values[:37], bytes(30_000), *good.values[38:]]
    sentence = (
        rf"from {stage.service}\[0\] offset 37 for {stage.outputs[1]}\[0\] \(30003 bytes .*max.message.bytes"
    )
    with pytest.raises(DeliveryError, match=sentence):
        deliver_run(lanes, good._replace(values=values))
    stage.assert_exactly(0)
    deliver_run(lanes, good)
    assert sum(map(len, stage.read().values())) == 50


def test_a_record_too_large_for_the_client(stage: Stage) -> None:
    source = (stage.service, 0)
    run = stage.run(source, 0, 3)._replace(values=[b"a", bytes(32_000_000), b"c"])
    with pytest.raises(DeliveryError, match=r"offset 1 for .* \(32000002 bytes.*max.request.size"):
        deliver_run(stage.lanes(), run)
    stage.assert_exactly(0)


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"topics": ["no-such-topic"]}, "create the topic"),
        ({"partitions": [PARTITIONS]}, "counts the topic's partitions"),
    ],
)
def test_a_topic_or_partition_that_is_not_there(stage: Stage, change: dict[str, Any], remedy: str) -> None:
    source = (stage.service, 0)
    lanes = stage.lanes(topic_metadata_propagation_max_ms="500")
    with pytest.raises(DeliveryError, match=rf"offset 0 for .*{remedy}"):
        deliver_run(lanes, stage.run(source, 0, 1)._replace(**change))


def test_records_pass_through_as_they_are(stage: Stage) -> None:
    source = (stage.service, 2)
    keys = [None, b"", b"key", b"\x00\xff", None]
    values = [None, b"", b"v" * 1_100_000, b"x", b"last"]
    stamps = [OLD_MS, -1, 0, 1, OLD_MS - 5]
    headers: list[Any] = [None, [], [("a", b"1"), ("a", None), ("", b"")], [("b", b"\xff")], None]
    lanes = Stage(stage.bootstrap, **{"max.message.bytes": "2000000"})
    topic = lanes.outputs[0]
    with lanes.lanes().open(0) as delivery:
        delivery.write(Chunk(source, [5, 7, 8, 9, 12], [topic] * 5, [2] * 5, keys, values, stamps, headers))
        delivery.commit({source: 13})
    got = lanes.read()[topic, 2]
    assert [m.key() for m in got] == keys
    assert [m.value() for m in got] == values
    assert [m.timestamp()[1] for m in got] == [OLD_MS, -1, 1, 1, OLD_MS - 5]  # 0 can't be sent
    assert [m.headers() or [] for m in got] == [h or [] for h in headers]


def test_a_full_queue_is_waited_for(stage: Stage) -> None:
    lanes = stage.lanes(queue_buffering_max_messages="50")
    stage.deliver(lanes, 0, 0, 2000)
    stage.assert_exactly(2000, lanes=(0,))


# -- misuse -------------------------------------------------------------------------------------------


def test_rows_must_ascend_and_be_covered_by_the_commit(stage: Stage) -> None:
    source = (stage.service, 0)
    with stage.lanes().open(0, [source]) as delivery:
        delivery.write(stage.run(source, 5, 10))
        with pytest.raises(ValueError, match="write in order"):
            delivery.write(stage.run(source, 9, 12))
        for short in ({source: 9}, {}):
            with pytest.raises(ValueError, match="for rows up to 9"):
                delivery.commit(short)
    with pytest.raises(ValueError, match="has ended"):
        delivery.commit({source: 10})
    stage.assert_exactly(0)


def test_settings_that_the_client_refuses(bootstrap: str) -> None:
    with pytest.raises(ConfigError, match=r"no\.such\.setting"):
        Lanes(bootstrap, "x", {"no.such.setting": "1"})
    with pytest.raises(ConfigError, match=r"transactional\.id"):
        Lanes(bootstrap, "x", {"transactional.id": "mine"})


# -- a broker that goes -------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_broker_killed_in_mid_transaction_and_between_batches() -> None:
    with DevBroker() as broker:
        stage = Stage(broker.bootstrap)
        lanes = stage.lanes()
        stage.deliver(lanes, 0, 0, 20)
        try:
            with lanes.open(0, stage.sources(0)) as delivery:
                stage.write(delivery, 0, 20, 40)
                delivery._get_owner().producer.flush(20)
                broker.restart()
                delivery.commit(dict.fromkeys(stage.sources(0), 40))
        except DeliveryError:
            pass  # either is right, as long as what it says is true
        else:
            stage.assert_exactly(40, lanes=(0,))
        insist(stage, lanes, 0, 20, 60)
        stage.assert_exactly(60, lanes=(0,))
        broker.restart()
        insist(stage, lanes, 0, 60, 80)
        stage.assert_exactly(80, lanes=(0,))
