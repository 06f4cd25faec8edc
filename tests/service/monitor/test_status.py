"""Readiness, liveness and history of the status, at times chosen by the tests."""

from __future__ import annotations

import pytest

from replayfilter.core.watermark.laggards import Laggards
from replayfilter.service.monitor.lag import Arrivals, Lag
from replayfilter.service.monitor.status import LIVE_SECONDS, SLOT_SECONDS, SLOTS, Phase, Status
from tests.support.batches import batch


def running(now: float = 1000.0) -> Status:
    status = Status("orders", 120.0, {}, now)
    status.enter(Phase.RUNNING, now)
    return status


def test_a_running_service_with_an_idle_input_is_ready_however_old_its_last_commit() -> None:
    status = running()
    status.add_batch(batch(0, 1010.0, unique=5))
    for now in range(1010, 9000, 60):
        status.heartbeat(now)
        status.set_lags([Lag("orders", 0, 10, 10)], now)
        assert status.readiness_problems(now) == []
        assert status.commit_age(now) == now - 1010


def test_not_ready_if_records_wait_longer_than_the_limit_without_a_commit() -> None:
    status = running()
    status.add_batch(batch(0, 1010.0, unique=5))
    status.set_lags([Lag("orders", 0, 10, 10)], 2000.0)
    for now in (2005.0, 2060.0, 2125.0, 2126.0):
        status.heartbeat(now)
        status.set_lags([Lag("orders", 0, 10, 40)], now)
        late = now - 2005 > 120
        assert bool(status.readiness_problems(now)) is late, (
            "the limit counts from the arrival of the records, not from 1010"
        )
    assert "30 records wait" in status.readiness_problems(2126.0)[0]
    assert "http.stale_after = 120 s" in status.readiness_problems(2126.0)[0]
    status.add_batch(batch(1, 2127.0, unique=1))
    assert status.readiness_problems(2127.0) == []


def test_not_ready_if_kafka_does_not_report_the_end_offsets() -> None:
    status = running()
    status.set_lags([], 1010.0)
    status.set_kafka_error("no Kafka broker answered")
    status.heartbeat(1130.0)
    assert status.readiness_problems(1130.0) == []
    status.heartbeat(1131.0)
    assert "no Kafka broker answered" in status.readiness_problems(1131.0)[0]
    assert status.liveness_problems(1131.0) == [], "restarting the process would not help"


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.RUNNING])
def test_not_ready_in_any_other_phase(phase: Phase) -> None:
    status = running()
    status.enter(phase, 1001.0, "lane orders-1 is lost")
    assert status.readiness_problems(1001.0)[0].startswith(str(phase))
    assert bool(status.liveness_problems(1001.0)) is (phase is Phase.FAILED)


def test_a_retry_reports_its_reason_and_the_next_start_is_ready_again() -> None:
    status = running()
    status.enter(Phase.RETRYING, 1001.0, "lane orders-1 is lost")
    assert status.readiness_problems(1001.0) == ["retrying: lane orders-1 is lost"]
    status.enter(Phase.RUNNING, 1002.0)
    assert (status.readiness_problems(1002.0), status.retries, status.last_error) == (
        [],
        1,
        "lane orders-1 is lost",
    )


def test_not_live_when_the_supervising_thread_hangs() -> None:
    status = running()
    assert status.liveness_problems(1000.0 + LIVE_SECONDS) == []
    assert "JVM" in status.liveness_problems(1000.5 + LIVE_SECONDS)[0]


def test_the_history_is_bounded_and_has_sums_per_slot() -> None:
    status = running(0.0)
    for number in range(SLOTS * 3):
        status.add_batch(batch(number, number * SLOT_SECONDS / 2, unique=3, duplicate=1))
    history = status.snapshot(0.0)["history"]
    assert len(history) == SLOTS
    assert {(slot["batches"], slot["unique"], slot["duplicate"]) for slot in history} == {(2, 6, 2)}
    assert status.totals["unique"] == SLOTS * 9


def test_current_values_are_not_summed_over_batches() -> None:
    status = running()
    status.add_batch(batch(0, 1001.0, unique=3, state_keys=3, state_gaps=2))
    status.add_batch(batch(1, 1002.0, unique=2, state_keys=5, state_gaps=2))
    snapshot = status.snapshot(1002.0)
    assert snapshot["state"]["keys"] == 5
    assert snapshot["counts"]["state_gaps"] == 4
    assert "state_keys" not in snapshot["counts"]


def test_which_origins_hold_the_watermark_back_since_when_and_by_how_much() -> None:
    status = running()
    assert status.snapshot(1000.0)["laggards"] is None
    lows = (5_000_000, 5_000_000, 8_000_000, 8_000_000)
    for number, low in enumerate(lows):
        found = Laggards(low, 9_500_000, 3, 2, 0, 2, 1, (("c", None), ("a", low)))
        status.add_batch(batch(number, 1001.0 + number, unique=1, laggards=found.to_text()))
    status.add_batch(batch(4, 1006.0))  # transaction markers only
    laggards = status.snapshot(1010.0)["laggards"]
    assert laggards["origins"] == {"expected": 3, "heard": 2, "idle": 0, "lagging": 2}
    assert (laggards["may_lag"], laggards["behind_seconds"], laggards["still_seconds"]) == (1, 1.5, 7.0)
    assert laggards["slowest"] == [{"origin": "c", "progress": None}, {"origin": "a", "progress": 8.0}]
    assert laggards["partitions"] == []


def test_steps_of_a_batch_in_seconds() -> None:
    found = batch(4, 0.0, unique=1)
    assert found.seconds == {"offsets": 0.0, "planning": 0.0, "log": 0.15, "run": 1.5, "total": 2.0}
    assert found.ends == {"orders": {0: 10, 1: 20}}


def test_a_record_arrived_when_the_end_offset_was_first_seen_after_it() -> None:
    arrivals = Arrivals()
    for end, at in ((10, 1.0), (10, 2.0), (15, 3.0), (15, 4.0), (30, 5.0)):
        arrivals.add(end, at)
    assert [arrivals.arrived(offset) for offset in (9, 10, 14, 15, 29, 30)] == [
        None,
        3.0,
        3.0,
        5.0,
        5.0,
        None,
    ]


def test_lengths_are_shown_by_the_bounds_of_their_buckets() -> None:
    status = running()
    for number in range(2):
        status.add_batch(batch(number, 1010.0, state_late_duplicate_1=5, state_apart_14=2, state_keys=3))
    view = status.snapshot(1011.0)
    assert view["lengths"]["below_seconds"][:2] == [10.0, 60.0]
    assert view["lengths"]["late_duplicate"] == [0, 10, *[0] * 13]
    assert view["lengths"]["apart"] == [*[0] * 14, 4]
    assert view["state"] == {"keys": 3}
    assert not [name for name in view["counts"] if "late_" in name]
