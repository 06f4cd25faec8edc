"""What is retried, how often, and what ends the service, with queries that fail by script."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from replayfilter.errors import (
    BrokerError,
    CheckpointDamaged,
    CheckpointError,
    ConfigError,
    DeliveryError,
    DiskFull,
    MissingDependency,
    ReplayfilterError,
    ServiceReplaced,
    SparkLost,
)
from replayfilter.service.monitor.status import Phase, Status
from replayfilter.service.runtime import supervision
from replayfilter.service.runtime.supervision import TRIES, StopSignals, Supervisor
from tests.support.batches import batch


class Scripted:
    """A query with a script: for each start a number of batches, then an error or None for a normal end."""

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
    status, warnings = Status("orders", 120.0, {}, time.time()), list[str]()
    query = Scripted(status, script)
    supervisor = Supervisor(query, signals, status, lambda text, cause=None: warnings.append(text))
    try:
        supervisor.run(once)
    finally:
        supervised.last = query, status, warnings  # type: ignore[attr-defined]
    return query, status, warnings


LOST_LANE = DeliveryError("lane orders-3 is lost")
FULL_DISK = DiskFull("no room is left on a disk")
NO_BROKER = BrokerError("no Kafka broker answered")


@pytest.mark.parametrize(
    "error", [LOST_LANE, NO_BROKER, ReplayfilterError("the query failed: a task was lost")]
)
def test_a_temporary_error_is_retried(signals: StopSignals, error: Exception) -> None:
    query, status, warnings = supervised(signals, [(0, error), (0, error), (2, None)])
    assert (query.starts, status.retries, status.phase) == (3, 2, Phase.ENDED)
    assert len(warnings) == 2
    assert str(error) in warnings[0]


def test_tries_are_limited_and_the_last_error_is_raised(signals: StopSignals) -> None:
    with pytest.raises(DeliveryError, match="lane orders-3"):
        supervised(signals, [(0, LOST_LANE)] * 50)
    query, status, _ = supervised.last  # type: ignore[attr-defined]
    assert query.starts == TRIES + 1
    assert (status.phase, status.last_error) == (Phase.FAILED, "lane orders-3 is lost")


def test_a_finished_batch_resets_the_count_of_tries(signals: StopSignals) -> None:
    script = ([(0, LOST_LANE)] * TRIES + [(1, LOST_LANE)]) * 4
    query, status, _ = supervised(signals, [*script, (0, None)])
    assert query.starts == len(script) + 1
    assert status.batches == 4


@pytest.mark.parametrize("error", [NO_BROKER, FULL_DISK])
def test_retries_are_not_limited_without_a_broker_or_room(signals: StopSignals, error: Exception) -> None:
    query, _, _ = supervised(signals, [(0, LOST_LANE), *[(0, error)] * 40, (1, None)])
    assert query.starts == 42


@pytest.mark.parametrize("error", [NO_BROKER, FULL_DISK])
def test_once_does_not_wait_forever(signals: StopSignals, error: Exception) -> None:
    with pytest.raises(type(error)):
        supervised(signals, [(0, error)] * 50, once=True)
    assert supervised.last[0].starts <= TRIES + 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "error",
    [
        ConfigError(["dedup.key: missing"]),
        CheckpointError("Kafka no longer holds records"),
        CheckpointDamaged("a file of the checkpoint is damaged"),
        MissingDependency("no Java"),
        ServiceReplaced("another one has started"),
        SparkLost("the JVM is gone"),
        ZeroDivisionError("a bug"),
    ],
)
def test_a_permanent_error_ends_the_service_at_once(signals: StopSignals, error: Exception) -> None:
    with pytest.raises(type(error)):
        supervised(signals, [(3, error), (0, None)])
    query, status, _ = supervised.last  # type: ignore[attr-defined]
    assert (query.starts, status.phase) == (1, Phase.FAILED)


def test_a_requested_restart_is_not_an_error(signals: StopSignals) -> None:
    class Restarting(Scripted):
        @property
        def restart_requested(self) -> bool:  # type: ignore[override]
            return self.starts < 3

    status = Status("orders", 120.0, {}, time.time())
    query = Restarting(status, [(1, None)] * 3)
    Supervisor(query, signals, status, lambda text, cause=None: pytest.fail(text)).run(once=False)
    assert (query.starts, status.retries) == (3, 0)


def terminate_after(event: threading.Event) -> None:
    """Send SIGTERM to this process once the event is set."""

    def terminate() -> None:
        event.wait(10)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate).start()


class Endless(Scripted):
    """A batch that never finishes."""

    def await_end(self) -> None:
        self.began.set()
        threading.Event().wait(30)

    began = threading.Event()


def test_a_batch_that_never_ends_delays_a_stop_only_up_to_the_limit(
    signals: StopSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "STOP_SECONDS", 0.3)
    status = Status("orders", 120.0, {}, time.time())
    query = Endless(status, [])
    terminate_after(query.began)
    began = time.monotonic()
    with pytest.raises(ReplayfilterError, match="did not finish within"):
        Supervisor(query, signals, status, lambda text, cause=None: pytest.fail(text)).run(once=False)
    assert time.monotonic() - began < 5
    assert query.stopped


def test_a_signal_ends_the_pause_between_two_tries(
    signals: StopSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "_FIRST_WAIT", 20.0)
    monkeypatch.setattr(supervision, "_LONGEST_WAIT", 20.0)
    status = Status("orders", 120.0, {}, time.time())
    query = Scripted(status, [(0, LOST_LANE)])
    warned = threading.Event()
    terminate_after(warned)
    began = time.monotonic()
    Supervisor(query, signals, status, lambda text, cause=None: warned.set()).run(once=False)
    assert time.monotonic() - began < 10
    assert (query.starts, status.phase) == (1, Phase.ENDED)
