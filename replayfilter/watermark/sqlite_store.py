"""The table on disk: an SQLite file that one server at a time may write.

Each transaction first checks that the epoch is still the server's own. A server that was paused and wakes up
after another one took over can therefore not write any more.

SQLite uses a write-ahead log and syncs it at every commit, so an acknowledged report survives a crash of the
machine too. Reports are committed in groups, so there is one sync per group.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.watermark.stages import Lows
from replayfilter.errors import WatermarkError
from replayfilter.watermark.snapshots import PartitionReport
from replayfilter.watermark.stage_row import StoredOrigin
from replayfilter.watermark.store import FencedError, HistoryPoint, Lease, StoredStage, thin_out
from replayfilter.watermark.table import Changes

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
# One statement for all rows: SQLite runs it without Python's global lock, so reads go on meanwhile.
_UPSERT_ORIGINS = """
INSERT INTO origin
SELECT ?1, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM json_each(?2)
WHERE true ON CONFLICT (stage, name) DO UPDATE SET progress = excluded.progress,
    since_us = excluded.since_us, idle = excluded.idle, place = excluded.place,
    declared_by = excluded.declared_by
"""


class SqliteStore:
    """The store in a file; see store.py. Raises WatermarkError if it can't be opened."""

    remedy = "check free disk space and the file's permissions"
    failures: tuple[type[Exception], ...] = (sqlite3.Error,)

    def __init__(self, path: str | Path) -> None:
        self.name = f"server.store = {path}"
        self._path = path
        self.epoch = 0
        try:
            self._db = self._connect()
            mode = self._db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            self._db.execute("PRAGMA synchronous = FULL")
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        except sqlite3.Error as error:
            remedy = "use a file in an existing folder on a local disk, which this user may write"
            raise WatermarkError(f"server.store = {path}: can't be opened ({error}); {remedy}") from None
        if mode != "wal" or version not in (0, VERSION):
            remedy = "use another file, or the version of replayfilter that wrote this one"
            raise WatermarkError(
                f"server.store = {path}: has version {version}, this program needs {VERSION}; {remedy}"
            )

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=5, isolation_level=None, check_same_thread=False)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # ---- the lease -------------------------------------------------------------------------------

    def lease(self) -> Lease:
        """The present lease."""
        return Lease(*self._db.execute("SELECT epoch, beat, owner FROM lease").fetchone())

    def take_lease(self, seen: Lease, owner: str) -> bool:
        """Take the lease, if it is still as it was when ``seen`` was read."""
        with self._immediate():
            if self.lease() != seen:
                return False
            self._db.execute("UPDATE lease SET epoch = epoch + 1, beat = 0, owner = ?", (owner,))
        self.epoch = seen.epoch + 1
        return True

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction with a heartbeat. Raises FencedError if this server no longer has the lease."""
        with self._immediate():
            updated = self._db.execute("UPDATE lease SET beat = beat + 1 WHERE epoch = ?", (self.epoch,))
            if updated.rowcount == 0:
                raise FencedError
            yield

    def release_lease(self) -> None:
        """Give the lease up, so that the next server can take it at once."""
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

    def load(self, stage: str) -> StoredStage:
        """A stage as it was stored; empty if it is new."""
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
        return StoredStage(
            lows,
            moved,
            [StoredOrigin(name, p, since, bool(idle), *rest) for name, p, since, idle, *rest in origins],
            {name: PartitionReport(*rest) for name, *rest in partitions},
        )

    def write(self, changes: Mapping[str, Changes]) -> None:
        """Write changes, within a transaction."""
        for stage, change in changes.items():
            self._db.execute(
                "INSERT OR REPLACE INTO stage VALUES (?, ?, ?, ?)",
                (stage, change.lows.input, change.lows.output, change.moved_us),
            )
            if change.removed:
                delete = "DELETE FROM origin WHERE stage = ? AND name IN (SELECT value FROM json_each(?))"
                self._db.execute(delete, (stage, json.dumps(change.removed)))
            if change.origins:
                rows = json.dumps(
                    [
                        (o.name, o.progress, o.since_us, int(o.idle), o.partition, o.declared_by)
                        for o in change.origins
                    ]
                )
                self._db.execute(_UPSERT_ORIGINS, (stage, rows))
            for name, part in change.partitions.items():
                if part is None:
                    self._db.execute("DELETE FROM partition WHERE stage = ? AND name = ?", (stage, name))
                    continue
                values = (part.low, part.oldest, part.backlog, part.session, part.sequence, part.reported_us)
                self._db.execute(
                    "INSERT OR REPLACE INTO partition VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (stage, name, *values)
                )

    # ---- the history -----------------------------------------------------------------------------

    def add_history(self, at_us: int, points: Mapping[str, tuple[Lows, int]], keep_us: int) -> None:
        """Add a point for each stage (lows, largest event time). Delete points older than ``keep_us``."""
        self._db.executemany(
            "INSERT OR REPLACE INTO history VALUES (?, ?, ?, ?, ?)",
            [(stage, at_us, lows.input, lows.output, time) for stage, (lows, time) in points.items()],
        )
        for stage in points:
            self._db.execute("DELETE FROM history WHERE stage = ? AND at_us < ?", (stage, at_us - keep_us))

    def history(self, stage: str, since_us: int, points: int) -> list[HistoryPoint]:
        """The history of a stage since a time, reduced to about ``points`` points."""
        with closing(self._connect()) as db:  # a connection of its own: the other one is the writer's
            rows = db.execute(
                "SELECT at_us, nullif(input_low, ?1), nullif(output_low, ?1), nullif(front, ?1) "
                "FROM history WHERE stage = ?2 AND at_us >= ?3 ORDER BY at_us",
                (UNKNOWN, stage, since_us),
            ).fetchall()
        return thin_out(rows, points)
