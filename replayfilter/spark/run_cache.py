"""A host's cache of runs of digests: files by content name, mapped into memory, shared by its workers.

The truth is in Spark's state; what is here is only at hand. Names are hashes of content, so a file is
right whoever wrote it, for whatever service; a checksum at its end tells one that a crash has spoiled.
Files appear whole, by renaming. Those used least recently go when the folder grows above its limit.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import xxhash

MAPPED_FILES = 4_096  # at a time in one worker; a mapping is only an address range
SWEEPS = 16  # the folder is looked over each time that a worker has written this part of the limit
_CHECKSUM = 16  # bytes
_TARGET = 0.8  # of the limit is left by a sweep


class RunCache:
    """Runs in the folder ``replayfilter-<user id>`` of ``parent``, ``limit`` bytes of them at most.

    Several processes may have one on the same folder.
    """

    def __init__(self, parent: Path, limit: int) -> None:
        self.folder = _own_folder(parent)
        self._limit = limit
        self._written = limit  # so that the first write looks the folder over
        self._mapped: OrderedDict[str, memoryview] = OrderedDict()

    def get(self, name: str) -> memoryview | None:
        """What was put under ``name``, if it is still there."""
        if name in self._mapped:
            self._mapped.move_to_end(name)
            return self._mapped[name]
        path = self.folder / name
        try:
            with path.open("rb") as file:
                mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (FileNotFoundError, ValueError):  # ValueError: empty
            return None
        data, checksum = mapped[:-_CHECKSUM], mapped[-_CHECKSUM:]
        if xxhash.xxh3_128_digest(data) != checksum:
            path.unlink(missing_ok=True)
            return None
        with suppress(FileNotFoundError):
            os.utime(path)  # its age for the sweep
        self._mapped[name] = data
        if len(self._mapped) > MAPPED_FILES:
            self._mapped.popitem(last=False)
        return data

    def put(self, name: str, data: bytes) -> None:
        """Keep ``data`` under ``name``; if there is no room on the disk then not."""
        with suppress(OSError):
            handle, temporary = tempfile.mkstemp(dir=self.folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.write(xxhash.xxh3_128_digest(data))
                os.replace(temporary, self.folder / name)
            except BaseException:
                os.unlink(temporary)
                raise
            self._written += len(data)
            if self._written >= self._limit / SWEEPS:
                self._written = 0
                self._sweep()

    def drop(self, name: str) -> None:
        """Forget a run."""
        self._mapped.pop(name, None)
        (self.folder / name).unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove the files used least recently until the rest fits well; mapped ones stay readable."""
        files = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found = entry.stat()
                    files.append((found.st_mtime_ns, found.st_size, entry.path))
        excess = sum(size for _, size, _ in files) - self._limit
        if excess <= 0:
            return
        excess += int(self._limit * (1 - _TARGET))
        for _, size, path in sorted(files):
            if excess <= 0:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)
            excess -= size


def _own_folder(parent: Path) -> Path:
    """A folder that nobody else can write to: what lies there decides routes."""
    folder = parent / f"replayfilter-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o77 or not folder.is_dir() or folder.is_symlink():
        return Path(tempfile.mkdtemp(prefix="replayfilter-", dir=parent))
    return folder
