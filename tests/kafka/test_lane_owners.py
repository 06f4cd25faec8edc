"""Two owners of one lane on a real broker: one of them delivers, and each record is there once, in order."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException

from replayfilter.errors import DeliveryError
from replayfilter.kafka.lanes import Delivery
from replayfilter.kafka.transactions import LaneStats, send_offsets
from tests.support.clients import clients
from tests.support.lane_service import LaneService


@pytest.fixture
def service(bootstrap: str) -> LaneService:
    return LaneService(bootstrap)


def test_the_earlier_owner_cannot_commit_and_the_later_one_can(service: LaneService) -> None:
    early, late = (
        service.lanes().open(0, service.partitions(0)),
        service.lanes().open(0, service.partitions(0)),
    )
    service.write(late, 0, 0, 20)

    def deliver() -> None:
        service.write(early, 0, 0, 20)  # may fail here already
        early.commit(dict.fromkeys(service.partitions(0), 20))

    with pytest.raises(DeliveryError, match="try the task again"):
        deliver()
    late.commit(dict.fromkeys(service.partitions(0), 20))
    service.assert_exactly(20, lanes=(0,))


def test_an_owner_fenced_after_another_delivered_the_same_is_done(service: LaneService) -> None:
    early = service.lanes().open(0, service.partitions(0))
    service.write(early, 0, 0, 20)
    service.deliver(service.lanes(), 0, 0, 20)
    stats = early.commit(dict.fromkeys(service.partitions(0), 20))
    assert (stats.transactions, stats.fences) == (0, 1)
    service.assert_exactly(20, lanes=(0,))


def test_a_fenced_owner_fails_while_it_writes(service: LaneService) -> None:
    early = service.lanes().open(0, service.partitions(0))
    service.write(early, 0, 0, 20)
    early._get_owner().producer.flush(20)
    service.lanes().open(0, service.partitions(0))

    def continue_writing() -> None:
        with early:
            for first in range(20, 20_000, 20):
                service.write(early, 0, first, first + 20)
                time.sleep(0.01)

    with pytest.raises(DeliveryError, match=r"could not deliver .* fenced"):
        continue_writing()
    assert early.stats.fences == 1
    service.assert_exactly(0)


def test_a_kept_producer_that_was_fenced_is_noticed_at_open(service: LaneService) -> None:
    mine, other = service.lanes(), service.lanes()
    service.deliver(mine, 0, 0, 10)
    service.deliver(other, 0, 10, 20)
    with mine.open(0, service.partitions(0)) as delivery:
        assert (delivery.stats.fences, delivery.stats.takeovers) == (1, 1)
        assert [delivery.committed(partition) for partition in service.partitions(0)] == [20, 20]
        service.write(delivery, 0, 10, 30)  # overlaps the other owner's batch
        stats = delivery.commit(dict.fromkeys(service.partitions(0), 30))
    assert (stats.written, stats.skipped) == (20, 20)
    service.assert_exactly(30, lanes=(0,))


def test_a_takeover_while_a_transaction_with_offsets_is_open(service: LaneService) -> None:
    hanging = service.lanes().open(0, service.partitions(0))
    service.write(hanging, 0, 0, 20)
    owner = hanging._get_owner().producer
    pending = dict.fromkeys(service.partitions(0), 20)
    send_offsets(owner, pending, hanging._lanes.offsets.metadata, LaneStats())
    owner.flush(20)
    started = time.monotonic()
    assert service.deliver(service.lanes(), 0, 0, 20).written == 40
    assert time.monotonic() - started < 20  # without waiting for transaction.timeout.ms
    with pytest.raises(KafkaException, match="fenced"):
        owner.commit_transaction(20)
    service.assert_exactly(20, lanes=(0,))


def test_two_tasks_with_the_same_lane_at_once(service: LaneService) -> None:
    """Both deliver the same ten batches at the same time; they fence each other and try again."""
    start = threading.Barrier(2)
    totals = [LaneStats(), LaneStats()]
    errors: list[BaseException] = []

    def task(mine: LaneStats, seed: int) -> None:
        pause = random.Random(seed)
        lanes = service.lanes()
        lanes.standbys.prepare([0])
        start.wait(30)
        try:
            for first in range(0, 200, 20):
                time.sleep(pause.random() * 0.03)
                mine += service.deliver_with_retries(lanes, 0, first, first + 20)
        except BaseException as error:
            errors.append(error)

    tasks = [threading.Thread(target=task, args=(total, seed)) for seed, total in enumerate(totals)]
    for each in tasks:
        each.start()
    for each in tasks:
        each.join(120)
    assert not errors
    service.assert_exactly(200, lanes=(0,))


def test_a_fenced_producer_is_freed(service: LaneService) -> None:
    """The fence is noticed while an exception is raised; the exception must not keep the producer alive."""
    before = len(clients())
    mine, other = service.lanes(), service.lanes()
    for first in range(0, 40, 20):
        service.deliver(mine, 0, first, first + 10)
        service.deliver(other, 0, first + 10, first + 20)
    late = mine.open(0, service.partitions(0))
    other.open(0, service.partitions(0))
    with pytest.raises(DeliveryError), late:  # noqa: PT012
        service.write(late, 0, 40, 50)
        late.commit(dict.fromkeys(service.partitions(0), 50))
    mine.close()
    other.close()
    del mine, other, late
    assert len(clients()) <= before


@pytest.mark.parametrize("seed", range(4))
def test_any_failures_in_any_order(service: LaneService, seed: int) -> None:
    """Three workers try each batch until one reports it as done; hung owners continue later."""
    chance = random.Random(seed)
    workers = [service.lanes() for _ in range(3)]
    hung: list[tuple[Delivery, int]] = []
    first, ends = 0, list(_batch_ends(chance))
    for end in ends:
        done = False
        while not done:
            lanes, fate = chance.choice(workers), chance.choice(["ok", "ok", "raise", "hang", "forget"])
            delivery = lanes.open(0, service.partitions(0))
            try:
                service.write(delivery, 0, first, end, pieces=chance.randint(1, 4))
                if fate == "hang":
                    hung.append((delivery, end))
                elif fate == "raise":
                    delivery.abort()
                else:
                    delivery.commit(dict.fromkeys(service.partitions(0), end))
                    done = fate == "ok"  # "forget": committed, but not reported
            except DeliveryError:
                delivery.abort()
            if hung and chance.random() < 0.5:
                late, its_end = hung.pop(chance.randrange(len(hung)))
                try:
                    late.commit(dict.fromkeys(service.partitions(0), its_end))
                except DeliveryError:
                    assert its_end == end, "an older batch is delivered, so its commit must not fail"
        first = end
    service.assert_exactly(ends[-1], lanes=(0,))


def _batch_ends(chance: random.Random) -> Iterator[int]:
    end = 0
    for _ in range(12):
        end += chance.randint(1, 12)
        yield end
