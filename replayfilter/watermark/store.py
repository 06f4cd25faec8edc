"""The table on disk: one SQLite file, which one server at a time may write.

Who may is fenced by an epoch: a server takes the lease by raising it, and each transaction looks first
whether it is still its own. So a server that was taken for dead, and wakes up, can't write any more.
Whether another one lives is told by its heartbeat alone: no clock is compared with another's.

SQLite writes ahead (WAL) and syncs at every commit: an acknowledged report survives the machine's end, not
only the process's. Reports are committed in groups, so the cost is per group.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from replayfilter.core.clock.expiry import UNKNOWN
from replayfilter.core.watermark.stages import Lows
from replayfilter.errors import WatermarkError
from replayfilter.watermark.table import Changes, OriginRow, Partition

VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS lease (
    one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL, beat INTEGER NOT NULL,
    owner TEXT NOT NULL
);
INSERT OR IGNORE INTO lease VALUES (1, 0, 0, '');
CREATE TABLE IF NOT EXISTS stage (
    name TEXT PRIMARY KEY, input_low INTEGER NOT NULL, output_low INTEGER NOT NULL, moved_us INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS origin (
    stage TEXT, name TEXT, progress INTEGER NOT NULL, since_us INTEGER NOT NULL, idle INTEGER NOT NULL,
    place TEXT, declared_by TEXT NOT NULL, PRIMARY KEY (stage, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS partition (
    stage TEXT, name TEXT, low INTEGER, oldest INTEGER, backlog INTEGER, session INTEGER NOT NULL,
    sequence INTEGER NOT NULL, reported_us INTEGER NOT NULL, PRIMARY KEY (stage, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS history (
    stage TEXT, at_us INTEGER, input_low INTEGER NOT NULL, output_low INTEGER NOT NULL,
    front INTEGER NOT NULL,
    PRIMARY KEY (stage, at_us)
) WITHOUT ROWID;
"""
# One statement for all rows: SQLite runs it without Python's lock, so reads are answered meanwhile.
_PUT_ORIGINS = """
INSERT INTO origin
SELECT ?1, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM json_each(?2)
WHERE true ON CONFLICT (stage, name) DO UPDATE SET progress = excluded.progress,
    since_us = excluded.since_us, idle = excluded.idle, place = excluded.place,
    declared_by = excluded.declared_by
"""


class Fenced(Exception):
    """Another server has taken the store over."""


class Lease(NamedTuple):
    """Who writes: ``beat`` goes up while the owner lives; ``owner`` is empty once it has ended properly."""

    epoch: int
    beat: int
    owner: str


class Stored(NamedTuple):
    """What the store holds of one stage."""

    lows: Lows
    moved_us: int | None
    origins: list[OriginRow]
    partitions: dict[str, Partition]


class Store:
    """The file. Used by one thread at a time. Raises WatermarkError if it can't be opened."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.epoch = 0
        try:
            self._db = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
            mode = self._db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            self._db.execute("PRAGMA synchronous = FULL")
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        except sqlite3.Error as error:
            remedy = (
                "name a file that this user may write, on a disk of this machine, in a folder that exists"
            )
            raise WatermarkError(f"server.store = {path}: can't be opened ({error}); {remedy}") from None
        if mode != "wal" or version not in (0, VERSION):
            remedy = "use another file, or the version of replayfilter that wrote it"
            raise WatermarkError(
                f"server.store = {path}: has version {version}, this program {VERSION}; {remedy}"
            )

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # ---- the lease -------------------------------------------------------------------------------

    def lease(self) -> Lease:
        """Who writes now."""
        return Lease(*self._db.execute("SELECT epoch, beat, owner FROM lease").fetchone())

    def take(self, seen: Lease, owner: str) -> bool:
        """Become the one who writes, if nothing has happened since ``seen`` was read."""
        with self._immediate():
            if self.lease() != seen:
                return False
            self._db.execute("UPDATE lease SET epoch = epoch + 1, beat = 0, owner = ?", (owner,))
        self.epoch = seen.epoch + 1
        return True

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is written within it, or nothing, and a heartbeat; Fenced if another is the owner."""
        with self._immediate():
            changed = self._db.execute("UPDATE lease SET beat = beat + 1 WHERE epoch = ?", (self.epoch,))
            if changed.rowcount == 0:
                raise Fenced
            yield

    def release(self) -> None:
        """Let the next server begin at once."""
        with self._immediate():
            self._db.execute("UPDATE lease SET owner = '' WHERE epoch = ?", (self.epoch,))

    @contextmanager
    def _immediate(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # ---- the table -------------------------------------------------------------------------------

    def load(self, stage: str) -> Stored:
        """What is known of a stage; empty if nothing is."""
        row = self._db.execute(
            "SELECT input_low, output_low, moved_us FROM stage WHERE name = ?", (stage,)
        ).fetchone()
        lows, moved = (Lows(row[0], row[1]), row[2]) if row else (Lows(), None)
        origins = self._db.execute(
            "SELECT name, progress, since_us, idle, place, declared_by FROM origin WHERE stage = ?", (stage,)
        )
        partitions = self._db.execute(
            "SELECT name, low, oldest, backlog, session, sequence, reported_us FROM partition "
            "WHERE stage = ?",
            (stage,),
        )
        return Stored(
            lows,
            moved,
            [OriginRow(name, p, since, bool(idle), *rest) for name, p, since, idle, *rest in origins],
            {name: Partition(*rest) for name, *rest in partitions},
        )

    def write(self, changes: Mapping[str, Changes]) -> None:
        """Write what changed; within a transaction."""
        for stage, change in changes.items():
            self._db.execute(
                "INSERT OR REPLACE INTO stage VALUES (?, ?, ?, ?)",
                (stage, change.lows.input, change.lows.output, change.moved_us),
            )
            if change.removed:
                gone = "DELETE FROM origin WHERE stage = ? AND name IN (SELECT value FROM json_each(?))"
                self._db.execute(gone, (stage, json.dumps(change.removed)))
            if change.origins:
                rows = json.dumps(
                    [
                        (o.name, o.progress, o.since_us, int(o.idle), o.place, o.declared_by)
                        for o in change.origins
                    ]
                )
                self._db.execute(_PUT_ORIGINS, (stage, rows))
            for name, part in change.partitions.items():
                if part is None:
                    self._db.execute("DELETE FROM partition WHERE stage = ? AND name = ?", (stage, name))
                    continue
                values = (part.low, part.oldest, part.backlog, part.session, part.sequence, part.reported_us)
                self._db.execute(
                    "INSERT OR REPLACE INTO partition VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (stage, name, *values)
                )

    # ---- the past --------------------------------------------------------------------------------

    def add_history(self, at_us: int, points: Mapping[str, tuple[Lows, int]], keep_us: int) -> None:
        """Add a point for each stage, its lows and largest time; drop those older than ``keep_us``."""
        self._db.executemany(
            "INSERT OR REPLACE INTO history VALUES (?, ?, ?, ?, ?)",
            [(stage, at_us, lows.input, lows.output, front) for stage, (lows, front) in points.items()],
        )
        for stage in points:
            self._db.execute("DELETE FROM history WHERE stage = ? AND at_us < ?", (stage, at_us - keep_us))

    def history(
        self, stage: str, since_us: int, points: int
    ) -> list[tuple[int, int | None, int | None, int | None]]:
        """(at, input low, output low, front) since a time, thinned out to about ``points``."""
        rows = self._db.execute(
            "SELECT at_us, nullif(input_low, ?1), nullif(output_low, ?1), nullif(front, ?1) "
            "FROM history WHERE stage = ?2 AND at_us >= ?3 ORDER BY at_us",
            (UNKNOWN, stage, since_us),
        ).fetchall()
        step = max(1, len(rows) // points)
        return rows[::-1][::step][::-1]  # the newest is always among them
