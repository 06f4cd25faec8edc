"""The checkpoint of a service: its identity file, its lock, and Spark's own checkpoint.

<service.checkpoint>/replayfilter.json    the settings that the state was created with; see Identity
<service.checkpoint>/decisions.json       the settings that the last batch was begun with; see decisions.py
<service.checkpoint>/lock                 locked while a service uses the checkpoint, in a local folder
<service.checkpoint>/owner.json           the same elsewhere: rewritten while a service uses the checkpoint
<service.checkpoint>/spark/               Spark's own checkpoint: offsets, commits, state
<service.checkpoint>/rebuilding           there while a rebuild writes Spark's checkpoint, before the identity
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from replayfilter.core.clock.clocks import Clock
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.rules import Match, Scope
from replayfilter.errors import CheckpointDamaged, CheckpointError, SparkLost, StorageError
from replayfilter.service.config.model import Config
from replayfilter.service.monitor.poller import Poller
from replayfilter.settings.value_types import HADOOP_SCHEMES
from replayfilter.spark.batch_range import CONNECTOR_FIRST_OFFSETS, BatchEnd, last_line
from replayfilter.spark.checkpoint_folder import CheckpointFolder, LocalFolder

FORMAT = 1
IDENTITY, DECISIONS, LOCK, OWNER, SPARK = "replayfilter.json", "decisions.json", "lock", "owner.json", "spark"
REBUILDING = "rebuilding"
_REBUILD = "replayfilter rebuild CONFIG"
# The JVM of a killed service notices within a second that its driver has gone, but may first have to finish a
# write or a full garbage collection of 2 GB. A running service keeps the lock much longer than this.
LOCK_SECONDS = 10.0
_POLL_SECONDS = 0.05
RENEW_SECONDS = 2.0  # between two times that a service rewrites owner.json

Offsets = dict[str, dict[int, int]]  # topic: partition: offset


def local_folder(checkpoint: str) -> Path | None:
    """The local folder that ``service.checkpoint`` names; None if it is on another file system.

    >>> local_folder("file:///var/lib/orders")
    PosixPath('/var/lib/orders')
    """
    scheme = checkpoint.partition(":")[0].lower()
    if scheme == "file":
        return Path(unquote(urlsplit(checkpoint).path))
    return None if scheme in HADOOP_SCHEMES else Path(checkpoint).absolute()


def open_checkpoint(config: Config, log_level: str = "off") -> CheckpointFolder:
    """The service's checkpoint. One on another file system starts Spark's JVM, which later runs the service.

    Raises StorageError if its file system can't be used, and MissingDependency without Java.
    """
    location, master = config.service.checkpoint, config.service.master
    if (folder := local_folder(location)) is not None:
        return LocalFolder(folder)
    from replayfilter.spark.hadoop_folder import HadoopFolder  # a local checkpoint needs no JVM
    from replayfilter.spark.session import hadoop_settings, session_settings, start_jvm

    jvm = start_jvm(session_settings(config.service.name, location, master, log_level))
    return HadoopFolder(location.rstrip("/"), jvm, hadoop_settings(jvm, location))


@dataclass(frozen=True, slots=True)
class Identity:
    """The settings that the state in a checkpoint was created with. With other values it would be misread.

    Settings that are not listed here may be changed at any time: the period, mark_ttl, max_future, the output
    topics, and everything about how the service is operated.

    ``key`` and ``expiry_key`` are as in the config. ``span`` is in units of the expiry key. Unused fields are
    empty. ``topic_ids`` maps input topics to Kafka's topic ids: a topic that is deleted and created again
    has a new id.
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
    scope: str = Scope.INPUT.value
    version: int = FORMAT

    def to_bytes(self) -> bytes:
        """The content of the identity file: JSON with one key per line, so that people can read it too."""
        values = {_STORED_NAMES.get(name, name): value for name, value in asdict(self).items()}
        return json.dumps(values, indent=2).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Identity:
        """Parse an identity file. Raises CheckpointError if it is damaged or has an unknown format."""
        remedy = "use the version of replayfilter that wrote it, or another service.checkpoint"
        try:
            values = _ADDED | json.loads(content)
            if values["version"] != FORMAT:
                raise CheckpointError(
                    f"{IDENTITY} has format {values['version']}, this version reads {FORMAT}; {remedy}"
                )
            names = [field.name for field in fields(cls)]
            return cls(**{name: values[_STORED_NAMES.get(name, name)] for name in names})
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(f"{IDENTITY} is damaged or from another program; {remedy}") from None


# Identity files keep the field names of the first version that wrote them.
_STORED_NAMES = {"remember_first": "remember_origin"}

# The values that identity files have which were written before their fields were added.
_ADDED = {"scope": Scope.INPUT.value}

# The config key of each field, for messages.
_CONFIG_KEYS = {
    "service": "service.name",
    "format": "input.format",
    "dedup": "dedup.enabled",
    "key": "dedup.key",
    "expiry_key": "dedup.expiry_key",
    "unit": "dedup.unit",
    "clock": "dedup.clock",
    "span": "dedup.bucket_span (in units of the expiry key)",
    "match": "dedup.match",
    "scope": "dedup.scope",
    "remember_first": "dedup.remember_first",
    "shards": "service.shards",
    "lanes": "service.shards",
}


def identity_of(
    config: Config, cluster_id: str, topic_ids: Mapping[str, str], cores: int, kept: Identity | None
) -> Identity:
    """The identity that the config asks for. Defaults come from ``kept``, the checkpoint's identity.

    A default bucket span or shard count therefore stays as it was at the first start, even if the service
    moves to another machine or the period changes.
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
        clock=(config.clock if dedup.enabled else Clock.NONE).value,
        span=kept.span if kept is not None and keep_span else config.span_units,
        match=dedup.match if config.expires else Match.WINDOW.value,
        cluster_id=cluster_id,
        topic_ids=dict(topic_ids),
        remember_first=dedup.enabled and dedup.remember_first,
        scope=dedup.scope if dedup.enabled else Scope.INPUT.value,
    )


def differences(kept: Identity, asked: Identity) -> list[str]:
    """One message for each setting in which the config differs from the checkpoint."""
    found = {}
    for name, path in _CONFIG_KEYS.items():
        was, now = getattr(kept, name), getattr(asked, name)
        if was != now:
            fresh = "to start with an empty state" if name == "service" else f"and fill it with: {_REBUILD}"
            found[path] = (
                f"{path}: the checkpoint was created with {json.dumps(was)}, but the config says "
                f"{json.dumps(now)}; set it back, or set a new service.checkpoint {fresh}"
            )
    if kept.cluster_id != asked.cluster_id:
        return [
            *found.values(),
            f"kafka.bootstrap: the checkpoint belongs to Kafka cluster {kept.cluster_id}, but this one is "
            f"{asked.cluster_id}; connect to the former, or set a new service.checkpoint",
        ]
    if kept.topic_ids.keys() != asked.topic_ids.keys():
        found["input.topics"] = (
            f"input.topics: the checkpoint was created with {sorted(kept.topic_ids)}, but the config says "
            f"{sorted(asked.topic_ids)}; set it back, or run another service for the other topics"
        )
    for topic in kept.topic_ids.keys() & asked.topic_ids.keys():
        if kept.topic_ids[topic] != asked.topic_ids[topic]:
            found[topic] = (
                f"input.topics: {topic} was deleted and created again, so the checkpoint's offsets belong to "
                "other records; set a new service.name and service.checkpoint"
            )
    return list(found.values())


@dataclass(frozen=True, slots=True)
class SparkProgress:
    """Offsets in Spark's checkpoint: where partitions begin (``start``), and where a batch ends (``end``)."""

    start: dict[InputPartition, int]
    end: dict[InputPartition, int]


def spark_progress(checkpoint: CheckpointFolder) -> SparkProgress | None:
    """How far the last finished batch goes, from Spark's own logs; None if no batch is finished.

    Raises CheckpointDamaged if they are damaged.
    """
    finished = [int(name) for name in checkpoint.names(f"{SPARK}/commits") if name.isdecimal()]
    return progress_to(checkpoint, max(finished)) if finished else None


def progress_to(checkpoint: CheckpointFolder, last: int) -> SparkProgress:
    """How far a batch goes. Raises CheckpointDamaged if Spark's logs are damaged."""
    try:
        end = _batch_end(checkpoint.read(f"{SPARK}/offsets/{last}"))
        start = dict(end.began)
        if (first := checkpoint.read(f"{SPARK}/{CONNECTOR_FIRST_OFFSETS}")) is not None:
            start |= _batch_end(first).ends
        return SparkProgress(start, dict(end.ends))
    except ValueError as error:
        raise CheckpointDamaged(
            f"Spark's checkpoint is damaged (batch {last}: {error}); restore it, or set a new "
            f"service.checkpoint and fill it with: {_REBUILD}"
        ) from None


def unfinished_batch(checkpoint: CheckpointFolder) -> int | None:
    """The batch that Spark has planned and not finished; None if it has finished all."""
    planned, finished = (
        max((int(name) for name in checkpoint.names(f"{SPARK}/{log}") if name.isdecimal()), default=-1)
        for log in ("offsets", "commits")
    )
    return planned if planned > finished else None


def _batch_end(content: bytes | None) -> BatchEnd:
    """Parse an entry in one of Spark's logs. Raises ValueError if it has no offsets."""
    if content is None:
        raise ValueError("the file with its offsets is missing")
    try:
        return BatchEnd.from_json(json.loads(last_line(content)))
    except (AttributeError, TypeError) as error:
        raise ValueError(f"the file with its offsets has something else: {error}") from None


@contextlib.contextmanager
def owned(config: Config, checkpoint: CheckpointFolder) -> Iterator[list[int]]:
    """Keep other services from a checkpoint; yields the file descriptors that the JVM must keep open.

    Raises CheckpointError if another process uses it, see :func:`locked`, and StorageError if its file
    system can't be used.
    """
    if (folder := local_folder(config.service.checkpoint)) is not None:
        with locked(folder) as descriptor:
            yield [descriptor]
    else:
        await_owner(checkpoint)
        with Ownership(checkpoint):
            yield []


def await_owner(checkpoint: CheckpointFolder, timeout: float = LOCK_SECONDS) -> None:
    """Wait until the last owner has ended, or until it has not renewed its file for ``timeout`` seconds.

    Raises CheckpointError if it renews the file. Clocks of other hosts don't matter.
    """
    found, until = checkpoint.read(OWNER), time.monotonic() + timeout
    while found is not None and time.monotonic() < until:
        time.sleep(RENEW_SECONDS / 4)
        now = checkpoint.read(OWNER)
        if now is not None and now != found:
            try:
                owner = "process {process} on {host}".format(**json.loads(now))
            except (ValueError, KeyError, TypeError):
                owner = "another process"
            raise CheckpointError(
                f"service.checkpoint = {checkpoint.location}: in use by {owner}; stop it first, or set a "
                "different checkpoint for each service"
            )
        found = now


class Ownership(Poller):
    """Rewrites owner.json periodically, until another process has taken the checkpoint.

    This only keeps services apart that are started by mistake. A service that was frozen for so long that
    another one has started can't deliver any more: see kafka/membership.py.
    """

    def __init__(self, checkpoint: CheckpointFolder, every: float = RENEW_SECONDS) -> None:
        super().__init__("checkpoint-owner", every)
        self._checkpoint, self._id, self._times = checkpoint, uuid.uuid4().hex, 0

    def __enter__(self) -> Self:
        """Write the file. Raises StorageError if that fails."""
        self._renew()
        return super().__enter__()

    def poll(self) -> None:
        """Write the file again if it is still ours. If that fails, the next poll tries again."""
        with contextlib.suppress(StorageError, SparkLost, OSError):
            if self._is_ours():
                self._renew()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        with contextlib.suppress(StorageError, SparkLost, OSError):
            if self._is_ours():
                self._checkpoint.remove(OWNER)

    def _is_ours(self) -> bool:
        return self._id.encode() in (self._checkpoint.read(OWNER) or b"")

    def _renew(self) -> None:
        self._times += 1
        owner = {"process": os.getpid(), "host": socket.gethostname(), "id": self._id, "renewed": self._times}
        self._checkpoint.write(OWNER, json.dumps(owner).encode() + b"\n")


@contextlib.contextmanager
def locked(folder: Path, timeout: float = LOCK_SECONDS) -> Iterator[int]:
    """Lock a checkpoint for one service; yields the descriptor of the lock file.

    Waits ``timeout`` seconds for the lock. Raises CheckpointError if another process still holds it then.

    Give the descriptor to the JVM: it writes to the checkpoint and may outlive a killed driver. The operating
    system releases the lock when the last process that has the descriptor open ends, for whatever reason.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a+")
    except OSError as error:
        raise CheckpointError(unwritable(folder, error)) from None
    with file:
        if not _acquire(file.fileno(), timeout):
            file.seek(0)
            owner = file.read().strip() or "another process"
            raise CheckpointError(
                f"service.checkpoint = {folder}: in use by {owner}, or by a Java process that it left "
                "behind; stop it first, or set a different checkpoint for each service"
            )
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield file.fileno()


def _acquire(descriptor: int, timeout: float) -> bool:
    """Wait up to ``timeout`` seconds for the lock; False if it is still held by another process then."""
    until = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_SECONDS)


def unwritable(folder: Path | None, error: OSError) -> str:
    """The message for a checkpoint that can't be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "make room on its disk" if full else "grant this user write permission"
    return (
        f"service.checkpoint = {folder}: can't be written ({error.strerror or error}); "
        f"{remedy}, or set another folder"
    )
