"""The complete list of metrics. docs/reference/metrics.md describes each; a test compares the two.

All values are read from the driver's :class:`Status` at scrape time. They include the work of executors on
other machines, whose counts arrive with the progress of each batch.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import (
    Metric as Family,
)
from prometheus_client.registry import Collector, CollectorRegistry

from replayfilter import __version__
from replayfilter.core.clock.periods import PERIODS_US
from replayfilter.core.stats import LATE_ROUTES
from replayfilter.service.monitor.batch import STAGES, STEPS
from replayfilter.service.monitor.status import BUCKETS, ORIGINS, Phase, Status
from replayfilter.service.monitor.storage import LOCATIONS
from replayfilter.spark.counts import ROUTES
from replayfilter.spark.error_reasons import REASONS

PREFIX = "replayfilter_"

# The possible values of each label. None: not listed, but there are few. Input topics are fixed in the
# checkpoint, and there is one version.
LABELS: dict[str, tuple[str, ...] | None] = {
    "route": ROUTES,
    "reason": REASONS,
    "step": STEPS,
    "stage": STAGES,
    "phase": tuple(Phase),
    "record": ("newest", "oldest"),
    "place": tuple(LOCATIONS),
    "origins": ORIGINS,
    "topic": None,
    "partition": None,
    "version": None,
    "python": None,
}

Samples = Iterable[tuple[tuple[str, ...], float]]
Read = Callable[[Status, float], Samples]


class Histogram(NamedTuple):
    """Label values, upper bounds, the counts in each bucket and in the one above, and the sum if known."""

    labels: tuple[str, ...]
    bounds: Sequence[float]
    counts: Sequence[int]
    total: float | None = None


Histograms = Callable[[Status], Iterable[Histogram]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: ``read`` gets the status and the time, and returns pairs of label values and value.

    Histograms have ``histograms`` instead.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    meaning: str
    read: Read | None = None
    labels: tuple[str, ...] = ()
    histograms: Histograms | None = None


def _durations(status: Status) -> Iterable[Histogram]:
    for step, durations in status.durations.items():
        yield Histogram((step,), BUCKETS, durations.counts, durations.total)


_PERIODS = [period / 1e6 for period in PERIODS_US]


def _lateness(status: Status) -> Iterable[Histogram]:
    return [Histogram((route,), _PERIODS, status.lengths(f"late_{route}")) for route in LATE_ROUTES]


def _distances(status: Status) -> Iterable[Histogram]:
    return [Histogram((), _PERIODS, status.lengths("apart"))]


def _total(name: str, scale: float = 1.0) -> Read:
    return lambda status, now: [((), status.totals[name] * scale)]


def _current(name: str) -> Read:
    return lambda status, now: [((), status.last.counts.get(name, 0))] if status.last else []


def _routes(status: Status, now: float) -> Samples:
    return [((route,), status.totals[route]) for route in ROUTES]


def _reasons(status: Status, now: float) -> Samples:
    return [((reason,), status.totals[f"error_{reason}"]) for reason in REASONS]


def _work(status: Status, now: float) -> Samples:
    return [((stage,), status.totals[f"{stage}_us"] / 1e6) for stage in STAGES]


def _lag_records(status: Status, now: float) -> Samples:
    return [((lag.topic, str(lag.partition)), lag.records) for lag in status.lags]


def _lag_seconds(status: Status, now: float) -> Samples:
    known = (lag for lag in status.lags if lag.seconds is not None)
    return [((lag.topic, str(lag.partition)), lag.seconds or 0.0) for lag in known]


def _held_back_records(status: Status, now: float) -> Samples:
    return [((lag.topic, str(lag.partition)), lag.held_back) for lag in status.lags]


def _held_back_seconds(status: Status, now: float) -> Samples:
    return [((lag.topic, str(lag.partition)), lag.held_back_seconds) for lag in status.lags]


def _delay(status: Status, now: float) -> Samples:
    if status.last is None or not status.last.counts.get("newest_ms"):
        return []
    newest = max(0.0, status.last.at - status.last.counts["newest_ms"] / 1000)
    return [(("newest",), newest), (("oldest",), status.last.counts["delay_ms"] / 1000)]


def _watermark(status: Status, now: float) -> Samples:
    low = status.last.watermark if status.last else None
    return [] if low is None else [((), low)]


def _sizes(status: Status, now: float) -> Samples:
    return [((location,), size) for location, size in status.sizes.items()]


def _key_sizes(status: Status, now: float) -> Samples:
    keys = status.last.counts.get("state_keys", 0) if status.last else 0
    return [((location,), size / keys) for location, size in status.sizes.items()] if keys else []


def _behind(status: Status, now: float) -> Samples:
    behind = status.laggards.behind if status.laggards else None
    return [] if behind is None else [((), behind / 1e6)]


def _origins(status: Status, now: float) -> Samples:
    found = status.laggards
    if found is None or not found.expected:
        return []
    return [((name,), getattr(found, name)) for name in ORIGINS]


def _may_lag(status: Status, now: float) -> Samples:
    found = status.laggards
    return [((), found.may_lag)] if found is not None and found.expected else []


def _commit_age(status: Status, now: float) -> Samples:
    age = status.commit_age(now)
    return [] if age is None else [((), age)]


def _phase(status: Status, now: float) -> Samples:
    return [((str(phase),), phase is status.phase) for phase in Phase]


METRICS = (
    Metric("records", "counter", "records", "Records routed, by route.", _routes, ("route",)),
    Metric(
        "error_records", "counter", "records", "Records routed to error, by reason.", _reasons, ("reason",)
    ),
    Metric(
        "conflicts", "counter", "records",
        "Duplicates with other content than the records that they repeat.", _total("conflict"),
    ),
    Metric(
        "unstamped_records", "counter", "records", "Records without a valid stamp, where stamps are read.",
        _total("unstamped"),
    ),
    Metric(
        "unlikely_stamps", "counter", "records",
        "Records with a stamp that no stamping producer writes, such as a SHA-1.", _total("unlikely_stamps"),
    ),
    Metric("gaps", "counter", "jumps", "Offset gaps of sources, above mark + 1.", _total("state_gaps")),
    Metric("marks", "gauge", "sources", "Highwater marks remembered.", _current("state_sources")),
    Metric(
        "forgotten_marks", "counter", "sources", "Marks forgotten after being idle for mark_ttl.",
        _total("state_forgotten"),
    ),
    Metric(
        "spread_sources", "gauge", "sources",
        "Sources seen in several input partitions, which a stamping producer never causes.",
        _current("state_spread"),
    ),
    Metric("keys", "gauge", "keys", "Dedup keys remembered.", _current("state_keys")),
    Metric("state_bytes", "gauge", "bytes", "Bytes of the remembered keys in runs.", _current("state_bytes")),
    Metric(
        "size_bytes", "gauge", "bytes", "Bytes of the state in memory and on disk.", _sizes, ("place",)
    ),
    Metric(
        "key_size_bytes", "gauge", "bytes", "The same per key; absent while there are no keys.", _key_sizes,
        ("place",),
    ),
    Metric("runs", "gauge", "runs", "Sorted runs of keys in the state.", _current("state_runs")),
    Metric("buckets", "gauge", "buckets", "Buckets in the state of all shards.", _current("state_buckets")),
    Metric(
        "evicted_keys", "counter", "keys", "Keys that expired with their bucket.", _total("state_evicted")
    ),
    Metric("cache_hits", "counter", "runs", "Runs found in the cache of a host.", _total("cache_hits")),
    Metric(
        "cache_misses", "counter", "runs", "Runs read from Spark's state because they were not in the cache.",
        _total("cache_misses"),
    ),
    Metric(
        "bloom_false_positives", "counter", "keys",
        "Lookups that a Bloom filter passed although the run lacks the key.", _total("state_false_hits"),
    ),
    Metric("batches", "counter", "batches", "Batches finished.", lambda status, now: [((), status.batches)]),
    Metric(
        "batch_seconds", "histogram", "seconds", "Duration of a batch's steps.", labels=("step",),
        histograms=_durations,
    ),
    Metric(
        "lateness_seconds", "histogram", "seconds", "How far records are behind the latest point, by route.",
        labels=("route",), histograms=_lateness,
    ),
    Metric(
        "duplicate_distance_seconds", "histogram", "seconds",
        "How far the latest point at a duplicate is ahead of the record that it repeats.",
        histograms=_distances,
    ),
    Metric(
        "stage_seconds", "counter", "seconds", "Time that tasks worked, by stage, summed over all workers.",
        _work, ("stage",),
    ),
    Metric(
        "frame_bytes", "counter", "bytes", "Bytes of records as they went through Spark.",
        _total("bytes"),
    ),
    Metric(
        "lag_records", "gauge", "records", "Input offsets that are not yet delivered.", _lag_records,
        ("topic", "partition"),
    ),
    Metric(
        "lag_seconds", "gauge", "seconds", "How long the first waiting record has waited.", _lag_seconds,
        ("topic", "partition"),
    ),
    Metric(
        "held_back_records", "gauge", "records",
        "Input offsets that can't be read yet because of somebody's open transaction.", _held_back_records,
        ("topic", "partition"),
    ),
    Metric(
        "held_back_seconds", "gauge", "seconds",
        "How long the input partition has been held back at the same offset.", _held_back_seconds,
        ("topic", "partition"),
    ),
    Metric(
        "delay_seconds", "gauge", "seconds",
        "Time from a record's timestamp to its delivery, for the newest and oldest record of the last batch.",
        _delay, ("record",),
    ),
    Metric(
        "watermark_timestamp_seconds", "gauge", "Unix seconds", "The low watermark, if one is kept.",
        _watermark,
    ),
    Metric(
        "watermark_behind_seconds", "gauge", "seconds",
        "How far the low watermark is behind the largest time of any origin.", _behind,
    ),
    Metric(
        "watermark_origins", "gauge", "origins",
        "Origins in the roster: expected, seen (heard), idle, and lagging (at or behind the watermark).",
        _origins, ("origins",),
    ),
    Metric(
        "watermark_may_lag", "gauge", "origins",
        "How many origins may lag without holding the watermark back.", _may_lag,
    ),
    Metric("written_records", "counter", "records", "Records written in transactions.", _total("written")),
    Metric(
        "skipped_records", "counter", "records",
        "Records skipped because an earlier attempt had delivered them.", _total("skipped"),
    ),
    Metric("transactions", "counter", "transactions", "Transactions committed.", _total("transactions")),
    Metric("takeovers", "counter", "lanes", "Lanes taken over by another worker.", _total("takeovers")),
    Metric("fences", "counter", "lanes", "Times that another owner had taken a lane.", _total("fences")),
    Metric(
        "transaction_retries", "counter", "steps", "Retried steps of transactions.", _total("retries")
    ),
    Metric(
        "query_retries", "counter", "starts", "Times that a failed query was started again.",
        lambda status, now: [((), status.retries)],
    ),
    Metric(
        "last_commit_age_seconds", "gauge", "seconds",
        "Time since the last batch was finished; absent before the first.", _commit_age,
    ),
    Metric(
        "ready", "gauge", "0 or 1", "Whether /readyz returns 200.",
        lambda status, now: [((), not status.readiness_problems(now))],
    ),
    Metric(
        "phase", "gauge", "0 or 1", "What the service is doing: 1 for the current phase, 0 for the others.",
        _phase, ("phase",),
    ),
    Metric(
        "build_info", "gauge", "1", "The version of this program and of Python.",
        lambda status, now: [((__version__, platform.python_version()), 1)], ("version", "python"),
    ),
)  # fmt: skip


class StatusCollector(Collector):
    """A Prometheus collector that reads all metrics from a status."""

    def __init__(self, status: Status, clock: Callable[[], float] = time.time) -> None:
        self._status, self._clock = status, clock

    def collect(self) -> Iterator[Family]:
        """The families of all metrics, read under one lock, so their values belong together."""
        now = self._clock()
        with self._status.lock:
            families = [_family(metric, self._status, now) for metric in METRICS]
        yield from families


def _family(metric: Metric, status: Status, now: float) -> Family:
    name, labels = PREFIX + metric.name, metric.labels
    if metric.histograms is not None:
        family_of_histograms = HistogramMetricFamily(name, metric.meaning, labels=labels)
        for each in metric.histograms(status):
            bounds, below = [*map(str, each.bounds), "+Inf"], 0
            buckets = [(bound, below := below + n) for bound, n in zip(bounds, each.counts, strict=True)]
            family_of_histograms.add_metric(each.labels, buckets, each.total)
        return family_of_histograms
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.kind == "counter":
        family = CounterMetricFamily(name, metric.meaning, labels=labels)
    else:
        family = GaugeMetricFamily(name, metric.meaning, labels=labels)
    for values, value in metric.read(status, now) if metric.read else ():
        family.add_metric(list(values), float(value))
    return family


def registry_of(status: Status, clock: Callable[[], float] = time.time) -> CollectorRegistry:
    """A registry with the metrics of the service and nothing else."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(status, clock))
    return registry
