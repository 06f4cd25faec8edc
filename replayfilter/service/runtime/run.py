"""One execution of the service: the query, what monitors it, and what its progress is reported to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from replayfilter.core.input_partition import InputPartition
from replayfilter.core.watermark.watermark_state import WatermarkRules
from replayfilter.errors import ConfigError
from replayfilter.kafka.admin import Topic
from replayfilter.kafka.client_settings import client_settings
from replayfilter.kafka.membership import Membership
from replayfilter.service.config.model import Config
from replayfilter.service.monitor.batch import Batch, read_batch
from replayfilter.service.monitor.lag_poller import LagPoller
from replayfilter.service.monitor.status import Status
from replayfilter.service.monitor.storage import EVERY_SECONDS, EVERY_SECONDS_ELSEWHERE, StoragePoller
from replayfilter.service.monitor.topics_poller import TopicsPoller
from replayfilter.service.runtime.checkpoint import SPARK, spark_progress
from replayfilter.service.runtime.decisions import RecordedDecisions, UnknownSchemasPoller
from replayfilter.service.runtime.plan import with_topics
from replayfilter.service.runtime.preflight import Findings
from replayfilter.service.runtime.reporting.batch_spans import BatchSpans, batch_spans
from replayfilter.service.runtime.reporting.console import Reporter
from replayfilter.service.runtime.reporting.json_log import JsonLog
from replayfilter.service.runtime.roster_poller import RosterPoller
from replayfilter.service.runtime.supervision import StopSignals, Supervisor
from replayfilter.settings.variables import expand
from replayfilter.spark.checkpoint_folder import CheckpointFolder, LocalFolder
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.query import Progress, Service
from replayfilter.watermark.api import Laggards as ReportedLaggards
from replayfilter.watermark.client import WatermarkClient


def serve(
    config: Config,
    plan: PipelineSettings,
    findings: Findings,
    checkpoint: CheckpointFolder,
    reporter: Reporter | JsonLog,
    signals: StopSignals,
    once: bool,
    shared: Sequence[int],
) -> None:
    """Run the service until it ends, and raise the error that ended it if there is one.

    ``shared``: file descriptors that the JVM inherits, such as that of the checkpoint's lock.
    """
    status = Status(config.service.name, config.http.stale_after / 1e6, shown_config(config), time.time())
    with ExitStack() as running:
        # What observes the service: the watermark servers, the status page with its pollers, spans, the log.
        client = _connect_watermark(config, running)
        if config.http.port:
            _start_monitoring(config, plan, checkpoint, status, reporter, running)
        spans = batch_spans(config.service.name, reporter.warning)
        if spans is not None:
            running.enter_context(spans)
        running.enter_context(reporter)

        # The service itself.
        on_batch = _batch_handler(config.service.name, status, reporter, client, spans)
        settings = client_settings(config.kafka.bootstrap, config.client_options())
        membership = running.enter_context(Membership(settings, plan.service, plan.topics))
        begun = RecordedDecisions(checkpoint, reporter.info)
        query = Service(plan, [on_batch], shared, begun, membership)
        if not once:
            _follow_roster_files(config, plan, query, reporter, running)
            _follow_topics(plan, findings, query, reporter, running)
            if plan.keys.schemas is not None and plan.keys.schemas.registry:
                running.enter_context(UnknownSchemasPoller(query, reporter.info))
        Supervisor(query, signals, status, reporter.warning).run(once)


def _connect_watermark(config: Config, running: ExitStack) -> WatermarkClient | None:
    """A client of the watermark servers, closed when the service ends; None if the config names none."""
    if not (config.watermark.enabled and config.watermark.servers):
        return None
    token = expand(config.watermark.token)
    client = WatermarkClient(config.watermark.servers, token, app=config.watermark.app)
    running.callback(client.close)
    return client


def _start_monitoring(
    config: Config,
    plan: PipelineSettings,
    checkpoint: CheckpointFolder,
    status: Status,
    reporter: Reporter | JsonLog,
    running: ExitStack,
) -> None:
    """Start the HTTP server, and the pollers for what Spark's progress doesn't contain."""
    from replayfilter.service.monitor.http import StatusServer  # quicker to start without HTTP

    server = running.enter_context(StatusServer(status, config.http.bind, config.http.port))
    finished = _finished_offsets(checkpoint)
    running.enter_context(LagPoller(plan, status, finished, reporter.warning))
    every = EVERY_SECONDS if isinstance(checkpoint, LocalFolder) else EVERY_SECONDS_ELSEWHERE
    running.enter_context(StoragePoller(checkpoint, SPARK, status.set_storage, every))
    reporter.info(f"status page and metrics: http://{config.http.host}:{server.port}/")


def _batch_handler(
    service: str,
    status: Status,
    reporter: Reporter | JsonLog,
    client: WatermarkClient | None,
    spans: BatchSpans | None,
) -> Callable[[Progress], None]:
    """What is called with Spark's progress after each batch."""
    warned = False

    def on_batch(progress: Progress) -> None:
        nonlocal warned
        batch = read_batch(progress, time.time())
        status.add_batch(batch)
        reporter.batch(batch)
        if spans is not None:
            spans.send(batch)
        unlikely = batch.counts.get("unlikely_stamps", 0)
        if unlikely and not warned:
            warned = True
            reporter.warning(
                f"warning: {unlikely} records of batch {batch.number} have 20 bytes where the stamp should "
                "be, but not a stamp, for example a SHA-1: records with equal keys are dropped as replays; "
                'set input.stamp = "header" if the stamps are in the header rf-stamp, otherwise '
                'replay.enabled = false and input.stamp = "none"'
            )
        if client is not None:
            report_watermark(client, service, batch)

    return on_batch


def _follow_roster_files(
    config: Config, plan: PipelineSettings, query: Service, reporter: Reporter | JsonLog, running: ExitStack
) -> None:
    """Restart the query with the new rules whenever a roster file changes."""
    if plan.rules.watermark is None:
        return

    def restart_with(rules: WatermarkRules) -> None:
        def change(now: PipelineSettings) -> PipelineSettings:
            partitions = now.rules.watermark.partitions if now.rules.watermark else rules.partitions
            current = replace(rules, partitions=partitions)  # the topics may have got more since
            return replace(now, rules=replace(now.rules, watermark=current))

        query.restart_with(change)

    running.enter_context(
        RosterPoller(config.watermark, plan.rules.watermark, restart_with, reporter.info, reporter.warning)
    )


def _follow_topics(
    plan: PipelineSettings,
    findings: Findings,
    query: Service,
    reporter: Reporter | JsonLog,
    running: ExitStack,
) -> None:
    """Restart the query when topics get more partitions, and end it when a topic is gone.

    The source reads new input partitions without a restart. But outputs, their pids and a watermark that
    waits for each input partition take the counts from the settings. Until they change, records go where they
    went before, with the pids of that count.
    """
    identity = findings.identity
    assert identity is not None, "a service that starts has one"

    def changed(topics: Mapping[str, Topic]) -> None:
        def change(now: PipelineSettings) -> PipelineSettings:
            return with_topics(now, identity.cluster_id, topics)

        if change(query.settings) != query.settings:
            query.restart_with(change)

    def gone(problems: list[str]) -> None:
        def refuse(_: PipelineSettings) -> PipelineSettings:
            raise ConfigError(problems)

        query.restart_with(refuse)

    running.enter_context(TopicsPoller(plan, findings.topics, changed, gone, reporter.info))


def report_watermark(client: WatermarkClient, stage: str, batch: Batch) -> None:
    """Report a finished batch to the watermark servers: first the whole stage, then each input partition.

    This order matters: the servers must not know a partition's watermark before they know the stage's, which
    is the smallest of them. A partition has a watermark of its own only if its records carry one. If origins
    are counted, they are counted over all partitions.
    """
    found = batch.laggards
    lows: dict[str, int] = {}
    if found is not None:
        laggards = None
        if found.expected:
            laggards = ReportedLaggards(found.lagging, found.may_lag, dict(found.slowest), found.front)
        client.report(stage, low=found.low, laggards=laggards)
        if found.low is not None:
            lows = {f"{topic}-{partition}": low for topic, partition, low in found.lows}
    for topic, partitions in batch.backlog.items():
        for partition, backlog in partitions.items():
            name = f"{topic}-{partition}"
            client.report(stage, name, low=lows.get(name), backlog=backlog)


def shown_config(config: Config) -> dict[str, Any]:
    """The config for display: client settings without their values, which may be secrets."""
    shown: dict[str, Any] = config.model_dump(mode="json")
    for section in shown.values():
        if section.get("token"):
            section["token"] = "***"
        if "options" in section:
            section["options"] = dict.fromkeys(section["options"], "***")
    return shown


def _finished_offsets(checkpoint: CheckpointFolder) -> dict[InputPartition, int]:
    progress = spark_progress(checkpoint)
    return progress.end if progress else {}
