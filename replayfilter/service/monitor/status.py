"""The status of the running service. The driver updates it; metrics, health, page and ``top`` read it.

Times are Unix seconds and are passed in as arguments. Any thread may call any method.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from replayfilter.core.clock.periods import PERIODS_US
from replayfilter.core.stats import LENGTHS
from replayfilter.core.watermark.laggards import Laggards
from replayfilter.service.monitor.batch import STEPS, Batch
from replayfilter.service.monitor.lag import Lag
from replayfilter.service.monitor.storage import Storage
from replayfilter.spark.counts import ROUTES

SLOT_SECONDS, SLOTS = 10, 360
"""The history covers an hour, in steps of ten seconds."""

LIVE_SECONDS = 60.0
"""The supervising thread sends ten heartbeats a second. Without one for this long it is assumed to hang."""

BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the histograms of batch durations, in seconds."""

ORIGINS = ("expected", "heard", "idle", "lagging")
"""The numbers of origins that are exposed; see core/watermark/laggards.py."""

# The counts of a batch that are current values, so they are not summed over batches.
_CURRENT_VALUES = {
    "newest_ms", "delay_ms", "watermark_us",
    "state_sources", "state_spread", "state_keys", "state_bytes", "state_memory", "state_runs",
    "state_buckets",
}  # fmt: skip


_LENGTH_COUNTS = {f"state_{name}" for names in LENGTHS.values() for name in names}


class Phase(StrEnum):
    """What the service is doing."""

    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"
    STOPPING = "stopping"
    ENDED = "ended"
    FAILED = "failed"


class Durations:
    """A histogram of seconds: ``counts`` per bucket of :data:`BUCKETS` plus one above, and the ``total``."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


class Status:
    """The status of one service.

    ``stale_after``: if records wait and no batch is committed for longer than this many seconds, the service
    is not ready. ``config``: the config as the page shows it, without secrets.
    """

    def __init__(self, service: str, stale_after: float, config: dict[str, Any], now: float) -> None:
        self.service, self.stale_after, self.config = service, stale_after, config
        self.started = now
        self.phase, self.phase_since = Phase.STARTING, now
        self.last_error = ""  # kept after the service has recovered from it
        self.retries = 0  # of the query
        self.batches = 0
        self.last: Batch | None = None
        self.laggards: Laggards | None = None  # after the last batch with records
        self.low_since: float | None = None  # when the watermark last moved
        self.totals: Counter[str] = Counter()
        self.durations = {step: Durations() for step in STEPS}
        self.lags: list[Lag] = []
        self.lag_at: float | None = None
        self.kafka_error = ""  # why Kafka does not report the offsets; empty if it does
        self.storage: Storage | None = None
        self.lock = threading.RLock()
        self._behind_since: float | None = None
        self._heartbeat_at = now
        self._slots: deque[dict[str, Any]] = deque(maxlen=SLOTS)

    # ---- updates -------------------------------------------------------------------------------------

    def enter(self, phase: Phase, now: float, error: str = "") -> None:
        """Change the phase; ``error`` is the reason if something failed."""
        with self.lock:
            self.phase, self.phase_since, self._heartbeat_at = phase, now, now
            self.last_error = error or self.last_error
            self.retries += phase is Phase.RETRYING

    def heartbeat(self, now: float) -> None:
        """The supervising thread is running, and Spark answered at this time."""
        self._heartbeat_at = now

    def add_batch(self, batch: Batch) -> None:
        """A batch is finished."""
        with self.lock:
            self.batches += 1
            self.last = batch
            if batch.laggards is not None:
                moved = self.laggards is None or self.laggards.low != batch.laggards.low
                self.low_since = batch.at if moved else self.low_since
                self.laggards = batch.laggards
            self.totals.update({n: value for n, value in batch.counts.items() if n not in _CURRENT_VALUES})
            for step, seconds in batch.seconds.items():
                self.durations[step].add(seconds)
            slot = self._slot(batch.at)
            slot["batches"] += 1
            slot["seconds"] = round(slot["seconds"] + batch.seconds["total"], 3)
            slot["keys"] = batch.counts.get("state_keys", 0)
            for route, count in batch.routes.items():
                slot[route] += count

    def set_lags(self, lags: Iterable[Lag], now: float) -> None:
        """Kafka has reported the lag of each input partition."""
        with self.lock:
            self.lags, self.lag_at, self.kafka_error = list(lags), now, ""
            if not self.waiting:
                self._behind_since = None
            elif self._behind_since is None:
                self._behind_since = now
            self._slot(now)["lag"] = self.waiting

    def set_storage(self, storage: Storage) -> None:
        """The size of the state on disk."""
        with self.lock:
            self.storage = storage

    def set_kafka_error(self, error: str) -> None:
        """Kafka did not report the lags."""
        with self.lock:
            self.kafka_error = error

    def _slot(self, at: float) -> dict[str, Any]:
        start = int(at) // SLOT_SECONDS * SLOT_SECONDS
        if not self._slots or self._slots[-1]["at"] < start:
            keys = self._slots[-1]["keys"] if self._slots else 0
            lag = self._slots[-1]["lag"] if self._slots else 0
            slot = {"at": start, "batches": 0, "seconds": 0.0, "lag": lag, "keys": keys}
            self._slots.append(slot | dict.fromkeys(ROUTES, 0))
        return self._slots[-1]

    # ---- reads ---------------------------------------------------------------------------------------

    @property
    def sizes(self) -> dict[str, int]:
        """The known sizes of the state in bytes, by the keys of ``storage.LOCATIONS``."""
        sizes = {"memory": self.last.counts.get("state_memory", 0)} if self.last else {}
        return sizes | (self.storage.sizes if self.storage else {})

    @property
    def waiting(self) -> int:
        """Records waiting in the input."""
        return sum(lag.records for lag in self.lags)

    def commit_age(self, now: float) -> float | None:
        """Seconds since the last batch was finished; None before the first."""
        return None if self.last is None else max(0.0, now - self.last.at)

    def liveness_problems(self, now: float) -> list[str]:
        """Why the process should be restarted; empty if it is live."""
        silent = now - self._heartbeat_at
        if self.phase is Phase.FAILED:
            return [f"failed: {self.last_error}"]
        if silent > LIVE_SECONDS and self.phase is Phase.RUNNING:
            return [f"no heartbeat of the supervising thread for {silent:.0f} s; Spark's JVM may hang"]
        return []

    def readiness_problems(self, now: float) -> list[str]:
        """Why the service is not working; empty if it is ready. An idle input is not a problem."""
        with self.lock:
            if self.phase is not Phase.RUNNING:
                known = self.last_error and self.retries
                return [f"{self.phase}: {self.last_error}" if known else str(self.phase)]
            reasons = self.liveness_problems(now)
            answered = max(self.lag_at or 0.0, self.phase_since)
            if now - answered > self.stale_after:
                reasons.append(
                    f"Kafka has not reported the input's end offsets for {now - answered:.0f} s: "
                    f"{self.kafka_error}"
                )
            elif self._behind_since is not None:
                last = self.last.at if self.last else 0.0
                idle = now - max(last, self._behind_since, self.phase_since)
                if idle > self.stale_after:
                    reasons.append(
                        f"no commit for {idle:.0f} s while {self.waiting:,} records wait; the limit is "
                        f"http.stale_after = {self.stale_after:g} s"
                    )
            return reasons

    def snapshot(self, now: float) -> dict[str, Any]:
        """Everything for ``/status``, as values that JSON can represent; ages and durations in seconds."""
        with self.lock:
            reasons, age, last = self.readiness_problems(now), self.commit_age(now), self.last
            counts = last.counts if last else {}
            return {
                "service": self.service,
                "phase": str(self.phase),
                "phase_seconds": round(now - self.phase_since, 1),
                "ready": not reasons,
                "reasons": reasons,
                "live": not self.liveness_problems(now),
                "uptime_seconds": round(now - self.started, 1),
                "batches": self.batches,
                "last_commit_age_seconds": None if age is None else round(age, 1),
                "last_batch": last and {
                    "number": last.number,
                    "records": last.records,
                    "records_per_second": round(last.rate),
                    "seconds": last.seconds,
                    "work": last.work,
                    "routes": last.routes,
                },
                "totals": {route: self.totals[route] for route in ROUTES},
                "errors": self._totals_of("error_"),
                "watermark": last and last.watermark,
                "laggards": self._laggards_view(now),
                "state": {
                    name[6:]: counts[name]
                    for name in counts
                    if name.startswith("state_") and name not in _LENGTH_COUNTS
                },
                "lengths": {
                    "below_seconds": [period / 1e6 for period in PERIODS_US],
                    **{name: self.lengths(name) for name in LENGTHS},
                },
                "sizes": self.sizes,
                "counts": {
                    name: count
                    for name, count in self.totals.items()
                    if name not in _LENGTH_COUNTS
                },
                "lag": [lag.as_dict() for lag in self.lags],
                "waiting": self.waiting,
                "retries": self.retries,
                "last_fault": self.last_error,
                "kafka_fault": self.kafka_error,
                "slot_seconds": SLOT_SECONDS,
                "now": now,
                "history": list(map(dict, self._slots)),
                "config": self.config,
            }  # fmt: skip

    def _laggards_view(self, now: float) -> dict[str, Any] | None:
        """What holds the watermark back, since when and by how much; None if no watermark is kept."""
        found = self.laggards
        if found is None:
            return None
        return {
            "origins": {name: getattr(found, name) for name in ORIGINS},
            "may_lag": found.may_lag,
            "behind_seconds": None if found.behind is None else found.behind / 1e6,
            "still_seconds": None if self.low_since is None else round(now - self.low_since, 1),
            "slowest": [
                {"origin": name, "progress": None if time is None else time / 1e6}
                for name, time in found.slowest
            ],
            "partitions": [
                {"topic": topic, "partition": partition, "watermark": low / 1e6}
                for topic, partition, low in found.lows
            ],
        }

    def lengths(self, name: str) -> list[int]:
        """The totals of one of the names in ``LENGTHS`` (core/stats.py), by bucket."""
        return [self.totals[f"state_{each}"] for each in LENGTHS[name]]

    def _totals_of(self, prefix: str) -> dict[str, int]:
        """The totals that are not 0 and whose names start with ``prefix``, without it."""
        return {n.removeprefix(prefix): c for n, c in self.totals.items() if n.startswith(prefix) and c}
