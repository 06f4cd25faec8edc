"""``replayfilter rebuild``: writes a new checkpoint from what Kafka still has of a service.

It reads the unique and duplicate topics, and the input up to the group's committed offsets, where the service
goes on. The checkpoint counts only when all of it is written: its identity comes last, and a service refuses
Spark's files without one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from replayfilter.core.clock.clocks import Clock
from replayfilter.errors import CheckpointError, ConfigError, UnknownSchemas
from replayfilter.kafka.admin import Cluster
from replayfilter.service.config.model import Config
from replayfilter.service.runtime.checkpoint import IDENTITY, REBUILDING, SPARK
from replayfilter.service.runtime.decisions import with_unknown
from replayfilter.service.runtime.plan import pipeline_settings_of
from replayfilter.service.runtime.preflight import Findings
from replayfilter.service.tools.own_stamps import own_pids
from replayfilter.service.tools.rebuild.rebuild_plan import (
    Reading,
    check_unmoved,
    plan_reading,
)
from replayfilter.service.tools.transactions.open_transactions import (
    await_end_of_service,
    end_transactions,
    find_open,
    own_ids,
)
from replayfilter.spark.checkpoint_folder import CheckpointFolder
from replayfilter.spark.rebuild_query import rebuild_state
from replayfilter.spark.recall import RecallSettings, needs_record_key


def check_rebuildable(config: Config, foreign: bool = False) -> None:
    """Raise ConfigError if the outputs of this config don't tell what must be remembered.

    ``foreign``: whether records of other programs count.
    """
    errors, dedup = [], config.dedup
    remedy = "this can't be rebuilt; continue with `replayfilter run CONFIG --from-committed`"
    if dedup.enabled and config.clock in (Clock.WATERMARK, Clock.CATEGORICAL):
        errors.append(
            f'dedup.clock = "{dedup.clock}": which '
            + ("origins have passed which time" if config.clock is Clock.WATERMARK else "categories are open")
            + f" is not in the output topics, so {remedy}"
        )
    without = 'output.stamp = "none"' if config.output.stamp == "none" else "--foreign" if foreign else ""
    if dedup.enabled and without:
        needs = ['dedup.scope = "partition"'] * (dedup.scope == "partition")
        needs += ["dedup.remember_first = true"] * dedup.remember_first
        errors += [
            f"{need}: with {without} nothing says where a record was in the input, so {remedy}"
            for need in needs
        ]
    if dedup.enabled and config.output.stamp == "key" and needs_record_key(dedup.key, config.input.format):
        errors.append(
            'dedup.key: it is made from "@key", which is not in the output topics, where the key is this '
            f'service\'s stamp (output.stamp = "key"), so {remedy}'
        )
    if errors:
        raise ConfigError(errors)


def prepare_checkpoint(checkpoint: CheckpointFolder) -> None:
    """Remove what an interrupted rebuild has left. Raises CheckpointError if there is a whole checkpoint."""
    if checkpoint.read(IDENTITY) is not None:
        raise CheckpointError(
            f"service.checkpoint = {checkpoint.location}: there is a checkpoint already, and a rebuild "
            "changes none; set another service.checkpoint, or move this folder away"
        )
    if checkpoint.read(REBUILDING) is not None:
        _remove_spark(checkpoint)
        checkpoint.remove(REBUILDING)


def rebuild(
    config: Config,
    findings: Findings,
    checkpoint: CheckpointFolder,
    console: Console,
    shared: Sequence[int] = (),
    log_level: str = "off",
    foreign: bool = False,
) -> None:
    """Write the checkpoint and print what is in it, and what could not be known.

    ``foreign``: whether records of other programs count. ``findings`` must be without errors.

    Raises BrokerError if a service of this name is alive, or if Kafka fails; CheckpointError if nothing was
    delivered, or if the group's offsets move meanwhile.
    """
    assert findings.identity is not None
    plan = replace(pipeline_settings_of(config, findings), log_level=log_level)
    cluster = Cluster(config.kafka.bootstrap, config.client_options())
    why = "this rebuild would not know what it delivers"
    await_end_of_service(cluster, config.service.name, why, console.print)
    end_transactions(config, own_ids(config, find_open(config, cluster), plan.lanes))
    reading = plan_reading(config, findings, cluster)
    topics, outputs = findings.topics, config.output_topics().values()
    pids = own_pids(cluster.id, config.service.name, topics, config.input.topics, outputs)
    settings = RecallSettings(
        pipeline=plan,
        time_us=time.time_ns() // 1000,
        inputs=tuple(sorted(reading.ends)),
        pids={pid: known.input_topic for pid, known in pids.items()},
        foreign=foreign,
    )
    checkpoint.write(REBUILDING, b"")
    counted = _rebuild(settings, reading, checkpoint, console, shared)
    check_unmoved(config, cluster, reading)
    checkpoint.write(IDENTITY, findings.identity.to_bytes())
    checkpoint.remove(REBUILDING)
    for line in summary(counted, reading, settings):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def summary(counted: dict[str, int], reading: Reading, settings: RecallSettings) -> list[str]:
    """Sentences about what the checkpoint has, and about what could not be known."""
    plan = settings.pipeline
    sources = counted.get("sources_in_shards", 0) // plan.shards
    read = f"{counted.get('outputs', 0):,} delivered and {counted.get('input', 0):,} input records"
    kept = f"{counted.get('keys', 0):,} keys and {sources:,} sources"
    lines = [
        f"rebuilt from {read}: {kept} in {plan.shards} shards",
        *reading.notes,
    ]
    foreign = f"{counted.get('foreign', 0):,} records in the output topics have no stamp of this service"
    wrong = f"{counted.get('unreadable', 0):,} delivered records have no key by this config"
    nulls = f"{counted.get('null_ages', 0):,} keys are of null values, whose ages are known only about"
    treated = "remembered like the others" if settings.foreign else "left out"
    lines += [f"{foreign}: {treated}"] * bool(counted.get("foreign"))
    lines += [f"{wrong}: not remembered"] * bool(counted.get("unreadable"))
    lines += [nulls] * bool(counted.get("null_ages"))
    if counted.get("sources_in_shards"):
        lines.append("each source counts as seen now; marks changed with `replayfilter state` are not known")
    if sources > plan.rules.max_sources:
        lines.append(
            f"replay.max_sources = {plan.rules.max_sources}: there are more, perhaps because marks were "
            "forgotten before; raise it, since the service accepts no new source otherwise"
        )
    if plan.rules.watermark is not None:
        lines.append("the low watermark starts again from nothing")
    return lines


def _rebuild(
    settings: RecallSettings,
    reading: Reading,
    checkpoint: CheckpointFolder,
    console: Console,
    shared: Sequence[int],
) -> dict[str, int]:
    """Run the query; again for schemas that the registry doesn't know, whose records are errors."""
    columns = (TextColumn("rebuilding"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("rebuilding", total=None)

        def on_progress(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        while True:
            try:
                return rebuild_state(settings, reading.ranges, reading.ends, on_progress, shared)
            except UnknownSchemas as error:
                _remove_spark(checkpoint)
                settings = replace(settings, pipeline=with_unknown(settings.pipeline, error.ids))


def _remove_spark(checkpoint: CheckpointFolder) -> None:
    if checkpoint.names(SPARK):
        checkpoint.remove(SPARK)
