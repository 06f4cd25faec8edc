"""The size of the state in bytes: in the workers' memory, and on disk, where Spark keeps several versions.

A version of a shard is a snapshot (``7_<id>.zip``, which names tables in ``SSTs/``) and the changelogs after
it. Spark may delete files during a measurement; a file that no longer exists counts as 0 bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from replayfilter.service.monitor.poller import Poller

LOCATIONS = {"memory": "in memory", "disk": "on disk", "disk_all": "on disk, with old versions"}
EVERY_SECONDS = 15.0  # the usual scrape interval; measuring a few hundred files takes milliseconds
_NAMED = re.compile(r"(\d+)(?:_[0-9a-f-]+)?\.(zip|changelog)")


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes on disk: of the ``latest`` version, which a restart reads, and of ``all`` versions kept."""

    latest: int
    all: int

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes by the keys of :data:`LOCATIONS`."""
        return {"disk": self.latest, "disk_all": self.all}


def measure(spark: Path) -> Storage:
    """Measure the state in the ``spark`` folder of a checkpoint; 0 bytes if there is no state yet."""
    state = spark / "state"
    latest = sum(map(_latest, state.glob("[0-9]*/[0-9]*")))
    files = (Path(folder, name) for folder, _, names in os.walk(state) for name in names)
    return Storage(latest, sum(map(_size, files)))


class StoragePoller(Poller):
    """Measures the ``spark`` folder periodically, also while no records arrive, and calls ``report``."""

    def __init__(self, spark: Path, report: Callable[[Storage], None], every: float = EVERY_SECONDS) -> None:
        super().__init__("storage-poller", every)
        self._spark, self._report = spark, report

    def poll(self) -> None:
        """Measure once. If that fails, the next poll tries again."""
        with contextlib.suppress(OSError):
            self._report(measure(self._spark))


def _latest(shard: Path) -> int:
    """Bytes of the last snapshot and the changelogs after it. If a batch was retried, the larger attempt."""
    found: dict[str, dict[int, int]] = {"zip": {}, "changelog": {}}
    snapshot = Path()
    for path in shard.iterdir():
        if named := _NAMED.fullmatch(path.name):
            sizes, version = found[named[2]], int(named[1])
            if named[2] == "zip" and version >= max(sizes, default=0):
                snapshot = path
            sizes[version] = max(sizes.get(version, 0), _size(path))
    base = max(found["zip"], default=0)
    changes = sum(size for version, size in found["changelog"].items() if version > base)
    return found["zip"].get(base, 0) + (_tables(snapshot) if base else 0) + changes


def _tables(snapshot: Path) -> int:
    """Bytes of the tables that a snapshot's ``metadata`` file names: one line with the format, then JSON."""
    try:
        with zipfile.ZipFile(snapshot) as archive:
            metadata = json.loads(archive.read("metadata").split(b"\n", 1)[1])
        return sum(int(table["sizeBytes"]) for table in metadata["sstFiles"])
    except (OSError, zipfile.BadZipFile, LookupError, ValueError):
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
