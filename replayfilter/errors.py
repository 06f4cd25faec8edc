"""Every error that replayfilter raises on purpose.

    ReplayfilterError
    ├── ConfigError        a setting is missing, unknown or wrong; carries every fault found   (exit code 2)
    ├── StampError         a stamp, producer id or stamping setting that would break replay filtering
    ├── BrokerError        Kafka can't be reached, or refuses what is asked
    ├── CheckpointError    the checkpoint can't be used as it is: other shards, keys, or lost offsets
    ├── RegistryError      the schema registry can't be reached, or refuses what is asked
    ├── DeliveryError      a lane could not deliver its part of a batch, or a producer its records
    ├── WatermarkError     the watermark server can't run, can't be reached, or refuses what is asked
    ├── SparkLost          Spark's JVM has ended or hangs: this process can't go on, the next one can
    └── MissingDependency this machine lacks something: Java, jars, a Python package

Each message is one sentence that says what, where and which value, and then a remedy.
"""

from __future__ import annotations

LANE_NOTE = "replayfilter.lane="  # begins the note of a DeliveryError that names its lane


class ReplayfilterError(Exception):
    """The base of all of them; ``except ReplayfilterError`` catches whatever is ours."""


class ConfigError(ReplayfilterError):
    """Settings are wrong; ``errors`` holds one sentence for each, with its path, value and remedy."""

    def __init__(self, errors: list[str]) -> None:
        self.errors = errors
        super().__init__("\n".join(errors))


class StampError(ReplayfilterError):
    """A stamp, a producer id or a producer's setting that would break replay filtering."""


class BrokerError(ReplayfilterError):
    """Kafka can't be reached, or refuses what is asked of it."""


class RegistryError(ReplayfilterError):
    """The schema registry can't be reached, or refuses what is asked; nothing is decided without it."""


class CheckpointError(ReplayfilterError):
    """The checkpoint can't be used as it is."""


class DeliveryError(ReplayfilterError):
    """A lane could not deliver its part of a batch, or a producer its records: go back and try again.

    ``lane`` is the number of the lane, None if it is not known or the error is not a lane's. Spark passes an
    error of a task to the driver only as the text of its traceback. So the lane is also a note, which is a
    line of its own in that text, and spark/failures.py reads it there.
    """

    def __init__(self, message: str, lane: int | None = None) -> None:
        super().__init__(message)
        self.lane = lane
        if lane is not None:
            self.add_note(f"{LANE_NOTE}{lane}")


class WatermarkError(ReplayfilterError):
    """The watermark server can't run, can't be reached, or refuses what is asked of it."""


class SparkLost(ReplayfilterError):
    """Spark's JVM has ended under the service, so this process can't go on."""


class MissingDependency(ReplayfilterError):
    """This machine lacks something that the command needs."""
