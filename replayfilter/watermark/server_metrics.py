"""The metrics of the watermark server. docs/reference/metrics.md describes each; a test compares the two.

All values are read from the last snapshot at scrape time. A standby has no snapshot, so it gives no values of
stages. No label can grow without limit: applications, stages and paths are fixed when the server starts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

import numpy as np
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.watermark.api import HeldBack, RequestError
from replayfilter.watermark.responses import errors_of, find_laggards, held_back
from replayfilter.watermark.snapshots import Snapshot, StageSnapshot
from replayfilter.watermark.writer import TableWriter

PREFIX = "replayfilter_watermark_"
ORIGINS = ("expected", "heard", "idle", "lagging")
HELD_BY: tuple[str, ...] = get_args(get_type_hints(HeldBack)["by"])

# The possible values of each label. None: not listed, but fixed by the config or the routes.
LABELS: dict[str, tuple[str, ...] | None] = {
    "app": None,
    "stage": None,
    "path": None,
    "code": None,
    "origins": ORIGINS,
    "by": HELD_BY,
}


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one scrape reads: ``snapshots``, by application, None on a standby; ``now_us``: its time.

    ``requests``: by path and HTTP status, since the start.
    """

    writer: TableWriter
    requests: Counter[tuple[str, int]]
    snapshots: Mapping[str, Snapshot] | None
    now_us: int

    def stages(self) -> Iterator[tuple[str, str, StageSnapshot]]:
        """All stages with the names of their applications and their own."""
        for app, snapshot in (self.snapshots or {}).items():
            yield from ((app, name, stage) for name, stage in snapshot.stages.items())


Samples = Iterable[tuple[tuple[str, ...], float | None]]  # label values and value; None if it is not known
Read = Callable[[Scrape], Samples]


@dataclass(frozen=True, slots=True)
class ServerMetric:
    """One metric: ``read`` returns pairs of label values and value."""

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    meaning: str
    read: Read
    labels: tuple[str, ...] = ()


def _each_stage(value: Callable[[StageSnapshot, Scrape], float | None]) -> Read:
    def read(scrape: Scrape) -> Samples:
        return [((app, name), value(stage, scrape)) for app, name, stage in scrape.stages()]

    return read


def _seconds(time_us: int | None) -> float | None:
    return None if time_us is None or time_us == UNKNOWN else time_us / 1e6


def _behind(stage: StageSnapshot, scrape: Scrape) -> float | None:
    known = UNKNOWN not in (stage.largest_time, stage.lows.output)
    return (stage.largest_time - stage.lows.output) / 1e6 if known else None


def _age(stage: StageSnapshot, scrape: Scrape) -> float | None:
    low = stage.lows.output
    return None if low == UNKNOWN else (scrape.now_us - low) / 1e6


def _unmoved(stage: StageSnapshot, scrape: Scrape) -> float:
    since = scrape.writer.active_since_us if stage.moved_us is None else stage.moved_us
    return max(0, scrape.now_us - since) / 1e6


def _backlog(stage: StageSnapshot, scrape: Scrape) -> float | None:
    known = [part.backlog for part in stage.partitions.values() if part.backlog is not None]
    return sum(known) if known else None


def _origins(scrape: Scrape) -> Samples:
    for app, name, stage in scrape.stages():
        if stage.config.has_roster:
            low = UNKNOWN if stage.roster_low is None else stage.roster_low
            active = int(stage.active.sum())
            counts = {
                "expected": len(stage.names),
                "heard": int(np.count_nonzero(stage.progress != UNKNOWN)),
                "idle": len(stage.names) - active,
                "lagging": int(np.count_nonzero(stage.active & (stage.progress <= low))),
            }
            yield from (((app, name, each), float(counts[each])) for each in ORIGINS)
        elif (found := find_laggards(stage)) is not None:
            yield (app, name, "lagging"), float(found[1].lagging)


def _may_lag(stage: StageSnapshot, scrape: Scrape) -> float | None:
    if stage.config.has_roster:
        return stage.may_lag
    found = find_laggards(stage)
    return None if found is None else found[1].may_lag


def _held_by(scrape: Scrape) -> Samples:
    for app, snapshot in (scrape.snapshots or {}).items():
        for name in snapshot.stages:
            by = held_back(snapshot, name).by
            yield from (((app, name, each), float(each == by)) for each in HELD_BY)


METRICS = (
    ServerMetric(
        "server_active", "gauge", "0 or 1", "Whether this server is the active one; 0 on a standby.",
        lambda scrape: [((), scrape.snapshots is not None)],
    ),
    ServerMetric(
        "server_epoch", "gauge", "takeovers", "How often a server has taken over the store.",
        lambda scrape: [((), scrape.writer.epoch)],
    ),
    ServerMetric(
        "server_errors", "gauge", "errors", "Present problems with the store.",
        lambda scrape: [((), len(scrape.writer.errors))],
    ),
    ServerMetric(
        "server_requests", "counter", "requests", "Requests answered, by path and HTTP status.",
        lambda scrape: [((path, str(code)), n) for (path, code), n in scrape.requests.items()],
        ("path", "code"),
    ),
    ServerMetric(
        "stage_low_timestamp_seconds", "gauge", "Unix seconds", "The output low of a stage.",
        _each_stage(lambda stage, _: _seconds(stage.lows.output)), ("app", "stage"),
    ),
    ServerMetric(
        "stage_front_timestamp_seconds", "gauge", "Unix seconds",
        "The largest event time that a stage, or one upstream of it, has seen.",
        _each_stage(lambda stage, _: _seconds(stage.largest_time)), ("app", "stage"),
    ),
    ServerMetric(
        "stage_age_seconds", "gauge", "seconds", "How far the output low is behind the server's clock.",
        _each_stage(_age), ("app", "stage"),
    ),
    ServerMetric(
        "stage_behind_seconds", "gauge", "seconds", "How far the output low is behind the front.",
        _each_stage(_behind), ("app", "stage"),
    ),
    ServerMetric(
        "stage_unmoved_seconds", "gauge", "seconds", "For how long the output low has not moved.",
        _each_stage(_unmoved), ("app", "stage"),
    ),
    ServerMetric(
        "stage_held_by", "gauge", "0 or 1", "What holds the output low back.", _held_by,
        ("app", "stage", "by"),
    ),
    ServerMetric(
        "stage_origins", "gauge", "origins", "Origins of a stage.", _origins, ("app", "stage", "origins"),
    ),
    ServerMetric(
        "stage_may_lag", "gauge", "origins", "How many origins may lag without holding a stage back.",
        _each_stage(_may_lag), ("app", "stage"),
    ),
    ServerMetric(
        "stage_partitions", "gauge", "partitions", "Input partitions that have reported.",
        _each_stage(lambda stage, _: sum(name != "" for name in stage.partitions)), ("app", "stage"),
    ),
    ServerMetric(
        "stage_backlog_records", "gauge", "records", "Records left to read, over all input partitions.",
        _each_stage(_backlog), ("app", "stage"),
    ),
    ServerMetric(
        "stage_errors", "gauge", "errors", "Present problems with a stage's roster or its reports.",
        _each_stage(lambda stage, _: len(errors_of(stage))), ("app", "stage"),
    ),
)  # fmt: skip


class ServerCollector(Collector):
    """A Prometheus collector that reads all metrics from the table writer and the counts of requests."""

    def __init__(self, writer: TableWriter, requests: Counter[tuple[str, int]]) -> None:
        self._writer, self._requests = writer, requests

    def collect(self) -> Iterator[Family]:
        """The families of all metrics, read from one snapshot."""
        try:
            snapshots = self._writer.snapshots()
        except RequestError:  # a standby
            snapshots = None
        scrape = Scrape(self._writer, self._requests, snapshots, time.time_ns() // 1_000)
        for metric in METRICS:
            family_of = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = family_of(PREFIX + metric.name, metric.meaning, labels=metric.labels)
            for labels, value in metric.read(scrape):
                if value is not None:
                    family.add_metric(list(labels), float(value))
            yield family
