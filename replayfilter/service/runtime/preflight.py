"""The checks before a start, so that whatever can't work is reported at once and in plain messages.

Errors prevent the start, warnings don't. Every request to Kafka has a time limit.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from replayfilter.core.input_partition import InputPartition
from replayfilter.errors import BrokerError, CheckpointDamaged, CheckpointError, StorageError
from replayfilter.kafka.admin import Cluster, Topic
from replayfilter.kafka.client_settings import Settings, client_settings
from replayfilter.kafka.offsets import FIRST
from replayfilter.kafka.permissions import missing_permissions
from replayfilter.kafka.producer_limits import BATCH_SIZE
from replayfilter.kafka.reader import RangeReader, partition_of
from replayfilter.service.config.model import Config
from replayfilter.service.runtime.checkpoint import (
    DECISIONS,
    IDENTITY,
    REBUILDING,
    SPARK,
    Identity,
    Offsets,
    differences,
    identity_of,
    local_folder,
    open_checkpoint,
    progress_to,
    spark_progress,
    unfinished_batch,
    unwritable,
)
from replayfilter.service.runtime.output_topics import too_strict
from replayfilter.spark.checkpoint_folder import CheckpointFolder
from replayfilter.spark.first_offsets import offsets_by_topic

READ_LIMIT_S = 20.0
SHOWN_PARTITIONS = 20  # in one message


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of the checks. Without ``errors`` the service may start with ``identity``.

    ``topics``: every topic of the config, by name. ``starting``: the offsets to start at, if they aren't
    those of the config or the checkpoint; with a checkpoint, the offsets to commit where they are gone.
    """

    errors: list[str]
    warnings: list[str] = field(default_factory=list)
    identity: Identity | None = None
    topics: dict[str, Topic] = field(default_factory=dict)
    starting: Offsets | None = None


def inspect(config: Config, from_committed: bool, uncommitted: str | None = None) -> Findings:
    """Check the checkpoint, the topics, the config against the state, and the committed offsets.

    ``from_committed``: continue at the committed offsets if the checkpoint is lost. ``uncommitted``: where to
    continue then in partitions that have none, "earliest" or "latest".

    Finds as many problems as possible in one go. A step that depends on an earlier one is left out if that
    one found errors. Raises CheckpointDamaged, the last of all, if Spark's logs can't be read.
    """
    errors: list[str] = []
    warnings: list[str] = []

    # 1. The checkpoint folder must be writable, and it must be empty or hold a checkpoint of this program.
    checkpoint = _open_checkpoint(config, errors)
    kept, started = _read_identity(checkpoint, errors) if checkpoint else (None, False)

    # 2. The service must be allowed to use its topics and its group, and all topics must exist. An output
    # topic that may cause trouble later is a warning.
    try:
        cluster = Cluster(config.kafka.bootstrap, config.client_options())
        cluster_id = cluster.id
        outputs = config.output_topics().values()
        if refused := missing_permissions(cluster, config.input.topics, outputs, config.service.name):
            return Findings([*errors, *refused])
        topics = cluster.topics([*config.input.topics, *outputs])
    except BrokerError as error:
        return Findings([*errors, str(error)])
    errors += _missing_topics(config, topics)
    if errors or checkpoint is None:
        return Findings(errors)
    settings = _topic_settings(config, cluster)
    warnings += _uneven_partitions(config, topics) + _strict_outputs(config, settings)
    errors += _large_batches(config, settings)

    # 3. The config must fit the state in the checkpoint.
    ids = {name: topics[name].id for name in config.input.topics}
    identity = identity_of(config, cluster_id, ids, core_count(config.service.master), kept)
    errors += differences(kept, identity) if kept else _unknown_shard_count(config)
    if errors:
        return Findings(errors, warnings)

    # 4. The committed offsets of the consumer group must fit the checkpoint.
    starting = None
    try:
        inputs = [(name, part) for name in config.input.topics for part in range(topics[name].partitions)]
        # After a kill during a delivery, stable offsets would be available only after the next start.
        entries = cluster.committed_entries(config.service.name, inputs, stable=False)
        committed = {partition: entry.offset for partition, entry in entries.items()}
        delivered = {at: entry.offset for at, entry in entries.items() if entry.metadata != FIRST}
        if started:
            errors += _group_behind(config, cluster, checkpoint, committed)
            missing = _offsets_gone(config, cluster, checkpoint, committed, errors, warnings)
            starting = offsets_by_topic(missing) or None
            if from_committed:
                warnings.append("--from-committed has no effect: there is a checkpoint, and it is used")
        elif delivered and not from_committed:
            errors.append(_checkpoint_lost(config, delivered))
        elif committed:
            unknown = [partition for partition in inputs if partition not in committed]
            chosen = _begin_of_unknown(config, cluster, unknown, uncommitted, errors) if delivered else {}
            starting = offsets_by_topic(committed | chosen)
    except CheckpointDamaged:
        raise
    except (BrokerError, CheckpointError, StorageError) as error:
        errors.append(str(error))
    return Findings(errors, warnings, identity, topics, starting)


def core_count(master: str) -> int:
    """The number of cores of a local master; 0 for a cluster, since its size is not known here.

    >>> core_count("local[3]"), core_count("local"), core_count("yarn")
    (3, 1, 0)
    """
    match = re.match(r"local(?:\[(\*|\d+))?", master)
    if not match:
        return 0
    if match[1] == "*":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(match[1] or 1)


# ---- topics ------------------------------------------------------------------------------------------


def _missing_topics(config: Config, topics: dict[str, Topic]) -> list[str]:
    missing_inputs = [
        f'input.topics: there is no topic "{name}" at {config.kafka.bootstrap}; create it or correct the name'
        for name in config.input.topics
        if name not in topics
    ]
    return missing_inputs + [
        f'{path}: there is no topic "{name}" at {config.kafka.bootstrap}; create missing topics with: '
        "replayfilter topics CONFIG"
        for path, name in config.output_topics().items()
        if name not in topics
    ]


def _uneven_partitions(config: Config, topics: dict[str, Topic]) -> list[str]:
    """Records go to the input partition % count, so any count works. Different counts are rarely intended."""
    most = max(topics[name].partitions for name in config.input.topics)
    warnings = []
    for path, name in config.output_topics().items():
        count = topics[name].partitions
        if count < most:
            warnings.append(
                f"{path}: {name} has {count} partitions, the input has {most}, so some output partitions "
                "receive several input partitions; the order within each is kept, but their records are mixed"
            )
        elif count > most:
            warnings.append(
                f"{path}: {name} has {count} partitions, the input has {most}, so {count - most} stay empty"
            )
    return warnings


def _topic_settings(config: Config, cluster: Cluster) -> dict[str, dict[str, str]]:
    """The settings of all topics; empty if they may not be read, so that there is nothing to compare."""
    try:
        return cluster.settings([*config.input.topics, *config.output_topics().values()])
    except BrokerError:
        return {}


def _strict_outputs(config: Config, settings: dict[str, dict[str, str]]) -> list[str]:
    """Output topics that would refuse records that the input topics accept. Delivery would stop there."""
    inputs = [settings[name] for name in config.input.topics if name in settings]
    return [
        f"{path}: topic {name} has {clause}: such a record would stop delivery; change it with kafka-configs"
        for path, name in config.output_topics().items()
        if name in settings
        for clause in too_strict(inputs, settings[name])
    ]


def _large_batches(config: Config, settings: dict[str, dict[str, str]]) -> list[str]:
    """A batch.size of the user's that an output topic does not take."""
    size = config.client_options().get(BATCH_SIZE)
    return [
        f"kafka.options.{BATCH_SIZE} = {size}: {path} = {name} takes batches of at most "
        f"{limit} bytes (max.message.bytes of the topic); set it to at most that, or remove it"
        for path, name in config.output_topics().items()
        if name in settings and size is not None
        if int(size) > (limit := int(settings[name]["max.message.bytes"]))
    ]


# ---- checkpoint --------------------------------------------------------------------------------------


def _unknown_shard_count(config: Config) -> list[str]:
    """The default is one shard per core, but a cluster's cores are not known at the first start."""
    if config.service.shards or core_count(config.service.master):
        return []
    return [
        f"service.shards: missing; the number of cores of {config.service.master} is not known before the "
        "start, so set the shards under [service], for example shards = 16"
    ]


def _open_checkpoint(config: Config, errors: list[str]) -> CheckpointFolder | None:
    try:
        checkpoint = open_checkpoint(config)
        checkpoint.write(".writable", b"")
        checkpoint.remove(".writable")
    except OSError as error:
        errors.append(unwritable(local_folder(config.service.checkpoint), error))
        return None
    except StorageError as error:
        errors.append(str(error))
        return None
    return checkpoint


def _read_identity(checkpoint: CheckpointFolder, errors: list[str]) -> tuple[Identity | None, bool]:
    """The checkpoint's identity, and whether Spark has planned a batch in it."""
    started = bool(checkpoint.names(f"{SPARK}/offsets"))
    content = checkpoint.read(IDENTITY)
    if content is None:
        if checkpoint.read(REBUILDING) is not None:
            errors.append("service.checkpoint: a rebuild was interrupted; run: replayfilter rebuild CONFIG")
        elif started or checkpoint.names("offsets") or checkpoint.names("commits"):
            errors.append(
                f"service.checkpoint: it holds Spark's files but no {IDENTITY}, so it belongs to another "
                "query or is damaged; set another folder"
            )
        return None, started
    try:
        return Identity.from_bytes(content), started
    except CheckpointError as error:
        errors.append(f"service.checkpoint: {error}")
        return None, started


def _checkpoint_lost(config: Config, committed: dict[InputPartition, int]) -> str:
    first = sorted(committed.items())[:3]
    some = ", ".join(f"{topic}-{part} up to {offset}" for (topic, part), offset in first)
    more = ", ..." if len(committed) > 3 else ""
    return (
        f"service.checkpoint = {config.service.checkpoint}: is empty, but according to Kafka service "
        f'"{config.service.name}" has delivered records ({some}{more}); write a new one from what the topics '
        "still have with: replayfilter rebuild CONFIG, or continue from these offsets with --from-committed: "
        "no input record is delivered twice, but the remembered keys and marks are lost, so replays and "
        "duplicates of earlier records count as unique"
    )


def _group_behind(
    config: Config, cluster: Cluster, checkpoint: CheckpointFolder, committed: dict[InputPartition, int]
) -> list[str]:
    """Errors for partitions whose committed offset is behind records that the checkpoint has finished.

    These records were delivered, since Spark finishes a batch only after its delivery. So the group's offsets
    were set back. Then they no longer say what a repeated batch must leave out.
    """
    progress = spark_progress(checkpoint)
    if progress is None:
        return []
    settings = client_settings(config.kafka.bootstrap, config.client_options())
    seemingly = _with_records(settings, _ranges_behind(committed, progress.end))
    behind = _ranges_behind(_settled(config, cluster, seemingly), progress.end)
    errors = []
    for topic, number in sorted(_with_records(settings, behind)):
        offset, end = behind[topic, number]
        errors.append(
            f'consumer group "{config.service.name}" is at offset {offset} of {topic}-{number}, but the '
            f"checkpoint has finished all records below {end}: the group's offsets were set back; set this "
            f"one to {end} with kafka-consumer-groups --reset-offsets, or start with a new service.name and "
            "service.checkpoint"
        )
    return errors


def _ranges_behind(
    committed: dict[InputPartition, int], ends: dict[InputPartition, int]
) -> dict[InputPartition, tuple[int, int]]:
    """From the committed offset to the end, for each partition that is behind it."""
    return {at: (committed[at], end) for at, end in ends.items() if at in committed and committed[at] < end}


def _settled(config: Config, cluster: Cluster, partitions: set[InputPartition]) -> dict[InputPartition, int]:
    """The committed offsets of partitions that seem to be behind the checkpoint.

    Kafka confirms a commit before the offsets in it count, so right after a kill they may still be pending.
    No other transaction can be open here: a lane reads these offsets before its next one.
    """
    return cluster.committed(config.service.name, partitions)


def _offsets_gone(
    config: Config,
    cluster: Cluster,
    checkpoint: CheckpointFolder,
    committed: dict[InputPartition, int],
    errors: list[str],
    warnings: list[str],
) -> dict[InputPartition, int]:
    """The offsets to commit for partitions that have none any more, although the checkpoint knows them.

    Kafka deletes a group's offsets if it has no member for ``offsets.retention.minutes``. Where the
    checkpoint has finished everything, its end is right. What an unfinished batch has delivered, only the
    lost offset could say.
    """
    finished, batch = spark_progress(checkpoint), unfinished_batch(checkpoint)
    planned = progress_to(checkpoint, batch) if batch is not None else finished
    if planned is None:
        return {}
    begin = planned.start | (finished.end if finished else {})
    missing = {partition: begin.get(partition, 0) for partition in planned.end if partition not in committed}
    # Every start since decisions.json exists has committed an offset for each partition.
    always_had_one = checkpoint.read(DECISIONS) is not None
    at_risk = {
        partition: (offset, planned.end[partition])
        for partition, offset in missing.items()
        if planned.end[partition] > offset and (always_had_one or offset > planned.start.get(partition, 0))
    }
    settings = client_settings(config.kafka.bootstrap, config.client_options())
    gone = _with_records(settings, at_risk)
    settled = _settled(config, cluster, gone)
    missing = {partition: offset for partition, offset in missing.items() if partition not in settled}
    for topic, number in sorted(gone - settled.keys()):
        first, end = at_risk[topic, number]
        errors.append(
            f'consumer group "{config.service.name}" has no committed offset for {topic}-{number} any more, '
            f"and batch {batch} is unfinished: nobody can say which of its records from {first} to {end - 1} "
            f"were delivered; set the offset with kafka-consumer-groups --reset-offsets, to {first} to "
            f"deliver them (perhaps again) or to {end} to leave them out"
        )
    read = {at: (planned.start.get(at, 0), offset) for at, offset in missing.items() if offset}
    if expired := sorted(_with_records(settings, read)):
        warnings.append(
            f'consumer group "{config.service.name}" has no committed offset for {_listed(expired)} any '
            "more: they have expired; the offsets that the checkpoint has finished are committed again"
        )
    return missing


def _begin_of_unknown(
    config: Config,
    cluster: Cluster,
    unknown: list[InputPartition],
    uncommitted: str | None,
    errors: list[str],
) -> dict[InputPartition, int]:
    """Where to begin in the partitions without a committed offset, if others have one."""
    begins, ends = cluster.beginning_offsets(unknown), cluster.end_offsets(unknown)
    holding = sorted(partition for partition in unknown if ends[partition] > begins[partition])
    if holding and uncommitted is None:
        errors.append(
            f'consumer group "{config.service.name}" has no committed offset for '
            f"{_listed(holding)}, so it is not known what was delivered of them; begin there with "
            "--uncommitted earliest (records may be delivered twice) or --uncommitted latest (records may be "
            "left out)"
        )
    return ends if uncommitted == "latest" else begins


def _listed(partitions: list[InputPartition]) -> str:
    shown = ", ".join(f"{topic}-{number}" for topic, number in partitions[:SHOWN_PARTITIONS])
    more = len(partitions) - SHOWN_PARTITIONS
    return f"{shown} and {more} more" if more > 0 else shown


def _with_records(settings: Settings, ranges: dict[InputPartition, tuple[int, int]]) -> set[InputPartition]:
    """The partitions that have a committed record in their range of offsets.

    Transaction markers and aborted records take offsets too, so a group may rightly be behind those.
    """
    if not ranges:
        return set()
    with RangeReader(settings, "replayfilter-preflight", offset_reset="earliest") as reader:
        return {
            partition_of(message) for message in reader.read(ranges, per_partition=1, silence_s=READ_LIMIT_S)
        }
