"""The table writer: one thread that owns the table and the store, holds the lease, and commits in groups.

Readers only see what is stored, because a snapshot is published after each commit. What a server has
answered therefore still holds after kill -9. A server that has lost the lease, or can't be sure to have it,
refuses reads too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from replayfilter.watermark.api import RequestError
from replayfilter.watermark.naming import NamingPoller, is_naming_service
from replayfilter.watermark.open_store import open_store
from replayfilter.watermark.roster_file import read_roster
from replayfilter.watermark.server_config import ServerConfig
from replayfilter.watermark.snapshots import Snapshot
from replayfilter.watermark.store import (
    HISTORY_INTERVAL_US,
    FencedError,
    HistoryPoint,
    StoredStage,
    stored_name,
)
from replayfilter.watermark.table import Table

log = logging.getLogger("replayfilter.watermark")

MAX_QUEUED = 10_000  # all queued changes go into one commit: the slower the disk, the larger the group
HEARTBEATS_PER_LEASE = 6
ROSTER_POLL_US = 1_000_000

_Value = TypeVar("_Value")
Change = Callable[[Table, int], Any]
_Queued = tuple[str, Change, "asyncio.Future[Any]"]  # the application, what to change, and the result


class TableWriter:
    """Start it within a running event loop. ``submit`` changes an application's table, ``snapshot`` reads it.

    ``errors``: present problems with the store. ``active_since_us``: when this server took the lease over,
    microseconds since the epoch.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.epoch = self.active_since_us = 0
        self.errors: list[str] = []
        self._store = open_store(config)
        self._lease_s = config.server.lease / 1e6
        self._owner = f"process {os.getpid()} on {socket.gethostname()}"
        self._queue: queue.Queue[_Queued] = queue.Queue(MAX_QUEUED)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="table-writer", daemon=True)
        self._snapshots: Mapping[str, Snapshot] | None = None
        self._lease_until = 0.0  # by the monotonic clock: no other server can take over before this
        self._loop: asyncio.AbstractEventLoop | None = None
        self._low_moved = asyncio.Event()
        stages = [stage for each in config.topologies.values() for stage in each.values()]
        rosters = [stage.roster for stage in stages if isinstance(stage.roster, str)]
        self._naming = NamingPoller(filter(is_naming_service, rosters))
        self._rosters_seen: dict[str, object] = {}  # by stored name, what says whether the roster has changed
        self._next_roster_poll = self._next_history = 0

    # ---- called in the event loop ----------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. It is a standby until it has the lease."""
        self._loop = asyncio.get_running_loop()
        self._naming.start()
        self._thread.start()

    async def stop(self) -> None:
        """Commit what is queued and give the lease up, so that the next server can start at once."""
        self._stopping.set()
        self._naming.stop()
        await asyncio.to_thread(self._thread.join, 10)
        if not self._thread.is_alive():
            self._store.close()

    @property
    def role(self) -> Literal["active", "standby"]:
        """Active as long as no other server can have the lease."""
        return "active" if self._snapshots is not None and time.monotonic() < self._lease_until else "standby"

    @property
    def is_running(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def snapshots(self) -> Mapping[str, Snapshot]:
        """The tables of all applications as they are stored; RequestError (503) on a standby."""
        snapshots = self._snapshots
        if snapshots is None or time.monotonic() >= self._lease_until:
            raise _standby_error()
        return snapshots

    def snapshot(self, app: str, where: str = "query app") -> Snapshot:
        """The table of an application; RequestError (503) on a standby, or (404) if there is no such app."""
        snapshots = self.snapshots()
        if app not in snapshots:
            remedy = f"the config declares {', '.join(sorted(snapshots)[:20])}"
            raise RequestError(404, "no such application", where, app, remedy)
        return snapshots[app]

    async def submit(self, app: str, change: Change, where: str = "query app") -> Any:
        """Run ``change(table, now_us)`` on an application's table, and return its result once it is stored.

        RequestError if ``change`` raises it, if there is no such application, if the server is a standby, or
        if too many changes are queued.
        """
        self.snapshot(app, where)
        assert self._loop is not None
        result: asyncio.Future[Any] = self._loop.create_future()
        try:
            self._queue.put_nowait((app, change, result))
        except queue.Full:
            remedy = "report again later, with the latest state"
            raise RequestError(503, "too many changes are queued", "server", MAX_QUEUED, remedy) from None
        return await result

    def history(self, app: str, stage: str, since_us: int, points: int) -> list[HistoryPoint]:
        """The history of a stage since a time, about ``points`` points. Any thread may call it."""
        return self._store.history(stored_name(app, stage), since_us, points)

    async def wait_until(self, app: str, condition: Callable[[Snapshot], bool], seconds: float) -> Snapshot:
        """Wait until ``condition`` is true of an application, or the time is over; the last snapshot."""
        deadline = time.monotonic() + seconds
        while True:
            low_moved = self._low_moved  # taken before the snapshot, so that no move is missed
            snapshot = self.snapshot(app)
            left = deadline - time.monotonic()
            if condition(snapshot) or left <= 0:
                return snapshot
            try:
                await asyncio.wait_for(low_moved.wait(), min(left, self._lease_s))
            except TimeoutError:
                continue

    # ---- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._wait_for_lease():
                    self._write_until_stopped()
            except FencedError:
                log.warning("another server has taken over the store; this one is a standby now")
                self.errors = []
            except self._store.failures as error:
                self.errors = [f"{self._store.name}: {error}; {self._store.remedy}"]
                log.error("%s", self.errors[0])
                self._stopping.wait(self._lease_s / HEARTBEATS_PER_LEASE)
            except Exception as error:  # a bug in one change must not end the service for all others
                log.exception("unexpected error; the table is read from the store again")
                self.errors = [f"{type(error).__name__}: {error}; unexpected: please report it"]
            finally:
                self._snapshots = None
                self._refuse_queued()

    def _wait_for_lease(self) -> bool:
        """Wait until no other server is alive, and take the lease; False if this server stops before."""
        seen, since = self._store.lease(), time.monotonic()
        while not self._stopping.is_set():
            free = not seen.owner or (seen.epoch == self._store.epoch != 0)
            if free or time.monotonic() - since >= self._lease_s:
                started = time.monotonic()
                if self._store.take_lease(seen, self._owner):
                    self._lease_until = started + self._lease_s
                    return True
            self._stopping.wait(self._lease_s / HEARTBEATS_PER_LEASE)
            if (now := self._store.lease()) != seen:
                seen, since = now, time.monotonic()
        return False

    def _write_until_stopped(self) -> None:
        self.epoch, self.active_since_us = self._store.epoch, time.time_ns() // 1_000
        tables = self._load()
        log.info("active with epoch %d", self.epoch)
        self._rosters_seen, self._next_roster_poll, self._next_history = {}, 0, 0
        self._commit(tables, [])
        while not self._stopping.is_set():
            self._commit(tables, self._take_queued())
        while left := self._take_queued(wait=False):
            self._commit(tables, left)
        self._store.release_lease()

    def _load(self) -> dict[str, Table]:
        tables: dict[str, Table] = {}
        for app, stages in self.config.topologies.items():
            stored = {name: self._store.load(stored_name(app, name)) for name in stages}
            lows = {name: stage.lows for name, stage in stored.items()}
            tables[app] = Table(stages, lows, self.config.server.max_origins, tables)
            self._restore(tables[app], stored)
        return tables

    @staticmethod
    def _restore(table: Table, stored: Mapping[str, StoredStage]) -> None:
        for name, stage in stored.items():
            row = table.rows[name]
            row.restore(stage.origins, stage.partitions)
            row.roster.low = stage.lows.input
            row.moved_us = stage.moved_us
            if isinstance(row.config.roster, list):
                row.declare(row.config.roster)

    def _take_queued(self, wait: bool = True) -> list[_Queued]:
        group: list[_Queued] = []
        try:
            group.append(self._queue.get(wait, self._lease_s / HEARTBEATS_PER_LEASE if wait else None))
            while len(group) < MAX_QUEUED:
                group.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        return group

    def _commit(self, tables: Mapping[str, Table], group: list[_Queued]) -> None:
        """Run the changes, write them, publish a snapshot, and only then return their results."""
        started, now_us = time.monotonic(), time.time_ns() // 1_000
        results: list[Any] = []
        try:
            with self._store.transaction():
                for app, change, _ in group:
                    try:
                        results.append(change(tables[app], now_us))
                    except RequestError as error:
                        results.append(error)
                if now_us >= self._next_roster_poll:
                    self._next_roster_poll = now_us + ROSTER_POLL_US
                    self._read_changed_rosters(tables)
                for table in tables.values():
                    table.settle(now_us)
                self._store.write(_all_stages(tables, Table.take_changes))
                if now_us >= self._next_history:
                    self._next_history = now_us + HISTORY_INTERVAL_US
                    points = _all_stages(tables, Table.history_points)
                    self._store.add_history(now_us, points, self.config.server.history)
        except BaseException:
            for _, _, future in group:
                self._call_in_loop(_resolve, future, _standby_error())
            raise
        self._lease_until = started + self._lease_s
        before = self._snapshots
        self._snapshots = {app: table.snapshot(now_us) for app, table in tables.items()}
        low_moved = before is None or any(
            before[app].stages[name].lows != stage.lows
            for app, snapshot in self._snapshots.items()
            for name, stage in snapshot.stages.items()
        )
        self._call_in_loop(self._return_results, group, results, low_moved)

    def _read_changed_rosters(self, tables: Mapping[str, Table]) -> None:
        """Apply rosters that changed. If one can't be used, the origins stay as they are."""
        rows = [(app, name, row) for app, table in tables.items() for name, row in table.rows.items()]
        for app, name, row in rows:
            if not isinstance(row.config.roster, str):
                continue
            before = row.errors
            try:
                origins = self._changed_roster(stored_name(app, name), row.config.roster)
                if origins is not None:
                    row.errors = ()
                    tables[app].check_max_origins(
                        sum(origin not in row.roster for origin in origins), row.config.roster
                    )
                    added, removed = row.declare(origins)
                    total = len(row.roster)
                    log.info("%s: %d origins, %d added, %d removed", row.config.roster, total, added, removed)
            except (ValueError, RequestError) as error:
                row.errors = (f"{error}; the roster was not changed",)
            if row.errors != before:
                row.changed = True
                for each in row.errors:
                    log.error("%s", each)

    def _changed_roster(self, stage: str, roster: str) -> list[str] | None:
        """The origins in a roster, None if it has not changed; ValueError if it can't be used."""
        if is_naming_service(roster):
            answer = self._naming.answers.get(roster)
            if answer is None or self._rosters_seen.get(stage) == answer.number:
                return None
            self._rosters_seen[stage] = answer.number
            if answer.error is not None:
                raise ValueError(answer.error)
            return answer.origins
        try:
            stat = Path(roster).stat()
        except OSError as error:
            self._rosters_seen.pop(stage, None)
            raise ValueError(f"{roster}: can't be read ({error.strerror})") from None
        identity = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if self._rosters_seen.get(stage) == identity:
            return None
        self._rosters_seen[stage] = identity
        return read_roster(Path(roster))

    # ---- from the thread to the event loop -------------------------------------------------------

    def _call_in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _return_results(self, group: list[_Queued], results: list[Any], low_moved: bool) -> None:
        for (_, _, future), result in zip(group, results, strict=True):
            _resolve(future, result)
        if low_moved:
            waiting, self._low_moved = self._low_moved, asyncio.Event()
            waiting.set()

    def _refuse_queued(self) -> None:
        for _, _, future in self._take_queued(wait=False):
            self._call_in_loop(_resolve, future, _standby_error())


def _all_stages(
    tables: Mapping[str, Table], of: Callable[[Table], Mapping[str, _Value]]
) -> dict[str, _Value]:
    """What ``of`` gives for each stage of each application, by stored name."""
    return {
        stored_name(app, stage): value for app, table in tables.items() for stage, value in of(table).items()
    }


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():  # its client has disconnected
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def _standby_error() -> RequestError:
    remedy = "send the request to the active server, or again later: this one takes over if the other stops"
    return RequestError(503, "another server of this store is the active one", "server", "standby", remedy)
