"""The keeper: one thread that owns table and store, takes the lease, and commits what clients say in groups.

Readers see only what is on disk: a snapshot is published after each commit, so what anybody was told still
holds after kill -9. A server that lost the lease, or can't be sure to have it, answers no reads either.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replayfilter.watermark.roster_file import read_roster
from replayfilter.watermark.server_config import ServerConfig
from replayfilter.watermark.store import Fenced, Store
from replayfilter.watermark.table import Refused, Table, View

log = logging.getLogger("replayfilter.watermark")

WAITING_JOBS = 10_000  # all that wait go into one commit: the slower the disk, the larger the group
BEATS = 6  # in the time of a lease
TICK_US = 1_000_000  # how often roster files are looked at
HISTORY_US = 5_000_000  # between points of the history

Job = Callable[[Table, int], Any]
_Waiting = tuple[Job, "asyncio.Future[Any]"]


class Keeper:
    """Start it within a running event loop; ``do`` changes the table, ``view`` reads it.

    ``role`` is "active" or "standby", ``faults`` what is wrong with the store or the roster files.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.epoch = 0
        self.faults: list[str] = []
        self._store = Store(config.server.store)
        self._lease_s = config.server.lease / 1e6
        self._owner = f"process {os.getpid()} on {socket.gethostname()}"
        self._jobs: queue.Queue[_Waiting] = queue.Queue(WAITING_JOBS)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        self._view: View | None = None
        self._sure_until = 0.0  # by the monotonic clock: until then nobody else can have taken over
        self._loop: asyncio.AbstractEventLoop | None = None
        self._moved = asyncio.Event()
        self._files: dict[str, tuple[int, int, int]] = {}
        self._next_tick = self._next_history = 0

    # ---- for the event loop ----------------------------------------------------------------------

    def start(self) -> None:
        """Begin, as a standby until the lease is taken."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End properly: what was taken in is committed, and the next server may begin at once."""
        self._stopping.set()
        await asyncio.to_thread(self._thread.join, 10)
        if not self._thread.is_alive():
            self._store.close()

    @property
    def role(self) -> str:
        """ "active" while this server is surely the only one that writes."""
        return "active" if self._view is not None and time.monotonic() < self._sure_until else "standby"

    @property
    def alive(self) -> bool:
        """Whether the keeper works at all."""
        return self._thread.is_alive()

    def view(self) -> View:
        """The table as it is on disk; Refused (503) on a standby."""
        view = self._view
        if view is None or time.monotonic() >= self._sure_until:
            raise _standing_by()
        return view

    async def do(self, job: Job) -> Any:
        """Run ``job(table, now)``; the answer comes when what it did is on disk. Refused if it can't."""
        self.view()
        assert self._loop is not None
        answer: asyncio.Future[Any] = self._loop.create_future()
        try:
            self._jobs.put_nowait((job, answer))
        except queue.Full:
            remedy = "report again later, with what is the latest then"
            raise Refused(503, "too much is waiting for the disk", "server", WAITING_JOBS, remedy) from None
        return await answer

    async def until(self, true_of: Callable[[View], bool], seconds: float) -> View:
        """Wait until something is true of the table, or the time is over; the table then."""
        deadline = time.monotonic() + seconds
        while True:
            moved = self._moved  # before the look, so that no move is missed
            view = self.view()
            left = deadline - time.monotonic()
            if true_of(view) or left <= 0:
                return view
            try:
                await asyncio.wait_for(moved.wait(), min(left, self._lease_s))
            except TimeoutError:
                continue

    # ---- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._take_lease():
                    self._lead()
            except Fenced:
                log.warning("another server has taken the store over; standing by")
                self.faults = []
            except sqlite3.Error as error:
                log.error("server.store = %s: %s", self._store.path, error)
                self.faults = [
                    f"server.store = {self._store.path}: {error}; free disk space, check its rights"
                ]
                self._stopping.wait(self._lease_s / BEATS)
            except Exception as error:  # a fault of ours in one job must not end the service of all others
                log.exception("the table is read again from the store")
                self.faults = [f"{type(error).__name__}: {error}; not foreseen: please report it"]
            finally:
                self._view = None
                self._refuse_waiting()

    def _take_lease(self) -> bool:
        """Wait until nobody else lives, then become the one who writes."""
        seen, since = self._store.lease(), time.monotonic()
        while not self._stopping.is_set():
            free = not seen.owner or (seen.epoch == self._store.epoch != 0)
            if free or time.monotonic() - since >= self._lease_s:
                asked = time.monotonic()
                if self._store.take(seen, self._owner):
                    self._sure_until = asked + self._lease_s
                    return True
            self._stopping.wait(self._lease_s / BEATS)
            if (now := self._store.lease()) != seen:
                seen, since = now, time.monotonic()
        return False

    def _lead(self) -> None:
        self.epoch = self._store.epoch
        table = self._load()
        log.info("active with epoch %d", self.epoch)
        self._files, self._next_tick, self._next_history = {}, 0, 0
        self._commit(table, [])
        while not self._stopping.is_set():
            self._commit(table, self._gather())
        while left := self._gather(wait=False):
            self._commit(table, left)
        self._store.release()

    def _load(self) -> Table:
        stages = self.config.stages
        stored = {name: self._store.load(name) for name in stages}
        table = Table(
            stages, {name: found.lows for name, found in stored.items()}, self.config.server.max_origins
        )
        for name, found in stored.items():
            row = table.rows[name]
            row.load(found.origins, found.partitions)
            row.roster.low = found.lows.input
            row.moved_us = found.moved_us
            if isinstance(row.config.roster, list):
                row.declare(row.config.roster)
        return table

    def _gather(self, wait: bool = True) -> list[_Waiting]:
        jobs: list[_Waiting] = []
        try:
            jobs.append(self._jobs.get(wait, self._lease_s / BEATS if wait else None))
            while len(jobs) < WAITING_JOBS:
                jobs.append(self._jobs.get_nowait())
        except queue.Empty:
            pass
        return jobs

    def _commit(self, table: Table, jobs: list[_Waiting]) -> None:
        """Do the jobs, write what they changed, publish it, and only then answer."""
        asked, now_us = time.monotonic(), time.time_ns() // 1_000
        answers: list[Any] = []
        try:
            with self._store.transaction():
                for job, _ in jobs:
                    try:
                        answers.append(job(table, now_us))
                    except Refused as refused:
                        answers.append(refused)
                if now_us >= self._next_tick:
                    self._next_tick = now_us + TICK_US
                    self._read_rosters(table)
                table.settle(now_us)
                self._store.write(table.changes())
                if now_us >= self._next_history:
                    self._next_history = now_us + HISTORY_US
                    points = {name: (table.stages.lows[name], table.fronts[name]) for name in table.rows}
                    self._store.add_history(now_us, points, self.config.server.history)
        except BaseException:
            for _, answer in jobs:
                self._call(_settle, answer, _standing_by())
            raise
        self._sure_until = asked + self._lease_s
        before, self._view = self._view, table.view(now_us)
        moved = before is None or any(
            before.stages[name].lows != stage.lows for name, stage in self._view.stages.items()
        )
        self._call(self._answer, jobs, answers, moved)

    def _read_rosters(self, table: Table) -> None:
        """Take up roster files that changed; one that can't be read leaves the roster as it is."""
        for name, row in table.rows.items():
            if not isinstance(row.config.roster, str):
                continue
            path, faults = Path(row.config.roster), row.faults
            try:
                found = path.stat()
                mark = (found.st_mtime_ns, found.st_size, found.st_ino)
                if self._files.get(name) == mark:
                    continue
                self._files[name] = mark
                origins = read_roster(path)
                new = sum(origin not in row.roster for origin in origins)
                table.check_room(new, str(path))
                added, removed = row.declare(origins)
                log.info("%s: %d origins, %d added, %d removed", path, len(row.roster), added, removed)
                row.faults = ()
            except OSError as error:
                self._files.pop(name, None)
                row.faults = (f"{path}: can't be read ({error.strerror}); the roster stays as it was",)
            except (ValueError, Refused) as error:
                row.faults = (f"{error}; the roster stays as it was",)
            if row.faults != faults:
                row.stale_view = True
                for fault in row.faults:
                    log.error("%s", fault)

    # ---- from the thread to the loop -------------------------------------------------------------

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _answer(self, jobs: list[_Waiting], answers: list[Any], moved: bool) -> None:
        for (_, future), answer in zip(jobs, answers, strict=True):
            _settle(future, answer)
        if moved:
            waiting, self._moved = self._moved, asyncio.Event()
            waiting.set()

    def _refuse_waiting(self) -> None:
        for _, answer in self._gather(wait=False):
            self._call(_settle, answer, _standing_by())


def _settle(future: asyncio.Future[Any], answer: Any) -> None:
    if future.done():  # its client has gone
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _standing_by() -> Refused:
    remedy = "ask the other one, or ask again: this one takes over when the other ends"
    return Refused(503, "another server of this store is the active one", "server", "standby", remedy)
