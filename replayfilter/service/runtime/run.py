"""One run of the service: the query, who watches it, and who tells of it, put together."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from replayfilter.core.watermark.watermark_state import WatermarkRules
from replayfilter.kafka.chunk import InputPartition
from replayfilter.service.config.checks import VARIABLE
from replayfilter.service.config.model import Config
from replayfilter.service.monitor.batch import Batch, read_batch
from replayfilter.service.monitor.lag import LagWatch
from replayfilter.service.monitor.status import Status
from replayfilter.service.monitor.storage import StorageWatch
from replayfilter.service.runtime.checkpoint import SPARK, Files, local_folder, spark_progress
from replayfilter.service.runtime.console import Reporter
from replayfilter.service.runtime.json_log import JsonLog
from replayfilter.service.runtime.preflight import Findings
from replayfilter.service.runtime.roster_watch import RosterWatch
from replayfilter.service.runtime.supervision import StopSignals, Supervisor
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.query import Progress, Service
from replayfilter.watermark.api import Laggards as Told
from replayfilter.watermark.client import WatermarkClient


def serve(
    config: Config,
    plan: PipelineSettings,
    findings: Findings,
    files: Files,
    reporter: Reporter | JsonLog,
    signals: StopSignals,
    once: bool,
    lock: int,
) -> None:
    """Run to the end, with health and metrics if the config wants them; raises what it failed with.

    ``lock``: the descriptor of the checkpoint's lock, for the JVM.
    """
    stale_after = config.http.stale_after / 1e6
    status = Status(config.service.name, stale_after, shown_config(config), time.time())

    def on_batch(progress: Progress) -> None:
        batch = read_batch(progress, time.time())
        status.batch(batch)
        reporter.batch(batch)
        if client is not None:
            report(client, config.service.name, batch)

    with ExitStack() as held:
        client = None
        if config.watermark.enabled and config.watermark.servers:
            token = VARIABLE.sub(lambda found: os.environ[found[1]], config.watermark.token)
            client = WatermarkClient(config.watermark.servers, token)
            held.callback(client.close)
        if config.http.port:
            from replayfilter.service.monitor.http import StatusServer

            server = held.enter_context(StatusServer(status, config.http.bind, config.http.port))
            lag = LagWatch(plan, findings.partitions, status, _finished(files), reporter.warn)
            held.enter_context(lag)
            if (folder := local_folder(config.service.checkpoint)) is not None:
                held.enter_context(StorageWatch(folder / SPARK, status.stored))
            reporter.say(f"status page and metrics: http://{config.http.host}:{server.port}/")
        held.enter_context(reporter)
        service = Service(plan, [on_batch], [lock])

        def restart_with(rules: WatermarkRules) -> None:
            service.restart_with(replace(plan, rules=replace(plan.rules, watermark=rules)))

        if plan.rules.watermark is not None and not once:
            rosters = RosterWatch(
                config.watermark, plan.rules.watermark, restart_with, reporter.say, reporter.warn
            )
            held.enter_context(rosters)
        Supervisor(service, signals, status, reporter.warn).run(once)


def report(client: WatermarkClient, stage: str, batch: Batch) -> None:
    """Tell the watermark servers of a finished batch: the service as a whole, then each input partition.

    In this order, so that no partition's watermark is known there before the smallest of them. A partition
    has one only where the input carries it: where origins are counted, they count over all partitions.
    """
    found = batch.laggards
    lows: dict[str, int] = {}
    if found is not None:
        told = (
            Told(found.lagging, found.may_lag, dict(found.slowest), found.front) if found.expected else None
        )
        client.report(stage, low=found.low, laggards=told)
        if found.low is not None:
            lows = {f"{topic}-{partition}": low for topic, partition, low in found.lows}
    for topic, partitions in batch.backlog.items():
        for partition, backlog in partitions.items():
            name = f"{topic}-{partition}"
            client.report(stage, name, low=lows.get(name), backlog=backlog)


def shown_config(config: Config) -> dict[str, Any]:
    """The config for people: the names of client settings without their values, which may be secrets."""
    shown: dict[str, Any] = config.model_dump(mode="json")
    for section in shown.values():
        if section.get("token"):
            section["token"] = "***"
        if "options" in section:
            section["options"] = dict.fromkeys(section["options"], "***")
    return shown


def _finished(files: Files) -> dict[InputPartition, int]:
    progress = spark_progress(files)
    ends = progress.end if progress else {}
    return {(topic, part): end for topic, parts in ends.items() for part, end in parts.items()}
