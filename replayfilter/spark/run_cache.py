"""A host's cache of runs: files that its workers share and map into memory.

Spark's state has all runs; the cache only makes reading them fast. A file is named by the hash of its
content, so it is right for any service, whichever worker wrote it. A checksum at its end detects a file that
a crash has damaged. Files are written under another name and then renamed, so none is ever seen half written.

What a worker maps is bounded:

- When the folder grows above its limit, the least recently used files are removed.
- A removed file takes memory and disk until no worker maps it. So each worker regularly unmaps what has been
  removed: after each 1/64 of the limit that it maps, and every few seconds while it has nothing to do.
- A worker maps no more bytes than the folder may have. A mapping keeps no file descriptor.
- Without descriptors or memory there is no mapping: the run is then read from Spark's state.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from weakref import ref

import pyarrow as pa
import xxhash

from replayfilter.core.key_run import BLOOM_LAYOUT

MAPPED_FILES = 4_096  # per worker; the system allows 65,530 mappings per process
SWEEPS = 16  # a worker sweeps the folder each time that it has written 1/16 of the limit
RELEASES = 64  # a worker unmaps removed files each time that it has mapped 1/64 of the limit
RELEASE_SECONDS = 5.0
_CHECKSUM_BYTES = 16
_TARGET = 0.8  # a sweep removes files until this part of the limit is left


class RunCache:
    """Runs in the folder ``replayfilter-<user id>`` of ``parent``, at most ``limit`` bytes of them.

    Several processes may use the same folder. Only one thread may call the methods.
    """

    def __init__(self, parent: Path, limit: int) -> None:
        self.folder = _own_folder(parent)
        self._limit = limit
        self._written = limit  # so that the first write sweeps the folder
        self._mapped_since_release = 0
        self._mapped: OrderedDict[str, memoryview] = OrderedDict()
        self._mapped_bytes = 0
        self._lock = threading.Lock()  # the thread that releases may run between two calls

    def get(self, name: str) -> memoryview | None:
        """The run that was put under ``name``, or None if it is not there any more."""
        with self._lock:
            if name in self._mapped:
                self._mapped.move_to_end(name)
                return self._mapped[name]
        path = self._path(name)
        try:
            with pa.memory_map(str(path)) as file:  # closing it closes the descriptor, not the mapping
                mapped = memoryview(file.read_buffer()).cast("B")
        except (OSError, pa.ArrowException):  # not there, or no descriptors or memory left
            return None
        data, checksum = mapped[:-_CHECKSUM_BYTES], mapped[-_CHECKSUM_BYTES:]
        if xxhash.xxh3_128_digest(data) != checksum:
            path.unlink(missing_ok=True)
            return None
        with suppress(OSError):
            os.utime(path)  # its age for the sweep
        self._keep(name, data)
        return data

    def put(self, name: str, data: bytes) -> None:
        """Keep ``data`` under ``name``, unless the disk is full."""
        path = self._path(name)
        if path.exists():  # the same content; replacing it would leave other workers a removed file
            return
        with suppress(OSError):
            handle, temporary = tempfile.mkstemp(dir=self.folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.write(xxhash.xxh3_128_digest(data))
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
            self._written += len(data)
            if self._written >= self._limit / SWEEPS:
                self._written = 0
                self._sweep()

    def drop(self, name: str) -> None:
        """Forget a run."""
        with self._lock:
            self._unmap(name)
        self._path(name).unlink(missing_ok=True)

    def release_removed(self) -> None:
        """Unmap the files that have been removed from the folder, by whichever worker."""
        self._mapped_since_release = 0
        with suppress(OSError):
            there = set(os.listdir(self.folder))
            with self._lock:
                for name in [name for name in self._mapped if self._path(name).name not in there]:
                    self._unmap(name)

    def release_while_idle(self) -> None:
        """Start a thread that calls :meth:`release_removed` every few seconds, as long as the cache lives."""
        threading.Thread(target=_release, args=(ref(self),), name="release-runs", daemon=True).start()

    def _path(self, name: str) -> Path:
        """The file of a run. Another version with another Bloom filter doesn't find it under its name."""
        return self.folder / f"{BLOOM_LAYOUT}-{name}"

    def _keep(self, name: str, data: memoryview) -> None:
        with self._lock:
            self._unmap(name)
            self._mapped[name] = data
            self._mapped_bytes += len(data)
            while len(self._mapped) > 1 and (
                len(self._mapped) > MAPPED_FILES or self._mapped_bytes > self._limit
            ):
                self._unmap(next(iter(self._mapped)))
        self._mapped_since_release += len(data)
        if self._mapped_since_release > self._limit / RELEASES:
            self.release_removed()

    def _unmap(self, name: str) -> None:
        data = self._mapped.pop(name, None)
        if data is not None:
            self._mapped_bytes -= len(data)

    def _sweep(self) -> None:
        """Remove the least recently used files if there is too much."""
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


def _release(cache: ref[RunCache]) -> None:
    idle = threading.Event()  # never set
    while not idle.wait(RELEASE_SECONDS):
        alive = cache()
        if alive is None:
            return
        alive.release_removed()
        del alive


def _own_folder(parent: Path) -> Path:
    """A folder that no other user can write to, since its files decide routes."""
    folder = parent / f"replayfilter-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o77 or not folder.is_dir() or folder.is_symlink():
        return Path(tempfile.mkdtemp(prefix="replayfilter-", dir=parent))
    return folder
