"""The service's folder of memory, and the identity file in it that says what the memory means.

<service.checkpoint>/replayfilter.json    what the state was made with; see Identity
<service.checkpoint>/lock                 held while a service works on it (local folders only)
<service.checkpoint>/spark/               Spark's own checkpoint: offsets, commits, state
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from replayfilter.errors import CheckpointError
from replayfilter.service.config.model import Config

FORMAT = 1
IDENTITY, LOCK, SPARK = "replayfilter.json", "lock", "spark"
# A killed service's JVM sees within a second that its driver is gone, but may first finish a write or a full
# collection of its 2 GB; a service that runs holds the lock for longer than anyone waits.
LOCK_SECONDS = 10.0
_POLL_SECONDS = 0.05

Offsets = dict[str, dict[int, int]]  # topic: partition: offset


class Files(Protocol):
    """The few things done to files of a checkpoint; names are relative to it, "/" between parts."""

    def read(self, name: str) -> bytes | None:
        """A file's content; None if there is no such file."""

    def write(self, name: str, content: bytes) -> None:
        """Replace a file as a whole: a reader finds the old content or the new. OSError if that fails."""

    def names(self, folder: str) -> list[str]:
        """What a folder holds; empty if there is none."""


class CheckpointFolder:
    """``Files`` in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(prefix=f".{name}.", dir=self.folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(path, self.folder / name)
        except BaseException:
            os.unlink(path)
            raise

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(self.folder / folder)
        except FileNotFoundError:
            return []


def local_folder(checkpoint: str) -> Path | None:
    """The folder that ``service.checkpoint`` names, None if it is not of this machine.

    >>> local_folder("file:///var/lib/orders")
    PosixPath('/var/lib/orders')
    """
    if checkpoint.lower().startswith("file:"):
        return Path(unquote(urlsplit(checkpoint).path))
    return None if checkpoint.lower().startswith(("hdfs:", "s3a:")) else Path(checkpoint).absolute()


@dataclass(frozen=True, slots=True)
class Identity:
    """What the state in a checkpoint was made with: other values would read it wrongly.

    Not among them, so free to change: period, mark_ttl, max_future, output topics, and all that has to do
    with how the service runs. ``key`` and ``expiry_key`` are as in the config; ``span`` is in units of the
    expiry key; what is not used is empty; ``topic_ids`` maps input topics to Kafka's ids, which a
    topic that is made anew doesn't keep.
    """

    service: str
    shards: int
    lanes: int
    format: str
    dedup: bool
    key: list[str]
    expiry_key: str
    unit: str
    clock: str
    span: int
    match: str
    cluster_id: str
    topic_ids: dict[str, str]
    remember_first: bool = False
    version: int = FORMAT

    def to_bytes(self) -> bytes:
        """The identity file's content: JSON with one key a line, for people too."""
        values = {_STORED_NAMES.get(name, name): value for name, value in asdict(self).items()}
        return json.dumps(values, indent=2).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Identity:
        """Read an identity file; CheckpointError if it is none, or one of a later version."""
        remedy = "use the version of replayfilter that wrote it, or another service.checkpoint"
        try:
            values = json.loads(content)
            if values["version"] != FORMAT:
                raise CheckpointError(
                    f"{IDENTITY} has format {values['version']}, this version reads {FORMAT}; {remedy}"
                )
            names = [field.name for field in fields(cls)]
            return cls(**{name: values[_STORED_NAMES.get(name, name)] for name in names})
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(f"{IDENTITY} is damaged or not ours; {remedy}") from None


# Identity files keep the names they were first written with.
_STORED_NAMES = {"remember_first": "remember_origin"}

# What the config calls each value, and what to do besides setting it back.
_NAMES = {
    "service": "service.name",
    "format": "input.format",
    "dedup": "dedup.enabled",
    "key": "dedup.key",
    "expiry_key": "dedup.expiry_key",
    "unit": "dedup.unit",
    "clock": "dedup.clock",
    "span": "dedup.bucket_span (in units of the expiry key)",
    "match": "dedup.match",
    "remember_first": "dedup.remember_first",
    "shards": "service.shards",
    "lanes": "service.shards",
}


def identity_of(
    config: Config, cluster_id: str, topic_ids: Mapping[str, str], cores: int, kept: Identity | None
) -> Identity:
    """What the config asks for; what it leaves open is taken from ``kept``, the checkpoint's identity.

    So a default bucket span or shard count stays what it was at first start, on whatever machine and
    whatever the period is by now.
    """
    dedup = config.dedup
    shards = config.service.shards or (kept.shards if kept else cores)
    unit = config.length_unit if config.expires else ""
    keep_span = kept is not None and kept.unit == unit and dedup.bucket_span == ""
    return Identity(
        service=config.service.name,
        shards=shards,
        lanes=shards,
        format=config.input.format,
        dedup=dedup.enabled,
        key=dedup.key if dedup.enabled else [],
        expiry_key=dedup.expiry_key if config.expires else "",
        unit=unit,
        clock=dedup.clock if dedup.enabled else "none",
        span=kept.span if kept is not None and keep_span else config.span_units,
        match=dedup.match if config.expires else "window",
        cluster_id=cluster_id,
        topic_ids=dict(topic_ids),
        remember_first=dedup.enabled and dedup.remember_first,
    )


def differences(kept: Identity, asked: Identity) -> list[str]:
    """One sentence for each way in which the config doesn't fit the checkpoint."""
    found = {}
    for name, path in _NAMES.items():
        was, now = getattr(kept, name), getattr(asked, name)
        if was != now:
            found[path] = (
                f"{path}: the checkpoint was made with {json.dumps(was)}, the config says {json.dumps(now)}; "
                "set it back, or give a new service.name and service.checkpoint to start with an empty memory"
            )
    if kept.cluster_id != asked.cluster_id:
        return [
            *found.values(),
            f"kafka.bootstrap: the checkpoint belongs to Kafka cluster {kept.cluster_id}, this one is "
            f"{asked.cluster_id}; connect to the former, or give a new service.checkpoint",
        ]
    if kept.topic_ids.keys() != asked.topic_ids.keys():
        found["input.topics"] = (
            f"input.topics: the checkpoint was made with {sorted(kept.topic_ids)}, the config says "
            f"{sorted(asked.topic_ids)}; set it back, or run another service for the others"
        )
    for topic in kept.topic_ids.keys() & asked.topic_ids.keys():
        if kept.topic_ids[topic] != asked.topic_ids[topic]:
            found[topic] = (
                f"input.topics: {topic} was deleted and made again, so the checkpoint's offsets mean other "
                "records; give a new service.name and service.checkpoint"
            )
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Progress:
    """How far Spark's checkpoint is: ``start`` of the first batch, ``end`` of the last finished one."""

    start: Offsets
    end: Offsets


def spark_progress(files: CheckpointFolder) -> Progress | None:
    """Read Spark's own logs; None if no batch was finished. CheckpointError if they can't be read."""
    finished = [int(name) for name in files.names(f"{SPARK}/commits") if name.isdecimal()]
    if not finished:
        return None
    last = max(finished)
    try:
        end = _offsets(files.read(f"{SPARK}/offsets/{last}"))
        return Progress(_offsets(files.read(f"{SPARK}/sources/0/0")), end)
    except ValueError as error:
        raise CheckpointError(
            f"Spark's checkpoint is damaged (batch {last}: {error}); restore it, or start anew with another "
            "service.checkpoint and --from-committed"
        ) from None


def _offsets(content: bytes | None) -> Offsets:
    """The last line of Spark's log entry: {"topic": {"partition": offset}}; ValueError if there is none."""
    if content is None:
        raise ValueError("its offsets are missing")
    line = content.decode("utf-8", "replace").rsplit("\n", 1)[-1]
    return {
        topic: {int(partition): int(offset) for partition, offset in partitions.items()}
        for topic, partitions in json.loads(line[line.index("{") :]).items()
    }


@contextlib.contextmanager
def locked(folder: Path, patience: float = LOCK_SECONDS) -> Iterator[int]:
    """Keep other services off a checkpoint; CheckpointError if one is at work there for ``patience`` seconds.

    The system drops the lock with the last process that has the descriptor, which is what this gives,
    however it ends: with the JVM too, which works on the checkpoint and may outlive a killed driver.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a+")
    except OSError as error:
        raise CheckpointError(unwritable(folder, error)) from None
    with file:
        if not _acquired(file.fileno(), patience):
            file.seek(0)
            owner = file.read().strip() or "another process"
            raise CheckpointError(
                f"service.checkpoint = {folder}: in use by {owner}, or a Java process it has left; stop "
                "that first, or give each service its own checkpoint"
            )
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield file.fileno()


def _acquired(descriptor: int, patience: float) -> bool:
    """Whether the lock could be had within so many seconds."""
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_SECONDS)


def unwritable(folder: Path, error: OSError) -> str:
    """The sentence for a checkpoint that can't be written."""
    return (
        f"service.checkpoint = {folder}: can't be written ({error.strerror or error}); "
        "give this user the right to, or name another folder"
    )
