"""The lane protocol on a real broker: whatever happens to a task, each record is there once, in order."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.synchronize import Event
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from replayfilter.devbroker import DevBroker
from replayfilter.errors import ConfigError, DeliveryError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.lanes import KEPT_OWNERS, Lanes
from replayfilter.kafka.standbys import KEPT_STANDBYS
from replayfilter.kafka.transactions import LaneStats
from tests.support.clients import clients
from tests.support.lane_service import LANES, PARTITIONS, LaneService

MANY_LANES = 24
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def service(bootstrap: str) -> LaneService:
    return LaneService(bootstrap)


# -- one task after another ------------------------------------------------------------------------------


def test_batches_in_a_row_use_the_kept_producer(service: LaneService) -> None:
    lanes = service.lanes()
    total = LaneStats()
    for first in range(0, 60, 20):
        for lane in range(LANES):
            total += service.deliver(lanes, lane, first, first + 20)
    assert total == LaneStats(written=240, transactions=6, takeovers=2, retries=total.retries)
    service.assert_exactly(60)


def test_a_batch_run_again_after_everything_was_committed_writes_nothing(service: LaneService) -> None:
    before = service.lanes()
    for lane in range(LANES):
        service.deliver(before, lane, 0, 30)
    service.assert_exactly(30)
    outputs = [(topic, n) for topic in service.outputs for n in range(PARTITIONS)]
    cluster = Cluster(service.bootstrap)
    ends = cluster.end_offsets(outputs)
    for lanes in (before, service.lanes()):  # the same worker, and another one
        for lane in range(LANES):
            stats = service.deliver(lanes, lane, 0, 30)
            assert (stats.written, stats.skipped, stats.transactions) == (0, 60, 0)
    assert cluster.end_offsets(outputs) == ends
    service.assert_exactly(30)


def test_a_batch_run_again_after_half_of_the_lanes_were_committed(service: LaneService) -> None:
    service.deliver(service.lanes(), 0, 0, 30)
    again = service.lanes()
    assert service.deliver(again, 0, 0, 30).written == 0
    assert service.deliver(again, 1, 0, 30).written == 60
    service.assert_exactly(30)


def test_records_below_the_committed_offset_are_left_out_within_a_chunk(service: LaneService) -> None:
    service.deliver(service.lanes(), 0, 0, 17)
    stats = service.deliver(service.lanes(), 0, 0, 30)
    assert (stats.written, stats.skipped) == (26, 34)
    service.assert_exactly(30, lanes=(0,))


def test_partitions_need_not_be_known_at_open(service: LaneService) -> None:
    service.deliver(service.lanes(), 0, 0, 10)
    with service.lanes().open(0) as delivery:
        service.write(delivery, 0, 0, 20)
        stats = delivery.commit(dict.fromkeys(service.partitions(0), 20))
    assert (stats.written, stats.skipped) == (20, 20)
    service.assert_exactly(20, lanes=(0,))


def test_offsets_advance_without_records(service: LaneService) -> None:
    """A batch that contains only replays still advances the offsets."""
    with service.lanes().open(0) as delivery:
        delivery.commit(dict.fromkeys(service.partitions(0), 9))
    assert set(Cluster(service.bootstrap).committed(service.name, service.partitions(0)).values()) == {9}


# -- tasks that end before they are done -----------------------------------------------------------------


def _work(bootstrap: str, name: str, lane: int, end: int, commits: bool, reached: Event) -> None:
    service = LaneService(bootstrap, name)
    with service.lanes().open(lane, service.partitions(lane)) as delivery:
        service.write(delivery, lane, 0, end)
        if commits:
            delivery.commit(dict.fromkeys(service.partitions(lane), end))
        else:
            delivery._get_owner().producer.flush(20)  # the records are in the log, not committed
        reached.set()
        time.sleep(60)


@pytest.mark.parametrize("commits", [False, True], ids=["before commit", "after commit"])
def test_a_killed_task(service: LaneService, commits: bool) -> None:
    reached = SPAWN.Event()
    task = SPAWN.Process(target=_work, args=(service.bootstrap, service.name, 0, 40, commits, reached))
    task.start()
    assert reached.wait(30)
    task.kill()
    task.join()
    service.assert_exactly(40 if commits else 0, lanes=(0,))
    stats = service.deliver(service.lanes(), 0, 0, 40)
    assert stats.written == (0 if commits else 80)
    service.assert_exactly(40, lanes=(0,))


def test_an_exception_in_the_task_aborts(service: LaneService) -> None:
    lanes = service.lanes()

    def fails() -> None:
        with lanes.open(0, service.partitions(0)) as delivery:
            service.write(delivery, 0, 0, 10)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    service.assert_exactly(0)
    assert service.deliver(lanes, 0, 0, 20).written == 40
    service.assert_exactly(20, lanes=(0,))


def test_a_commit_whose_answer_is_lost_counts(service: LaneService) -> None:
    """The commit went through, but the producer got an error: the committed offsets decide."""

    class LosesAnswer:
        def __init__(self, producer: Producer) -> None:
            self._producer = producer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._producer, name)

        def commit_transaction(self, timeout: float) -> None:
            self._producer.commit_transaction(timeout)
            raise KafkaException(KafkaError(KafkaError._FENCED, fatal=True))

    lanes = service.lanes()
    with lanes.open(0, service.partitions(0)) as delivery:
        service.write(delivery, 0, 0, 20)
        delivery._get_owner().producer = LosesAnswer(delivery._get_owner().producer)  # type: ignore[assignment]
        assert delivery.commit(dict.fromkeys(service.partitions(0), 20)).transactions == 0
    assert service.deliver(lanes, 0, 0, 30).written == 20
    service.assert_exactly(30, lanes=(0,))


# -- misuse ----------------------------------------------------------------------------------------------


def test_rows_must_ascend_and_be_covered_by_the_commit(service: LaneService) -> None:
    partition = (service.name, 0)
    with service.lanes().open(0, [partition]) as delivery:
        delivery.write(service.chunk(partition, 5, 10))
        with pytest.raises(ValueError, match="write in order"):
            delivery.write(service.chunk(partition, 9, 12))
        for short in ({partition: 9}, {}):
            with pytest.raises(ValueError, match="for rows up to 9"):
                delivery.commit(short)
    with pytest.raises(ValueError, match="has ended"):
        delivery.commit({partition: 10})
    service.assert_exactly(0)


def test_settings_that_the_client_refuses(bootstrap: str) -> None:
    with pytest.raises(ConfigError, match=r"no\.such\.setting"):
        Lanes(bootstrap, "x", {"no.such.setting": "1"})
    with pytest.raises(ConfigError, match=r"transactional\.id"):
        Lanes(bootstrap, "x", {"transactional.id": "mine"})


# -- a broker that is killed -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_broker_killed_during_a_transaction_and_between_batches() -> None:
    with DevBroker() as broker:
        service = LaneService(broker.bootstrap)
        lanes = service.lanes()
        service.deliver(lanes, 0, 0, 20)
        try:
            with lanes.open(0, service.partitions(0)) as delivery:
                service.write(delivery, 0, 20, 40)
                delivery._get_owner().producer.flush(20)
                broker.restart()
                delivery.commit(dict.fromkeys(service.partitions(0), 40))
        except DeliveryError:
            pass  # both outcomes are right, as long as the report is true
        else:
            service.assert_exactly(40, lanes=(0,))
        service.deliver_with_retries(lanes, 0, 20, 60)
        service.assert_exactly(60, lanes=(0,))
        broker.restart()
        service.deliver_with_retries(lanes, 0, 60, 80)
        service.assert_exactly(80, lanes=(0,))


def test_a_worker_that_gets_many_lanes_keeps_few_producers(service: LaneService) -> None:
    before = sum(isinstance(each, Producer) for each in clients())
    lanes, partition = service.lanes(), (service.name, 0)
    for end in range(1, 2 * MANY_LANES + 1):
        lane = end % MANY_LANES
        with lanes.open(lane, [partition]) as delivery:
            delivery.commit({partition: end})
    after = sum(isinstance(each, Producer) for each in clients())
    lanes.close()
    assert after - before <= KEPT_OWNERS + KEPT_STANDBYS
