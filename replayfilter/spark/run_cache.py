"""A host's cache of runs: files that its workers share and map into memory.

Spark's state has all runs; the cache only makes reading them fast. A file is named by the hash of its
content, so it is right for any service, whichever worker wrote it. A checksum at its end detects a file that
a crash has damaged. Files are written under another name and then renamed, so none is ever seen half written.
When the folder grows above its limit, the least recently used files are removed.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import xxhash

MAPPED_FILES = 4_096  # per worker; a mapping is only an address range
SWEEPS = 16  # a worker sweeps the folder each time that it has written 1/16 of the limit
_CHECKSUM_BYTES = 16
_TARGET = 0.8  # a sweep removes files until this part of the limit is left


class RunCache:
    """Runs in the folder ``replayfilter-<user id>`` of ``parent``, at most ``limit`` bytes of them.

    Several processes may use the same folder.
    """

    def __init__(self, parent: Path, limit: int) -> None:
        self.folder = _own_folder(parent)
        self._limit = limit
        self._written = limit  # so that the first write sweeps the folder
        self._mapped: OrderedDict[str, memoryview] = OrderedDict()

    def get(self, name: str) -> memoryview | None:
        """The run that was put under ``name``, or None if it is not there any more."""
        if name in self._mapped:
            self._mapped.move_to_end(name)
            return self._mapped[name]
        path = self.folder / name
        try:
            with path.open("rb") as file:
                mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (FileNotFoundError, ValueError):  # ValueError: empty
            return None
        data, checksum = mapped[:-_CHECKSUM_BYTES], mapped[-_CHECKSUM_BYTES:]
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
        """Keep ``data`` under ``name``, unless the disk is full."""
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
        """Remove the least recently used files if there is too much; mapped ones can still be read."""
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
    """A folder that no other user can write to, since its files decide routes."""
    folder = parent / f"replayfilter-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o77 or not folder.is_dir() or folder.is_symlink():
        return Path(tempfile.mkdtemp(prefix="replayfilter-", dir=parent))
    return folder
