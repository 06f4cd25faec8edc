"""The size of the state in bytes: in the workers' memory, and on disk, where Spark keeps several versions.

A version of a shard is a snapshot (``7_<id>.zip``, which names tables in ``SSTs/``) and the changelogs after
it. Spark may delete files during a measurement; a file that no longer exists counts as 0 bytes.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass

from replayfilter.errors import SparkLost, StorageError
from replayfilter.service.monitor.poller import Poller
from replayfilter.spark.checkpoint_folder import CheckpointFolder

LOCATIONS = {"memory": "in memory", "disk": "on disk", "disk_all": "on disk, with old versions"}
EVERY_SECONDS_ELSEWHERE = 60.0  # each measurement is at least one request per shard
EVERY_SECONDS = 15.0  # the usual scrape interval; measuring a few hundred files takes milliseconds
_NAMED = re.compile(r"(\d+/\d+)/(\d+)(?:_[0-9a-f-]+)?\.(zip|changelog)")  # operator/shard/version


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes on disk: of the ``latest`` version, which a restart reads, and of ``all`` versions kept."""

    latest: int
    all: int

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes by the keys of :data:`LOCATIONS`."""
        return {"disk": self.latest, "disk_all": self.all}


def measure(checkpoint: CheckpointFolder, spark: str = "") -> Storage:
    """Measure the state in the folder ``spark`` of a checkpoint; 0 bytes if there is no state yet.

    Raises StorageError if a file system other than the local one can't be read.
    """
    folder = f"{spark}/state".lstrip("/")
    sizes = checkpoint.sizes(folder)
    snapshots: dict[str, dict[int, tuple[int, str]]] = {}  # shard: version: (bytes, file)
    changelogs: dict[str, dict[int, int]] = {}  # shard: version: bytes
    for name, size in sizes.items():
        if not (named := _NAMED.fullmatch(name)):
            continue
        shard, version = named[1], int(named[2])
        # If a batch was retried, the larger attempt counts.
        if named[3] == "zip":
            kept = snapshots.setdefault(shard, {})
            kept[version] = max(kept.get(version, (0, "")), (size, name))
        else:
            changes = changelogs.setdefault(shard, {})
            changes[version] = max(changes.get(version, 0), size)
    latest = 0
    for shard in snapshots.keys() | changelogs.keys():
        base, (size, name) = max(snapshots.get(shard, {}).items(), default=(0, (0, "")))
        latest += size + (_tables(checkpoint.read(f"{folder}/{name}")) if name else 0)
        latest += sum(size for version, size in changelogs.get(shard, {}).items() if version > base)
    return Storage(latest, sum(sizes.values()))


class StoragePoller(Poller):
    """Measures a checkpoint periodically, also while no records arrive, and calls ``report``."""

    def __init__(
        self,
        checkpoint: CheckpointFolder,
        spark: str,
        report: Callable[[Storage], None],
        every: float = EVERY_SECONDS,
    ) -> None:
        super().__init__("storage-poller", every)
        self._checkpoint, self._spark, self._report = checkpoint, spark, report

    def poll(self) -> None:
        """Measure once. If that fails, the next poll tries again."""
        with contextlib.suppress(OSError, SparkLost, StorageError):
            self._report(measure(self._checkpoint, self._spark))


def _tables(snapshot: bytes | None) -> int:
    """Bytes of the tables that a snapshot's ``metadata`` file names: one line with the format, then JSON."""
    try:
        with zipfile.ZipFile(io.BytesIO(snapshot or b"")) as archive:
            metadata = json.loads(archive.read("metadata").split(b"\n", 1)[1])
        return sum(int(table["sizeBytes"]) for table in metadata["sstFiles"])
    except (zipfile.BadZipFile, LookupError, ValueError):
        return 0
