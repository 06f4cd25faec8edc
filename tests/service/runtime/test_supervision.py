"""What is tried again, how often, and what ends the service; with queries that fail as they are told."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from replayfilter.errors import (
    BrokerError,
    CheckpointError,
    ConfigError,
    DeliveryError,
    MissingDependency,
    ReplayfilterError,
    SparkLost,
)
from replayfilter.service.monitor.status import Phase, Status
from replayfilter.service.runtime import supervision
from replayfilter.service.runtime.supervision import TRIES, StopSignals, Supervisor
from tests.support.batches import batch


class Scripted:
    """A query whose runs go as told: an error to fail with, a number of batches first, None for an end."""

    restart_requested = False
    last_response_at = 0.0

    def __init__(self, status: Status, script: Sequence[tuple[int, Exception | None]]) -> None:
        self.status, self.script = status, list(script)
        self.starts = 0

    def start(self, once: bool) -> None:
        self.starts += 1

    def await_end(self) -> None:
        batches, error = self.script.pop(0)
        for _ in range(batches):
            self.status.add_batch(batch(self.status.batches, time.time(), unique=1))
        if error is not None:
            raise error

    def stop_after_batch(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(supervision, "_LONGEST_WAIT", 0.002)
    monkeypatch.setattr(supervision, "POLL_SECONDS", 0.001)


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    with StopSignals() as taken:
        yield taken


def supervised(
    signals: StopSignals, script: Sequence[tuple[int, Exception | None]], once: bool = False
) -> tuple[Scripted, Status, list[str]]:
    """Run a script to its end."""
    status, said = Status("orders", 120.0, {}, time.time()), list[str]()
    query = Scripted(status, script)
    supervisor = Supervisor(query, signals, status, said.append)
    try:
        supervisor.run(once)
    finally:
        supervised.last = query, status, said  # type: ignore[attr-defined]
    return query, status, said


LANE = DeliveryError("lane orders-3 is lost")
AWAY = BrokerError("no Kafka broker answered")


@pytest.mark.parametrize("error", [LANE, AWAY, ReplayfilterError("the query failed: a task was lost")])
def test_a_fault_that_can_pass_is_tried_again(signals: StopSignals, error: Exception) -> None:
    query, status, said = supervised(signals, [(0, error), (0, error), (2, None)])
    assert (query.starts, status.retries, status.phase) == (3, 2, Phase.ENDED)
    assert len(said) == 2
    assert str(error) in said[0]


def test_tries_end_and_the_last_reason_is_raised(signals: StopSignals) -> None:
    with pytest.raises(DeliveryError, match="lane orders-3"):
        supervised(signals, [(0, LANE)] * 50)
    query, status, _ = supervised.last  # type: ignore[attr-defined]
    assert query.starts == TRIES + 1
    assert (status.phase, status.last_error) == (Phase.FAILED, "lane orders-3 is lost")


def test_a_finished_batch_makes_the_tries_count_anew(signals: StopSignals) -> None:
    script = ([(0, LANE)] * TRIES + [(1, LANE)]) * 4
    query, status, _ = supervised(signals, [*script, (0, None)])
    assert query.starts == len(script) + 1
    assert status.batches == 4


def test_while_no_broker_answers_it_goes_on(signals: StopSignals) -> None:
    query, _, _ = supervised(signals, [(0, LANE), *[(0, AWAY)] * 40, (1, None)])
    assert query.starts == 42


def test_once_does_not_wait_for_a_broker_for_ever(signals: StopSignals) -> None:
    with pytest.raises(BrokerError):
        supervised(signals, [(0, AWAY)] * 50, once=True)
    assert supervised.last[0].starts <= TRIES + 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "error",
    [
        ConfigError(["dedup.key: missing"]),
        CheckpointError("Kafka no longer holds records"),
        MissingDependency("no Java"),
        SparkLost("the JVM is gone"),
        ZeroDivisionError("a fault of ours"),
    ],
)
def test_what_cannot_pass_ends_it_at_once(signals: StopSignals, error: Exception) -> None:
    with pytest.raises(type(error)):
        supervised(signals, [(3, error), (0, None)])
    query, status, _ = supervised.last  # type: ignore[attr-defined]
    assert (query.starts, status.phase) == (1, Phase.FAILED)


def test_larger_records_start_the_query_anew_without_a_fault(signals: StopSignals) -> None:
    class Growing(Scripted):
        @property
        def restart_requested(self) -> bool:  # type: ignore[override]
            return self.starts < 3

    status = Status("orders", 120.0, {}, time.time())
    query = Growing(status, [(1, None)] * 3)
    Supervisor(query, signals, status, pytest.fail).run(once=False)
    assert (query.starts, status.retries) == (3, 0)


class Endless(Scripted):
    """A batch that never finishes."""

    def await_end(self) -> None:
        self.began.set()
        threading.Event().wait(30)

    began = threading.Event()


def test_a_batch_that_never_ends_holds_a_stop_up_for_a_named_time_only(
    signals: StopSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "STOP_SECONDS", 0.3)
    status = Status("orders", 120.0, {}, time.time())
    query = Endless(status, [])
    threading.Thread(target=lambda: (query.began.wait(10), os.kill(os.getpid(), signal.SIGTERM))).start()
    began = time.monotonic()
    with pytest.raises(ReplayfilterError, match="did not finish within"):
        Supervisor(query, signals, status, pytest.fail).run(once=False)
    assert time.monotonic() - began < 5
    assert query.stopped


def test_a_signal_ends_the_wait_between_two_tries(
    signals: StopSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "_FIRST_WAIT", 20.0)
    monkeypatch.setattr(supervision, "_LONGEST_WAIT", 20.0)
    status = Status("orders", 120.0, {}, time.time())
    query = Scripted(status, [(0, LANE)])
    warned = threading.Event()
    threading.Thread(target=lambda: (warned.wait(10), os.kill(os.getpid(), signal.SIGTERM))).start()
    began = time.monotonic()
    Supervisor(query, signals, status, lambda _: warned.set()).run(once=False)
    assert time.monotonic() - began < 10
    assert (query.starts, status.phase) == (1, Phase.ENDED)
