"""One run of one system: it starts, reads a backlog, then follows a live stream at several rates.

Everything is seen from outside, in the same way for all systems: what a read_committed reader can read in
the topic of unique records, and what /proc says of the process tree. After the run all unique records are
read and compared with what the generator knows.
"""

from __future__ import annotations

import copy
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.orders import ID, SENT_US, Backlog, Orders, Writer, value_of
from benchmarks.processes import CpuClock, end_with_parent, memory_bytes, stop
from benchmarks.systems import Job, System
from replayfilter.devbroker import DevBroker
from replayfilter.kafka.admin import Cluster

SAMPLE_S = 0.25
POLL_S = 0.005  # of the reader; a delay is known no better
QUIET_S = 3.0  # the backlog is done when so long nothing was added
LIMIT_S = 600.0
ARRIVAL_LIMIT_S = 60.0  # a record that needs longer counts as lost
WARM_UP = 1 / 2  # of the backlog, since Java compiles
LIVE_WARM_UP = 0.25  # of the seconds of a rate


class Sample(NamedTuple):
    """What is known at one moment of a run; ``offsets`` is the sum of the output's end offsets."""

    at: float
    offsets: int
    cpu_s: float
    broker_cpu_s: float


@dataclass(frozen=True)
class Live:
    """A live phase: percentiles of milliseconds from the producer to the reader, and cores in use.

    At rate 0 there is nothing to wait for.
    """

    rate: int
    p50: float | None
    p95: float | None
    p99: float | None
    cores: float
    broker_cores: float


@dataclass(frozen=True)
class Result:
    """One run. ``error`` says what is wrong with its output; empty if it is exactly right."""

    system: str
    partitions: int
    start_s: float | None
    records_per_s: float
    cpu_per_million: float
    broker_cpu_per_million: float
    memory_mb: float
    jvm_memory_mb: float  # part of it, at the same moment
    state_bytes_per_key: float
    live: list[Live]
    error: str

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Result:
        return cls(**{**found, "live": [Live(**live) for live in found["live"]]})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Delays:
    """Milliseconds from the producer's clock to the reader, of records sent after ``start``, a Unix time."""

    def __init__(self, start: float) -> None:
        self._start_us = start * 1e6
        self.ms: list[float] = []
        self.arrived = 0

    def add(self, messages: Sequence[Message]) -> None:
        """Add what has just arrived."""
        now_us = time.time_ns() / 1e3
        self.arrived += len(messages)
        sent = (int((message.value() or b"")[SENT_US]) for message in messages)
        self.ms += [(now_us - each) / 1e3 for each in sent if each >= self._start_us]

    def percentiles(self) -> tuple[float | None, float | None, float | None]:
        """The median, 95% and 99%; None if nothing has arrived."""
        if len(self.ms) < 2:
            return None, None, None
        cuts = statistics.quantiles(self.ms, n=100, method="inclusive")
        return cuts[49], cuts[94], cuts[98]


class Run:
    """A started system between its topics."""

    def __init__(self, system: System, job: Job, broker: DevBroker) -> None:
        self.job = job
        self._system = system
        self._cluster = Cluster(broker.bootstrap)
        self._outputs = [(job.output, number) for number in range(job.partitions)]
        self.peak = 0, 0
        self.started_at = time.monotonic()
        self._log = (job.folder / "log").open("wb")
        environment = {**os.environ, **system.environment}
        self.process = subprocess.Popen(
            system.command(job),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            preexec_fn=end_with_parent,
        )
        assert broker.pid is not None
        self._cpu, self._broker_cpu = CpuClock(self.process.pid), CpuClock(broker.pid)

    def sample(self) -> Sample:
        """Measure now. Raises RuntimeError if the system has ended."""
        if self.process.poll() is not None:
            tail = (self.job.folder / "log").read_text("utf-8", "replace")[-3000:]
            raise RuntimeError(f"{self._system.label} ended with code {self.process.returncode}:\n{tail}")
        self.peak = max(self.peak, memory_bytes(self.process.pid))
        offsets = sum(self._cluster.end_offsets(self._outputs).values())
        return Sample(time.monotonic(), offsets, self._cpu.seconds(), self._broker_cpu.seconds())

    def await_backlog(self, expected: int) -> list[Sample]:
        """Samples until at least ``expected`` records are visible and no more are added."""
        samples = [self.sample()]
        while True:
            time.sleep(SAMPLE_S)
            samples.append(self.sample())
            last = samples[-1]
            changed_at = next(each.at for each in samples if each.offsets == last.offsets)
            if last.offsets >= expected and last.at - changed_at >= QUIET_S:
                return samples
            if last.at - samples[0].at > LIMIT_S:
                raise RuntimeError(
                    f"{self._system.label} has written {last.offsets:,} of {expected:,} records after "
                    f"{LIMIT_S:.0f} s"
                )

    def expected(self, orders: Orders) -> int:
        """How many of the orders that were made so far the system has to write."""
        return orders.unique if self._system.keeps == "first copies" else orders.records

    def follow(self, writer: Writer, orders: Orders, rate: int, seconds: float) -> Live:
        """Write orders at a steady rate, none at rate 0, and measure until the reader has them all."""
        known = self.expected(orders)
        delays = Delays(time.time() + seconds * LIVE_WARM_UP)
        with _reader(self.job.bootstrap, self._cluster.end_offsets(self._outputs)) as reader:
            before, written = self.sample(), 0
            while (elapsed := time.monotonic() - before.at) < seconds:
                while written < elapsed * rate:
                    writer.write(orders.next(int(time.time() * 1000)))
                    written += 1
                writer.poll()
                delays.add(reader.consume(1_000, POLL_S))
            after = self.sample()
            expected = self.expected(orders) - known
            while delays.arrived < expected and time.monotonic() - after.at < ARRIVAL_LIMIT_S:
                writer.poll()
                delays.add(reader.consume(1_000, POLL_S))
        delays.ms += [ARRIVAL_LIMIT_S * 1e3] * (expected - delays.arrived)
        elapsed = after.at - before.at
        return Live(rate, *delays.percentiles(), (after.cpu_s - before.cpu_s) / elapsed,
                    (after.broker_cpu_s - before.broker_cpu_s) / elapsed)  # fmt: skip

    def stop(self) -> None:
        stop(self.process)
        self._log.close()


def measure(
    broker: DevBroker, name: str, system: System, backlog: Backlog, batch_records: int,
    rates: Sequence[int], seconds: float, start: bool,
) -> Result:  # fmt: skip
    """Run a system once. ``start``: also measure the start on its own, with a nearly empty topic."""
    start_s = _measure_start(broker, name, system, backlog) if start else None
    with _job(broker, name, system, backlog.orders.partitions, batch_records) as job:
        orders, writer = copy.deepcopy(backlog.orders), Writer(job.bootstrap, job.input, 20)
        for number, order in enumerate(backlog):
            writer.write(order)
            if number % 1_000 == 0:
                writer.poll()
        writer.flush()
        run = Run(system, job, broker)
        try:
            samples = run.await_backlog(run.expected(orders))
            figures = figures_of(samples, orders.records)
            writer = Writer(job.bootstrap, job.input, 1)
            live = [run.follow(writer, orders, rate, seconds) for rate in rates]
            writer.flush()
            run.sample()
        finally:
            run.stop()
        error = check(job, run.expected(orders), orders.unique)
        state = system.state_bytes(job.folder) / orders.unique
    memory, jvm_memory = (each / 1e6 for each in run.peak)
    return Result(name, job.partitions, start_s, *figures, memory, jvm_memory, state, live, error)


def figures_of(samples: Sequence[Sample], records: int) -> tuple[float, float, float]:
    """Records per second, CPU seconds per million, and those of the broker, after the warm-up.

    Output offsets stand for the share of the input that is done: with transactions they also count markers,
    so they are compared only with each other. A system that works in batches is measured from the end of a
    batch to the end of a batch. The last step counts only if it is the only one: it may have waited for the
    time of a checkpoint without any work.
    """
    total = samples[-1].offsets
    steps = [samples[0], *(new for old, new in pairwise(samples) if new.offsets != old.offsets)]
    first, *following = [each for each in steps if each.offsets >= total * WARM_UP]
    last = following[-2] if len(following) > 1 else following[-1] if following else first
    done = records * (last.offsets - first.offsets) / total
    if not done:
        raise RuntimeError("the whole backlog became visible at once: use smaller batches or more records")
    millions = done / 1e6
    return (done / (last.at - first.at), (last.cpu_s - first.cpu_s) / millions,
            (last.broker_cpu_s - first.broker_cpu_s) / millions)  # fmt: skip


def check(job: Job, records: int, unique: int) -> str:
    """Read all unique records, and wait for some more; what is wrong with them, or nothing.

    They must be of the first ``unique`` orders, and of each of them.
    """
    ids: set[bytes] = set()
    found = 0
    ends = {(job.output, number): 0 for number in range(job.partitions)}
    with _reader(job.bootstrap, ends) as reader:
        while messages := reader.consume(10_000, 3.0 if found < records else 0.5):
            found += len(messages)
            ids.update((message.value() or b"")[ID] for message in messages)
    if (found, len(ids)) != (records, unique):
        return f"{found:,} records of {len(ids):,} orders instead of {records:,} of {unique:,}"
    # All ids have the same length. So with so many of them, the first and the last say which set it is.
    first, last = min(ids), max(ids)
    if (first, last) != (value_of(0, 0, 0)[ID], value_of(unique - 1, 0, 0)[ID]):
        return f"orders {first!r} to {last!r} instead of the first {unique:,}"
    return ""


def _measure_start(broker: DevBroker, name: str, system: System, backlog: Backlog) -> float:
    """Seconds from the start of the process until its first output is visible."""
    with _job(broker, name, system, backlog.orders.partitions, 1_000) as job:
        writer = Writer(job.bootstrap, job.input, 0)
        orders = Orders(job.partitions)
        for _ in range(1_000):
            writer.write(orders.next(int(time.time() * 1000)))
        writer.flush()
        run = Run(system, job, broker)
        try:
            while not run.sample().offsets:
                time.sleep(0.05)
            return time.monotonic() - run.started_at
        finally:
            run.stop()


@contextmanager
def _job(broker: DevBroker, name: str, system: System, partitions: int, batch_records: int) -> Iterator[Job]:
    """A new folder and new topics, which are deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="replayfilter-bench-") as folder:
        job = Job(broker.bootstrap, f"{name}-{time.monotonic_ns()}", partitions, batch_records, Path(folder))
        topics = [job.input, *(f"{job.name}.{output}" for output in system.outputs)]
        Cluster(broker.bootstrap).create(dict.fromkeys(topics, partitions))
        try:
            yield job
        finally:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            made = [topic for topic in admin.list_topics(timeout=30).topics if topic.startswith(job.name)]
            for deleted in admin.delete_topics(made).values():
                deleted.result(30)


@contextmanager
def _reader(bootstrap: str, starts: dict[tuple[str, int], int]) -> Iterator[Consumer]:
    reader = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "benchmark", "isolation.level": "read_committed",
        "enable.auto.commit": False, "fetch.queue.backoff.ms": 1, "log_level": 3,
    })  # fmt: skip
    reader.assign([TopicPartition(*partition, offset) for partition, offset in starts.items()])
    try:
        yield reader
    finally:
        reader.close()
