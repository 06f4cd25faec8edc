"""Running the query until it ends, fails for good or is asked to stop.

A failed query is started again from its checkpoint: after one second, then two, four, and up to 30. While no
broker answers or a disk is full, this goes on without a limit. Any other error is retried up to :data:`TRIES`
times; a finished batch resets the count. An error that a retry can't fix (config, checkpoint, lost data, too
many sources, another service of this name) ends the service at once.

On the first SIGTERM or SIGINT the current batch may finish, but for no longer than :data:`STOP_SECONDS`. A
second signal ends the process at once. Neither loses anything: the next start repeats what was not committed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Protocol, Self

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential

from replayfilter.errors import (
    BrokerError,
    CheckpointError,
    ConfigError,
    DiskFull,
    MissingDependency,
    ReplayfilterError,
    ServiceReplaced,
    SparkLost,
    StampError,
)
from replayfilter.service.monitor.status import Phase, Status

POLL_SECONDS = 0.1
TRIES = 5
STOP_SECONDS = 60.0
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0
_PERMANENT = (ConfigError, CheckpointError, MissingDependency, ServiceReplaced, SparkLost, StampError)


class Warn(Protocol):
    """Shows a warning; ``cause`` is the error behind it."""

    def __call__(self, text: str, cause: BaseException | None = None) -> None:
        """Show it."""


class Query(Protocol):
    """The part of :class:`replayfilter.spark.query.Service` that the supervisor uses.

    The main thread calls all of it except ``await_end``, which has a thread of its own.
    """

    def start(self, once: bool) -> None:
        """Start the query and return as soon as it runs. Raises a ReplayfilterError if that fails."""

    def await_end(self) -> None:
        """Block until the query has ended; raises the error that it failed with."""

    def stop_after_batch(self) -> None:
        """End the query after the current batch."""

    @property
    def last_response_at(self) -> float:
        """When Spark last answered, Unix seconds."""

    @property
    def restart_requested(self) -> bool:
        """Whether the query ended only to be started again, with other settings or smaller batches."""


class StopSignals:
    """Handles SIGTERM and SIGINT while it is used as a context manager.

    ``stop_requested`` is true once a signal has arrived. The handler only sets it: it may run in the middle
    of a call to the JVM, and no other call may begin there.
    """

    def __init__(self) -> None:
        self.stop_requested = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        self.install()
        return self

    def install(self) -> None:
        """Install the handlers. Called again after Spark has started, since Spark installs one for SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.signal(number, self._handle)
            self._before.setdefault(number, before)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as signal() returned it

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.stop_requested:
            os._exit(128 + number)  # without cleanup, which might wait for the batch that takes too long
        self.stop_requested = True
        os.write(2, b"stopping after the current batch; send the signal again to stop now\n")


class Supervisor:
    """Runs one query, restarts it if it fails, and keeps the status up to date.

    ``warn`` is called with each error that is followed by a retry.
    """

    def __init__(self, query: Query, signals: StopSignals, status: Status, warn: Warn) -> None:
        self._query, self._signals, self._status, self._warn = query, signals, status, warn
        self._once = self._ended = False
        self._tries = 0

    def run(self, once: bool) -> None:
        """Run until the query has ended, or has finished its batch after a signal.

        ``once``: end when all records that are there now are processed. An unreachable broker or a full disk
        then counts as a failed try, too. Raises the error that ended the query for good.
        """
        self._once = once
        try:
            while not (self._ended or self._signals.stop_requested):
                Retrying(
                    retry=retry_if_exception(self._is_retried),
                    wait=wait_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT),
                    sleep=self._pause,
                    before_sleep=self._count_and_warn,
                    reraise=True,
                )(self._attempt)
        except Exception as error:
            self._status.enter(Phase.FAILED, time.time(), str(error))
            raise
        self._status.enter(Phase.ENDED, time.time())

    def _attempt(self) -> None:
        """Run the query once. Returns if it ended as it should, or failed after at least one more batch."""
        if self._signals.stop_requested:
            return
        batches = self._status.batches
        try:
            self._ended = self._run_query()
        except Exception as error:
            if self._status.batches == batches:
                raise
            self._tries = 0
            if not self._is_retried(error):
                raise
            self._report_retry(error)

    def _run_query(self) -> bool:
        """Start the query and wait for its end. True if all is done, false if it is to be started again."""
        try:
            self._query.start(self._once)
        except KeyboardInterrupt:  # raised by Spark's own handler before ours is back; no batch has begun yet
            return True
        self._signals.install()
        self._status.enter(Phase.RUNNING, time.time())
        ending = _AwaitEnd(self._query)
        ending.start()
        stopping_since: float | None = None
        while ending.is_alive():
            ending.join(POLL_SECONDS)
            self._status.heartbeat(self._query.last_response_at)
            if self._signals.stop_requested and stopping_since is None and ending.is_alive():
                stopping_since = time.monotonic()
                self._status.enter(Phase.STOPPING, time.time())
                self._query.stop_after_batch()
            if stopping_since is not None and time.monotonic() - stopping_since > STOP_SECONDS:
                raise ReplayfilterError(
                    f"the current batch did not finish within {STOP_SECONDS:.0f} s after the signal to stop; "
                    "nothing is lost: the next start repeats it"
                )
        if ending.error is not None:
            raise ending.error
        return self._signals.stop_requested or not self._query.restart_requested

    def _is_retried(self, error: BaseException) -> bool:
        if self._signals.stop_requested or isinstance(error, _PERMANENT):
            return False
        if not isinstance(error, ReplayfilterError):
            return False
        return self._waits(error) or self._tries < TRIES

    def _waits(self, error: BaseException | None) -> bool:
        """Whether to wait for a broker, or for room on a disk: another process would have to wait, too."""
        return isinstance(error, (BrokerError, DiskFull)) and not self._once

    def _count_and_warn(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        self._tries += not self._waits(error)
        self._report_retry(error, state.upcoming_sleep)

    def _report_retry(self, error: BaseException | None, seconds: float = 0.0) -> None:
        self._status.enter(Phase.RETRYING, time.time(), str(error))
        self._warn(f"{error}; starting again in {seconds:.0f} s", error)

    def _pause(self, seconds: float) -> None:
        """Sleep, but return early on a signal."""
        until = time.monotonic() + seconds
        while not self._signals.stop_requested and (left := until - time.monotonic()) > 0:
            time.sleep(min(POLL_SECONDS, left))


class _AwaitEnd(threading.Thread):
    """Waits for the end of the query, so that the main thread is free to handle signals."""

    def __init__(self, query: Query) -> None:
        super().__init__(name="await-end", daemon=True)
        self.error: BaseException | None = None
        self._query = query

    def run(self) -> None:
        try:
            self._query.await_end()
        except BaseException as error:
            self.error = error
