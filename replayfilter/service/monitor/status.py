"""What the running service knows of itself: fed by its driver, read by metrics, health, page and ``top``.

Times are Unix seconds and come in as arguments. Every method may be called by any thread.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from replayfilter.core.watermark.laggards import Laggards
from replayfilter.service.monitor.batch import ROUTES, STEPS, Batch
from replayfilter.service.monitor.lag import Lag
from replayfilter.service.monitor.storage import Storage

SLOT_SECONDS, SLOTS = 10, 360
"""The history is an hour, in steps of ten seconds."""

LIVE_SECONDS = 60.0
"""The supervising thread gives a sign of life ten times a second; without one for so long it hangs."""

BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the histograms of batch durations, in seconds."""

ORIGINS = ("expected", "heard", "idle", "lagging")
"""What is counted of the origins that the watermark waits for; see core/laggards.py."""

# Those of a batch's counts that are not to be summed up.
_LEVELS = {
    "newest_ms", "delay_ms", "watermark_us",
    "state_sources", "state_spread", "state_keys", "state_bytes", "state_memory", "state_runs",
    "state_buckets",
}  # fmt: skip


class Phase(StrEnum):
    """What the service is doing."""

    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"
    STOPPING = "stopping"
    ENDED = "ended"
    FAILED = "failed"


class Durations:
    """A histogram of seconds: ``counts`` by bucket of :data:`BUCKETS`, the last one unbounded; ``total``."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Take one duration in."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


class Status:
    """The state of one service.

    ``stale_after``: seconds; with records waiting and no commit for longer, the service is not ready.
    ``config``: what the page shows of it, without secrets. Times are Unix seconds.
    """

    def __init__(self, service: str, stale_after: float, config: dict[str, Any], now: float) -> None:
        self.service, self.stale_after, self.config = service, stale_after, config
        self.started = now
        self.phase, self.phase_since = Phase.STARTING, now
        self.fault = ""  # the last one, kept when it has passed
        self.retries = 0  # of the query
        self.batches = 0
        self.last: Batch | None = None
        self.laggards: Laggards | None = None  # as the last batch with records left them
        self.low_since: float | None = None  # when the watermark last moved
        self.totals: Counter[str] = Counter()
        self.durations = {step: Durations() for step in STEPS}
        self.lags: list[Lag] = []
        self.lag_at: float | None = None
        self.kafka_fault = ""
        self.storage: Storage | None = None
        self.lock = threading.RLock()
        self._behind_since: float | None = None
        self._sign = now
        self._slots: deque[dict[str, Any]] = deque(maxlen=SLOTS)

    # ---- what it is told -----------------------------------------------------------------------------

    def enter(self, phase: Phase, now: float, fault: str = "") -> None:
        """Go over to another phase; ``fault`` says why, if there is a why."""
        with self.lock:
            self.phase, self.phase_since, self._sign = phase, now, now
            self.fault = fault or self.fault
            self.retries += phase is Phase.RETRYING

    def sign_of_life(self, now: float) -> None:
        """The supervising thread is at work."""
        self._sign = now

    def batch(self, batch: Batch) -> None:
        """A batch was finished."""
        with self.lock:
            self.batches += 1
            self.last = batch
            if batch.laggards is not None:
                moved = self.laggards is None or self.laggards.low != batch.laggards.low
                self.low_since = batch.at if moved else self.low_since
                self.laggards = batch.laggards
            self.totals.update({n: value for n, value in batch.counts.items() if n not in _LEVELS})
            for step, seconds in batch.seconds.items():
                self.durations[step].add(seconds)
            slot = self._slot(batch.at)
            slot["batches"] += 1
            slot["seconds"] = round(slot["seconds"] + batch.seconds["total"], 3)
            slot["keys"] = batch.counts.get("state_keys", 0)
            for route, count in batch.routes.items():
                slot[route] += count

    def lag(self, lags: Iterable[Lag], now: float) -> None:
        """How far each input partition is, as Kafka says now."""
        with self.lock:
            self.lags, self.lag_at, self.kafka_fault = list(lags), now, ""
            if not self.waiting:
                self._behind_since = None
            elif self._behind_since is None:
                self._behind_since = now
            self._slot(now)["lag"] = self.waiting

    def stored(self, storage: Storage) -> None:
        """What the state takes on disk now."""
        with self.lock:
            self.storage = storage

    def kafka_silent(self, fault: str) -> None:
        """Kafka did not say how far the partitions are."""
        with self.lock:
            self.kafka_fault = fault

    def _slot(self, at: float) -> dict[str, Any]:
        start = int(at) // SLOT_SECONDS * SLOT_SECONDS
        if not self._slots or self._slots[-1]["at"] < start:
            keys = self._slots[-1]["keys"] if self._slots else 0
            lag = self._slots[-1]["lag"] if self._slots else 0
            slot = {"at": start, "batches": 0, "seconds": 0.0, "lag": lag, "keys": keys}
            self._slots.append(slot | dict.fromkeys(ROUTES, 0))
        return self._slots[-1]

    # ---- what it says --------------------------------------------------------------------------------

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of the state after the last batch by place: see storage.py; those that are known."""
        sizes = {"memory": self.last.counts.get("state_memory", 0)} if self.last else {}
        return sizes | (self.storage.sizes if self.storage else {})

    @property
    def waiting(self) -> int:
        """Records that wait in the input."""
        return sum(lag.records for lag in self.lags)

    def commit_age(self, now: float) -> float | None:
        """Seconds since the last batch was finished; None before the first."""
        return None if self.last is None else max(0.0, now - self.last.at)

    def not_live(self, now: float) -> list[str]:
        """Why the process should be replaced; empty: it need not be."""
        silent = now - self._sign
        if self.phase is Phase.FAILED:
            return [f"failed: {self.fault}"]
        if silent > LIVE_SECONDS and self.phase is Phase.RUNNING:
            return [f"the supervising thread gave no sign of life for {silent:.0f} s; Spark's JVM may hang"]
        return []

    def not_ready(self, now: float) -> list[str]:
        """Why the service doesn't do its work; empty: it does. An idle topic is no reason."""
        with self.lock:
            if self.phase is not Phase.RUNNING:
                return [f"{self.phase}: {self.fault}" if self.fault and self.retries else str(self.phase)]
            reasons = self.not_live(now)
            answered = max(self.lag_at or 0.0, self.phase_since)
            if now - answered > self.stale_after:
                reasons.append(
                    f"Kafka has not said for {now - answered:.0f} s how far the input is: {self.kafka_fault}"
                )
            elif self._behind_since is not None:
                last = self.last.at if self.last else 0.0
                idle = now - max(last, self._behind_since, self.phase_since)
                if idle > self.stale_after:
                    reasons.append(
                        f"no commit for {idle:.0f} s, while {self.waiting:,} records wait; the bound is "
                        f"http.stale_after = {self.stale_after:g} s"
                    )
            return reasons

    def snapshot(self, now: float) -> dict[str, Any]:
        """All of it for ``/status``: plain values that JSON knows; ages and durations in seconds."""
        with self.lock:
            reasons, age, last = self.not_ready(now), self.commit_age(now), self.last
            counts = last.counts if last else {}
            return {
                "service": self.service,
                "phase": str(self.phase),
                "phase_seconds": round(now - self.phase_since, 1),
                "ready": not reasons,
                "reasons": reasons,
                "live": not self.not_live(now),
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
                "errors": self._named("error_"),
                "watermark": last and last.watermark,
                "laggards": self._lagging(now),
                "state": {name[6:]: counts[name] for name in counts if name.startswith("state_")},
                "sizes": self.sizes,
                "counts": dict(self.totals),
                "lag": [lag.shown() for lag in self.lags],
                "waiting": self.waiting,
                "retries": self.retries,
                "last_fault": self.fault,
                "kafka_fault": self.kafka_fault,
                "slot_seconds": SLOT_SECONDS,
                "now": now,
                "history": list(map(dict, self._slots)),
                "config": self.config,
            }  # fmt: skip

    def _lagging(self, now: float) -> dict[str, Any] | None:
        """Who holds the watermark back, since when and by how much; None where none is kept."""
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

    def _named(self, prefix: str) -> dict[str, int]:
        return {n.removeprefix(prefix): c for n, c in self.totals.items() if n.startswith(prefix) and c}
