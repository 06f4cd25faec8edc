"""Temporary files of Spark on the driver's disk, removed when nothing needs them, also after kill -9."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

_PREFIX = "replayfilter-spark"


def take_folder() -> tuple[Path, int]:
    """A new folder for the JVM's temporary files, and the descriptor that locks it.

    The JVM must keep the descriptor open: the folder belongs to whoever does. Folders of this user whose
    owners have ended are removed.
    """
    _remove_abandoned()
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}-{os.getuid()}-"))
        descriptor = os.open(folder, os.O_RDONLY)
        if _lock(descriptor) and folder.exists():  # else another start has just removed it as abandoned
            return folder, descriptor
        os.close(descriptor)


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}-{os.getuid()}-*"):
        with suppress(OSError):  # not a folder, or gone
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.getuid() and _lock(descriptor):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class ShuffleFiles:
    """Removes the shuffle files of a query's finished batches.

    Spark itself waits until Java's garbage collector finds that nothing refers to a shuffle any more. In a
    back-fill that is so late that the files of all batches are kept: 350 MB for each 1.2 million records of
    200 bytes.
    """

    def __init__(self, session: SparkSession) -> None:
        self._context: Any = session.sparkContext._jsc.sc()
        self._first = self._bound = self.next_id()
        self._needed_until = -1

    def next_id(self) -> int:
        """A shuffle id above all that are in use; no shuffle gets it."""
        return int(self._context.newShuffleId())

    def finish(self, batch: int, bound: int) -> None:
        """All batches up to ``batch`` are finished; ``bound``: a ``next_id()`` from before this was read."""
        if batch < self._needed_until:
            return
        for shuffle in range(self._first, self._bound):
            self._context.cleaner().get().doCleanupShuffle(shuffle, False)
        # Shuffles below the new bound are of these batches, or of the next one: it may have begun before.
        self._first, self._bound, self._needed_until = self._bound, bound, batch + 1
