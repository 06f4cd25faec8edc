"""Readiness, liveness and history of the status, at times that the tests choose."""

from __future__ import annotations

from typing import Any

import pytest

from replayfilter.core.watermark.laggards import Laggards
from replayfilter.service.monitor.batch import Batch, read_batch
from replayfilter.service.monitor.lag import Arrivals, Lag
from replayfilter.service.monitor.status import LIVE_SECONDS, SLOT_SECONDS, SLOTS, Phase, Status


def batch(number: int, at: float, **counts: int | str) -> Batch:
    facts: dict[str, Any] = {
        "batchId": number,
        "numInputRows": sum(count for count in counts.values() if isinstance(count, int)),
        "durationMs": {"triggerExecution": 2000, "addBatch": 1500, "walCommit": 100, "commitOffsets": 50},
        "sources": [{"endOffset": {"orders": {"0": 10, "1": 20}}}],
        "observedMetrics": {"counts": counts},
    }
    return read_batch(facts, at)


def running(now: float = 1000.0) -> Status:
    status = Status("orders", 120.0, {}, now)
    status.enter(Phase.RUNNING, now)
    return status


def test_ready_while_it_runs_and_the_input_is_idle_however_old_the_last_commit() -> None:
    status = running()
    status.batch(batch(0, 1010.0, unique=5))
    for now in range(1010, 9000, 60):
        status.sign_of_life(now)
        status.lag([Lag("orders", 0, 10, 10)], now)
        assert status.not_ready(now) == []
        assert status.commit_age(now) == now - 1010


def test_not_ready_once_records_wait_longer_than_the_bound_without_a_commit() -> None:
    status = running()
    status.batch(batch(0, 1010.0, unique=5))
    status.lag([Lag("orders", 0, 10, 10)], 2000.0)
    for now in (2005.0, 2060.0, 2125.0, 2126.0):
        status.sign_of_life(now)
        status.lag([Lag("orders", 0, 10, 40)], now)
        late = now - 2005 > 120
        assert bool(status.not_ready(now)) is late, "it counts from when the records came, not from 1010"
    assert "30 records wait" in status.not_ready(2126.0)[0]
    assert "http.stale_after = 120 s" in status.not_ready(2126.0)[0]
    status.batch(batch(1, 2127.0, unique=1))
    assert status.not_ready(2127.0) == []


def test_not_ready_if_kafka_does_not_say_how_far_the_input_is() -> None:
    status = running()
    status.lag([], 1010.0)
    status.kafka_silent("no Kafka broker answered")
    status.sign_of_life(1130.0)
    assert status.not_ready(1130.0) == []
    status.sign_of_life(1131.0)
    assert "no Kafka broker answered" in status.not_ready(1131.0)[0]
    assert status.not_live(1131.0) == [], "to replace the process would not help"


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.RUNNING])
def test_not_ready_in_any_other_phase(phase: Phase) -> None:
    status = running()
    status.enter(phase, 1001.0, "lane orders-1 is lost")
    assert status.not_ready(1001.0)[0].startswith(str(phase))
    assert bool(status.not_live(1001.0)) is (phase is Phase.FAILED)


def test_a_retry_says_why_and_a_start_that_follows_is_ready_again() -> None:
    status = running()
    status.enter(Phase.RETRYING, 1001.0, "lane orders-1 is lost")
    assert status.not_ready(1001.0) == ["retrying: lane orders-1 is lost"]
    status.enter(Phase.RUNNING, 1002.0)
    assert (status.not_ready(1002.0), status.retries, status.fault) == ([], 1, "lane orders-1 is lost")


def test_not_live_when_the_supervising_thread_hangs() -> None:
    status = running()
    assert status.not_live(1000.0 + LIVE_SECONDS) == []
    assert "JVM" in status.not_live(1000.5 + LIVE_SECONDS)[0]


def test_history_is_bounded_and_sums_up_by_slot() -> None:
    status = running(0.0)
    for number in range(SLOTS * 3):
        status.batch(batch(number, number * SLOT_SECONDS / 2, unique=3, duplicate=1))
    history = status.snapshot(0.0)["history"]
    assert len(history) == SLOTS
    assert {(slot["batches"], slot["unique"], slot["duplicate"]) for slot in history} == {(2, 6, 2)}
    assert status.totals["unique"] == SLOTS * 9


def test_levels_are_not_summed_up() -> None:
    status = running()
    status.batch(batch(0, 1001.0, unique=3, state_keys=3, state_gaps=2))
    status.batch(batch(1, 1002.0, unique=2, state_keys=5, state_gaps=2))
    snapshot = status.snapshot(1002.0)
    assert snapshot["state"]["keys"] == 5
    assert snapshot["counts"]["state_gaps"] == 4
    assert "state_keys" not in snapshot["counts"]


def test_who_holds_the_watermark_back_since_when_and_by_how_much() -> None:
    status = running()
    assert status.snapshot(1000.0)["laggards"] is None
    lows = (5_000_000, 5_000_000, 8_000_000, 8_000_000)
    for number, low in enumerate(lows):
        found = Laggards(low, 9_500_000, 3, 2, 0, 2, 1, (("c", None), ("a", low)))
        status.batch(batch(number, 1001.0 + number, unique=1, laggards=found.to_text()))
    status.batch(batch(4, 1006.0))  # of markers alone
    told = status.snapshot(1010.0)["laggards"]
    assert told["origins"] == {"expected": 3, "heard": 2, "idle": 0, "lagging": 2}
    assert (told["may_lag"], told["behind_seconds"], told["still_seconds"]) == (1, 1.5, 7.0)
    assert told["slowest"] == [{"origin": "c", "progress": None}, {"origin": "a", "progress": 8.0}]
    assert told["partitions"] == []


def test_steps_of_a_batch_in_seconds() -> None:
    found = batch(4, 0.0, unique=1)
    assert found.seconds == {"offsets": 0.0, "planning": 0.0, "log": 0.15, "run": 1.5, "total": 2.0}
    assert found.ends == {"orders": {0: 10, 1: 20}}


def test_arrival_of_an_offset_is_when_the_end_was_first_seen_beyond_it() -> None:
    arrivals = Arrivals()
    for end, at in ((10, 1.0), (10, 2.0), (15, 3.0), (15, 4.0), (30, 5.0)):
        arrivals.see(end, at)
    assert [arrivals.arrived(offset) for offset in (9, 10, 14, 15, 29, 30)] == [
        None,
        3.0,
        3.0,
        5.0,
        5.0,
        None,
    ]
