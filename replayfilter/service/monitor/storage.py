"""What the state takes, in bytes: in workers' memory and on disk, where Spark keeps several versions of it.

A version of a shard is a snapshot (``7_<id>.zip``, which names tables in ``SSTs/``) and the changelogs after
it. Spark deletes files while they are looked at: one that has gone counts nothing.
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

from replayfilter.service.monitor.poller import Watch

PLACES = {"memory": "in memory", "disk": "on disk", "disk_all": "on disk, with old versions"}
EVERY_SECONDS = 15.0  # the usual time between two scrapes; a look at some hundred files takes milliseconds
_NAMED = re.compile(r"(\d+)(?:_[0-9a-f-]+)?\.(zip|changelog)")


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes on disk: of the ``latest`` version, which a restart reads; of ``all`` that Spark keeps."""

    latest: int
    all: int

    @property
    def sizes(self) -> dict[str, int]:
        """By place."""
        return {"disk": self.latest, "disk_all": self.all}


def measure(spark: Path) -> Storage:
    """Measure the state in Spark's folder of a checkpoint; nothing, if there is none yet."""
    state = spark / "state"
    latest = sum(map(_latest, state.glob("[0-9]*/[0-9]*")))
    files = (Path(folder, name) for folder, _, names in os.walk(state) for name in names)
    return Storage(latest, sum(map(_size, files)))


class StorageWatch(Watch):
    """Measures Spark's folder ``spark`` again and again, and tells ``told``: also while nothing comes in."""

    def __init__(self, spark: Path, told: Callable[[Storage], None], every: float = EVERY_SECONDS) -> None:
        super().__init__("storage-watch", every)
        self._spark, self._told = spark, told

    def look(self) -> None:
        """What can't be measured now is measured the next time."""
        with contextlib.suppress(OSError):
            self._told(measure(self._spark))


def _latest(shard: Path) -> int:
    """Bytes of the last snapshot and what came after; where a batch was tried again, the larger attempt's."""
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
    """Bytes of the tables that a snapshot names in ``metadata``: a line with the format, then JSON."""
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
