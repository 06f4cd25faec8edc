"""Running the query until it ends, fails for good or is told to stop.

A query that failed is started again, from its checkpoint: after a second, then two, four, up to half a
minute. While no broker answers that goes on; a fault with the broker there gets :data:`TRIES` tries
without a finished batch in between. What can't pass (config, checkpoint, lost data) ends it at once.

The first SIGTERM or SIGINT lets the batch in hand finish, but not for longer than :data:`STOP_SECONDS`; a
second one ends the process at once. Neither loses anything: what is not committed will be done again.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Protocol, Self

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential

from replayfilter.errors import (
    BrokerError,
    CheckpointError,
    ConfigError,
    MissingDependency,
    ReplayfilterError,
    SparkLost,
)
from replayfilter.service.monitor.status import Phase, Status

POLL_SECONDS = 0.1
TRIES = 5
STOP_SECONDS = 60.0
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0
_FOR_GOOD = (ConfigError, CheckpointError, MissingDependency, SparkLost)


class Query(Protocol):
    """The part of replayfilter.spark.query.Service that is used here."""

    def start(self, once: bool) -> None:
        """Begin; returns as soon as the query runs."""

    def await_end(self) -> None:
        """Block until the query has ended; raises what it failed with."""

    def stop_after_batch(self) -> None:
        """Let the batch in hand finish, then end."""

    @property
    def last_response_at(self) -> float:
        """When Spark last answered, Unix seconds."""

    @property
    def restart_requested(self) -> bool:
        """Whether it ended by itself, only to be started again with other settings."""


class StopSignals:
    """Takes SIGTERM and SIGINT while in its context; ``asked`` says whether one came.

    A handler only notes it: it may run in the middle of a call to the JVM, where no other call may begin.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        self.take()
        return self

    def take(self) -> None:
        """Install the handlers; again after Spark has started, which puts its own for SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.signal(number, self._note)
            self._before.setdefault(number, before)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() itself gave before

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            os._exit(128 + number)  # no clean-up: it could wait for the very batch that takes too long
        self.asked = True
        os.write(2, b"stopping after the batch in hand; once more to stop now\n")


class Supervisor:
    """Runs one query, again and again if need be, and keeps the status told.

    ``warn`` takes a sentence for each fault that is tried again.
    """

    def __init__(
        self, query: Query, signals: StopSignals, status: Status, warn: Callable[[str], None]
    ) -> None:
        self._query, self._signals, self._status, self._warn = query, signals, status, warn
        self._once = self._ended = False
        self._tries = 0

    def run(self, once: bool) -> None:
        """Run to the end, or to the end of the batch once a signal came; raises what it failed with for good.

        ``once``: until all that is there now is handled; a broker that is away then counts as a try, too.
        """
        self._once = once
        try:
            while not (self._ended or self._signals.asked):
                Retrying(
                    retry=retry_if_exception(self._may_pass),
                    wait=wait_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT),
                    sleep=self._pause,
                    before_sleep=self._tell,
                    reraise=True,
                )(self._attempt)
        except Exception as error:
            self._status.enter(Phase.FAILED, time.time(), str(error))
            raise
        self._status.enter(Phase.ENDED, time.time())

    def _attempt(self) -> None:
        """Run the query once. Returns if it ended as it should, or failed after it had got on."""
        if self._signals.asked:
            return
        batches = self._status.batches
        try:
            self._ended = self._run_query()
        except Exception as error:
            if self._status.batches == batches:
                raise
            self._tries = 0
            if not self._may_pass(error):
                raise
            self._note(error)

    def _run_query(self) -> bool:
        """Whether that was all."""
        try:
            self._query.start(self._once)
        except KeyboardInterrupt:  # Spark's own handler, before it is replaced; no batch is in hand yet
            return True
        self._signals.take()
        self._status.enter(Phase.RUNNING, time.time())
        ending = _Ending(self._query)
        ending.start()
        told_at: float | None = None
        while ending.is_alive():
            ending.join(POLL_SECONDS)
            self._status.sign_of_life(self._query.last_response_at)
            if self._signals.asked and told_at is None and ending.is_alive():
                told_at = time.monotonic()
                self._status.enter(Phase.STOPPING, time.time())
                self._query.stop_after_batch()
            if told_at is not None and time.monotonic() - told_at > STOP_SECONDS:
                raise ReplayfilterError(
                    f"the batch in hand did not finish within {STOP_SECONDS:.0f} s after the signal to stop; "
                    "nothing is lost: the next start does it again"
                )
        if ending.error is not None:
            raise ending.error
        return self._signals.asked or not self._query.restart_requested

    def _may_pass(self, error: BaseException) -> bool:
        if self._signals.asked or isinstance(error, _FOR_GOOD) or not isinstance(error, ReplayfilterError):
            return False
        return self._waits(error) or self._tries < TRIES

    def _waits(self, error: BaseException | None) -> bool:
        return isinstance(error, BrokerError) and not self._once

    def _tell(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        self._tries += not self._waits(error)
        self._note(error, state.upcoming_sleep)

    def _note(self, error: BaseException | None, seconds: float = 0.0) -> None:
        self._status.enter(Phase.RETRYING, time.time(), str(error))
        self._warn(f"{error}; started again in {seconds:.0f} s")

    def _pause(self, seconds: float) -> None:
        """Sleep, but wake up for a signal."""
        until = time.monotonic() + seconds
        while not self._signals.asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(POLL_SECONDS, left))


class _Ending(threading.Thread):
    """Waits for the end in a thread of its own, so that the main one can take signals and act on them."""

    def __init__(self, query: Query) -> None:
        super().__init__(name="await-end", daemon=True)
        self.error: BaseException | None = None
        self._query = query

    def run(self) -> None:
        try:
            self._query.await_end()
        except BaseException as error:
            self.error = error
