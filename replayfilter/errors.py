"""Every error that replayfilter raises on purpose.

    ReplayfilterError
    ├── ConfigError        settings are missing, unknown or wrong; has a sentence for each (exit code 2)
    ├── StampError         a stamp, pid or producer setting that would break replay filtering
    ├── BrokerError        Kafka can't be reached, or refuses a request
    ├── CheckpointError    the checkpoint can't be used: other shards, other keys, or lost offsets
    │   └── CheckpointDamaged a file in it was cut short or changed (exit code 5)
    ├── StorageError       the checkpoint's file system, or a file sink's folder, can't be used
    │   └── DiskFull       no room is left for the checkpoint or for temporary files
    ├── RegistryError      the schema registry can't be reached, or refuses a request
    │   └── UnknownSchemas it does not know the ids of some schemas
    ├── DeliveryError      a lane can't deliver its part of a batch, or a producer its records
    ├── ServiceReplaced    another service of the same name has started (exit code 4)
    ├── WatermarkError     the watermark server can't run, can't be reached, or refuses a request
    ├── SparkLost          Spark's JVM has ended or hangs: this process can't continue, a new one can
    └── MissingDependency  Java, jars or a Python package is missing on this machine

Each message says what is wrong, where, and with which value, and then how to fix it.
"""

from __future__ import annotations

from collections.abc import Iterable

LANE_NOTE = "replayfilter.lane="  # prefix of the note with the lane of a DeliveryError


class ReplayfilterError(Exception):
    """The base class: ``except ReplayfilterError`` catches all of these errors."""


class ConfigError(ReplayfilterError):
    """Settings are wrong; ``errors`` has a sentence for each, with its path, its value and the remedy."""

    def __init__(self, errors: list[str]) -> None:
        self.errors = errors
        super().__init__("\n".join(errors))


class StampError(ReplayfilterError):
    """A stamp, a pid or a producer setting would break replay filtering."""


class BrokerError(ReplayfilterError):
    """Kafka can't be reached, or refuses a request."""


class RegistryError(ReplayfilterError):
    """The schema registry can't be reached, or refuses a request; no record is decided without it."""


class UnknownSchemas(RegistryError):
    """The schema registry does not know ``ids``, and the settings don't say yet that they are unknown.

    Like any error of a task it reaches the driver as text, and spark/failures.py reads the ids there. That is
    why the message has no other number.
    """

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids = frozenset(ids)
        known_as = ", ".join(map(str, sorted(self.ids)))
        super().__init__(f"the schema registry does not know the ids {known_as}; register their schemas")


class CheckpointError(ReplayfilterError):
    """The checkpoint can't be used."""


class CheckpointDamaged(CheckpointError):
    """A file of the checkpoint is gone, was cut short or has other bytes; no other attempt repairs that."""


class StorageError(ReplayfilterError):
    """The file system of the checkpoint or of a file sink can't be reached, or refuses a request."""


class DiskFull(StorageError):
    """No room is left on the disk of the checkpoint or of temporary files."""


class DeliveryError(ReplayfilterError):
    """A lane can't deliver its part of a batch, or a producer its records: go back and try again.

    ``lane`` is the number of the lane, None if it is not known or the error is not a lane's. Spark passes an
    error of a task to the driver only as the text of its traceback. So the lane is also a note, which is a
    line of its own in that text, and spark/failures.py reads it there.
    """

    def __init__(self, message: str, lane: int | None = None) -> None:
        super().__init__(message)
        self.lane = lane
        if lane is not None:
            self.add_note(f"{LANE_NOTE}{lane}")


class ServiceReplaced(ReplayfilterError):
    """Another service of the same name has started; only that one can deliver now."""


class WatermarkError(ReplayfilterError):
    """The watermark server can't run, can't be reached, or refuses a request."""


class SparkLost(ReplayfilterError):
    """Spark's JVM has ended or hangs, so this process can't continue."""


class MissingDependency(ReplayfilterError):
    """Something that the command needs is missing on this machine."""
