"""What is looked at before the service starts, so that what can't work is said at once and in words.

Faults keep it from starting; warnings don't. Every question to Kafka has a time limit.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from replayfilter.errors import BrokerError, CheckpointError
from replayfilter.kafka.admin import Cluster, Topic
from replayfilter.kafka.chunk import InputPartition
from replayfilter.kafka.client_settings import Settings, client_settings
from replayfilter.kafka.reader import RangeReader, partition_of
from replayfilter.service.config.model import Config
from replayfilter.service.runtime.checkpoint import (
    IDENTITY,
    SPARK,
    CheckpointFolder,
    Files,
    Identity,
    Offsets,
    differences,
    identity_of,
    local_folder,
    spark_progress,
    unwritable,
)
from replayfilter.service.tools.topics import too_tight

READ_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found. Without ``faults`` the service may start as ``identity`` says.

    ``partitions`` counts those of every topic. ``starting`` holds the offsets to begin at when the committed
    ones stand in for a lost checkpoint.
    """

    faults: list[str]
    warnings: list[str] = field(default_factory=list)
    identity: Identity | None = None
    partitions: dict[str, int] = field(default_factory=dict)
    starting: Offsets | None = None


def inspect(config: Config, from_committed: bool, files: CheckpointFolder | None = None) -> Findings:
    """Look at the broker, the topics and the checkpoint, and tell all that is wrong.

    ``files`` reads a checkpoint that is not on this machine.
    """
    faults: list[str] = []
    warnings: list[str] = []
    if files is None:
        files = _local_files(config, faults)
    kept, started = _read_identity(files, faults) if files else (None, False)
    try:
        cluster = Cluster(config.kafka.bootstrap, config.client_options())
        cluster_id = cluster.id
        outputs = config.output_topics()
        topics = cluster.topics([*config.input.topics, *outputs.values()])
    except BrokerError as error:
        return Findings([*faults, str(error)])
    faults += _missing_topics(config, topics)
    if faults:
        return Findings(faults)
    warnings += _uneven_partitions(config, topics)

    warnings += _tight_outputs(config, cluster)

    ids = {name: topics[name].id for name in config.input.topics}
    identity = identity_of(config, cluster_id, ids, core_count(config.service.master), kept)
    if kept is not None:
        faults += differences(kept, identity)
    elif not config.service.shards and core_count(config.service.master) == 0:
        faults.append(
            f"service.shards: missing; how many cores {config.service.master} has can't be seen from here, "
            "so set it under [service], for example shards = 16"
        )
    if faults:
        return Findings(faults, warnings)

    starting = None
    try:
        sources = [(name, part) for name in config.input.topics for part in range(topics[name].partitions)]
        # Not settled: if the service was killed in a delivery, they would be told only after its next start.
        committed = cluster.committed(config.service.name, sources, settled=False)
        if started and files is not None:
            faults += _behind(config, files, committed)
            if from_committed:
                warnings.append("--from-committed has no effect: the checkpoint is there, and is used")
        elif committed and not from_committed:
            faults.append(_lost(config, committed))
        elif committed:
            starting = offsets_by_topic(committed)
    except (BrokerError, CheckpointError) as error:
        faults.append(str(error))
    partitions = {name: topic.partitions for name, topic in topics.items()}
    return Findings(faults, warnings, identity, partitions, starting)


def core_count(master: str) -> int:
    """The cores of a local master; 0 for a cluster, which can't be known from here.

    >>> core_count("local[3]"), core_count("local"), core_count("yarn")
    (3, 1, 0)
    """
    match = re.match(r"local(?:\[(\*|\d+))?", master)
    if not match:
        return 0
    if match[1] == "*":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(match[1] or 1)


def offsets_by_topic(offsets: dict[InputPartition, int]) -> Offsets:
    """{("t", 0): 5} as {"t": {0: 5}}."""
    nested: Offsets = {}
    for (topic, partition), offset in offsets.items():
        nested.setdefault(topic, {})[partition] = offset
    return nested


# ---- topics ------------------------------------------------------------------------------------------


def _missing_topics(config: Config, topics: dict[str, Topic]) -> list[str]:
    faults = [
        f'input.topics: there is no topic "{name}" at {config.kafka.bootstrap}; create it or correct the name'
        for name in config.input.topics
        if name not in topics
    ]
    return faults + [
        f'{path}: there is no topic "{name}" at {config.kafka.bootstrap}; create what is missing with: '
        "replayfilter topics CONFIG"
        for path, name in config.output_topics().items()
        if name not in topics
    ]


def _uneven_partitions(config: Config, topics: dict[str, Topic]) -> list[str]:
    """Records go to input partition % count, so any count works; another than the input's is rarely meant."""
    most = max(topics[name].partitions for name in config.input.topics)
    warnings = []
    for path, name in config.output_topics().items():
        count = topics[name].partitions
        if count < most:
            warnings.append(
                f"{path}: {name} has {count} partitions, the input has {most}, so some of its partitions get "
                "several of the input's; each one's order is kept, but they mingle"
            )
        elif count > most:
            warnings.append(
                f"{path}: {name} has {count} partitions, the input has {most}, so {count - most} stay empty"
            )
    return warnings


def _tight_outputs(config: Config, cluster: Cluster) -> list[str]:
    """Output topics that would refuse records which the input takes: delivery would stop there."""
    outputs = config.output_topics()
    try:
        settings = cluster.settings([*config.input.topics, *outputs.values()])
    except BrokerError:  # no right to look at settings: nothing can be said
        return []
    inputs = [settings[name] for name in config.input.topics]
    return [
        f"{path}: topic {name} has {clause}: such a record would stop delivery; change it with kafka-configs"
        for path, name in outputs.items()
        for clause in too_tight(inputs, settings[name])
    ]


# ---- checkpoint --------------------------------------------------------------------------------------


def _local_files(config: Config, faults: list[str]) -> Files | None:
    folder = local_folder(config.service.checkpoint)
    if folder is None:
        where = config.service.checkpoint
        faults.append(f"service.checkpoint = {where}: can't be read from this process; use a local path")
        return None
    files = CheckpointFolder(folder)
    try:
        files.write(".writable", b"")
        (folder / ".writable").unlink()
    except OSError as error:
        faults.append(unwritable(folder, error))
        return None
    return files


def _read_identity(files: CheckpointFolder, faults: list[str]) -> tuple[Identity | None, bool]:
    """The checkpoint's identity, and whether Spark has planned a batch in it."""
    started = bool(files.names(f"{SPARK}/offsets"))
    content = files.read(IDENTITY)
    if content is None:
        if started or files.names("offsets") or files.names("commits"):
            faults.append(
                f"service.checkpoint: it holds Spark's files but no {IDENTITY}, so it is another query's or "
                "damaged; name another folder"
            )
        return None, started
    try:
        return Identity.from_bytes(content), started
    except CheckpointError as error:
        faults.append(f"service.checkpoint: {error}")
        return None, started


def _lost(config: Config, committed: dict[InputPartition, int]) -> str:
    first = sorted(committed.items())[:3]
    some = ", ".join(f"{topic}-{part} up to {offset}" for (topic, part), offset in first)
    more = ", ..." if len(committed) > 3 else ""
    return (
        f"service.checkpoint = {config.service.checkpoint}: holds nothing, but Kafka says that service "
        f'"{config.service.name}" has delivered before ({some}{more}); bring the checkpoint back, or go on '
        "from there with --from-committed: no input record is delivered twice, but what was remembered is "
        "gone, so replays and duplicates of earlier records count as unique"
    )


def _behind(config: Config, files: CheckpointFolder, committed: dict[InputPartition, int]) -> list[str]:
    """Faults for partitions whose committed offset lies before records that the checkpoint is through with.

    They were delivered, since Spark finishes a batch only after its delivery. So somebody has set the group's
    offsets back, or they expired. Then they no longer say what a batch that is tried again must leave out.
    """
    progress = spark_progress(files)
    if progress is None:
        return []
    late: dict[InputPartition, tuple[int, int]] = {}
    for topic, ends in progress.end.items():
        for partition, end in ends.items():
            start = progress.start.get(topic, {}).get(partition, 0)
            at = committed.get((topic, partition), start)
            if at < end:
                late[topic, partition] = at, end
    settings = client_settings(config.kafka.bootstrap, config.client_options())
    faults = []
    for topic, partition in sorted(_with_records(settings, late)):
        at, end = late[topic, partition]
        faults.append(
            f'consumer group "{config.service.name}" stands at offset {at} of {topic}-{partition}, but the '
            f"checkpoint is through with all below {end}: the group's offsets were set back or have expired; "
            f"set this one to {end} with kafka-consumer-groups --reset-offsets, or start anew with another "
            "service.name and service.checkpoint"
        )
    return faults


def _with_records(settings: Settings, ranges: dict[InputPartition, tuple[int, int]]) -> set[InputPartition]:
    """Those sources that hold a committed record in their range of offsets.

    Markers that end transactions take an offset too, as do aborted records: a group rightly stands before.
    """
    if not ranges:
        return set()
    with RangeReader(settings, "replayfilter-preflight", offset_reset="earliest") as reader:
        return {
            partition_of(message) for message in reader.read(ranges, per_partition=1, silence_s=READ_LIMIT_S)
        }
