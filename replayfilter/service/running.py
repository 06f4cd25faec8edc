"""One run of the service: the query, who watches it, and who tells of it, put together."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import Any

from replayfilter.kafka.runs import Source
from replayfilter.service.batch import read_batch
from replayfilter.service.checkpoint import SPARK, Files, local_folder, spark_progress
from replayfilter.service.checks import VARIABLE
from replayfilter.service.config import Config
from replayfilter.service.lag import LagWatch
from replayfilter.service.logs import JsonLog
from replayfilter.service.preflight import Findings
from replayfilter.service.progress import Reporter
from replayfilter.service.status import Status
from replayfilter.service.storage import StorageWatch
from replayfilter.service.supervision import StopSignals, Supervisor
from replayfilter.spark.plan import OBSERVED
from replayfilter.spark.query import Progress, Service
from replayfilter.spark.settings import PlanSettings
from replayfilter.watermark.client import WatermarkClient


def serve(
    config: Config,
    plan: PlanSettings,
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
        report_low(progress)

    def report_low(progress: Progress) -> None:
        low = int((progress.get("observedMetrics") or {}).get(OBSERVED, {}).get("watermark_us") or 0)
        if client is not None and low:
            client.report(config.service.name, low=low)

    with ExitStack() as held:
        client = None
        if config.watermark.enabled and config.watermark.servers:
            token = VARIABLE.sub(lambda found: os.environ[found[1]], config.watermark.token)
            client = WatermarkClient(config.watermark.servers, token)
            held.callback(client.close)
        if config.http.port:
            from replayfilter.service.http import StatusServer

            server = held.enter_context(StatusServer(status, config.http.bind, config.http.port))
            watch = LagWatch(plan, findings.partitions, status, _finished(files))
            watch.start()
            held.callback(watch.stop)
            if (folder := local_folder(config.service.checkpoint)) is not None:
                storage = StorageWatch(folder / SPARK, status.stored)
                storage.start()
                held.callback(storage.stop)
            reporter.say(f"status page and metrics: http://{config.http.host}:{server.port}/")
        held.enter_context(reporter)
        Supervisor(Service(plan, [on_batch], [lock]), signals, status, reporter.warn).run(once)


def shown_config(config: Config) -> dict[str, Any]:
    """The config for people: the names of client settings without their values, which may be secrets."""
    shown: dict[str, Any] = config.model_dump(mode="json")
    for section in shown.values():
        if section.get("token"):
            section["token"] = "***"
        if "options" in section:
            section["options"] = dict.fromkeys(section["options"], "***")
    return shown


def _finished(files: Files) -> dict[Source, int]:
    progress = spark_progress(files)
    ends = progress.end if progress else {}
    return {(topic, part): end for topic, parts in ends.items() for part, end in parts.items()}
