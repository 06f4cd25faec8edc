"""The systems that are compared: how each is started, with which settings, and where its state is.

Each gets two cores' worth of threads, 2 GB of heap with the parallel collector, and the settings that its
own documentation recommends for this job. All other settings have their defaults.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.orders import PERIOD_MS
from replayfilter.jvm.java import java
from replayfilter.service.monitor import storage
from replayfilter.spark.checkpoint_folder import LocalFolder

PEERS = Path(__file__).parent / "peers"
BUILT = PEERS.parents[1] / "build" / "peers"
PYTHON = BUILT / "python" / "bin" / "python"  # with Flink and Matplotlib
FLINK_JARS = BUILT / "flink"
RESULTS = BUILT.parent / "bench" / "results.json"
HEAP = "-Xmx2g -XX:+UseParallelGC"
CORES = os.cpu_count() or 1
Keeps = Literal["first copies", "everything"]


@dataclass(frozen=True)
class Job:
    """What one run of a system works on. All its files are in ``folder``."""

    bootstrap: str
    name: str  # the start of its topics' names, and its group
    partitions: int
    batch_records: int
    folder: Path

    @property
    def input(self) -> str:
        return f"{self.name}.input"

    @property
    def output(self) -> str:
        """The topic of unique records; the others are named after it."""
        return f"{self.name}.unique"


@dataclass(frozen=True)
class System:
    """A row of the table. ``command`` writes what the process needs to the job's folder."""

    label: str
    guarantee: str
    settings: str
    command: Callable[[Job], list[str]]
    state_bytes: Callable[[Path], int]
    needs: Path | None = None  # built by `make peers`
    own: bool = False  # this service, not a peer
    keeps: Keeps = "first copies"
    outputs: tuple[str, ...] = ("unique",)
    environment: Mapping[str, str] = field(default_factory=dict)


def _ours(interval: str, scope: str = "input") -> Callable[[Job], list[str]]:
    def command(job: Job) -> list[str]:
        config = job.folder / "replayfilter.toml"
        config.write_text(f"""
[service]
name = "{job.name}"
checkpoint = "{job.folder / "checkpoint"}"
interval = "{interval}"
batch_records = {job.batch_records}
[kafka]
bootstrap = "{job.bootstrap}"
[input]
topics = ["{job.input}"]
[dedup]
key = ["event_id"]
expiry_key = "ts"
period = "{PERIOD_MS}ms"
scope = "{scope}"
[output]
unique = "{job.output}"
duplicate = "{job.name}.duplicate"
expired = "{job.name}.expired"
error = "{job.name}.error"
""")
        return [sys.executable, "-m", "replayfilter", "run", str(config)]

    return command


def _spark(kind: str) -> Callable[[Job], list[str]]:
    def command(job: Job) -> list[str]:
        return [sys.executable, "-m", "benchmarks.peers.spark_job", kind, job.bootstrap, job.input,
                job.output, str(job.batch_records), str(job.folder / "checkpoint")]  # fmt: skip

    return command


def _streams(repartition: bool) -> Callable[[Job], list[str]]:
    def command(job: Job) -> list[str]:
        settings = {
            "application.id": job.name,
            "bootstrap.servers": job.bootstrap,
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": 100,
            "num.stream.threads": CORES,
            "state.dir": job.folder / "state",
            "auto.offset.reset": "earliest",
            "replication.factor": 1,
            "input": job.input,
            "output": job.output,
            "period.ms": PERIOD_MS,
            "repartition": str(repartition).lower(),
            "partitions": job.partitions,
        }
        file = job.folder / "streams.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [str(java()), *HEAP.split(), log, "-cp", f"{BUILT / 'streams'}/*", "Dedup", str(file)]

    return command


def _flink(checkpoint_s: int) -> Callable[[Job], list[str]]:
    def command(job: Job) -> list[str]:
        return [str(PYTHON), str(PEERS / "flink_job.py"), job.bootstrap, job.input, job.output,
                str(CORES), f"{checkpoint_s} s", f"{PERIOD_MS} ms", str(job.folder / "checkpoint"),
                str(FLINK_JARS)]  # fmt: skip

    return command


def bytes_in(folder: Path) -> int:
    """The size of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def peer_versions() -> str:
    """The versions of the peers that are built, from the names of their files."""
    found = {
        "Kafka Streams": list(BUILT.glob("streams/kafka-streams-*.jar")),
        "Flink": list(BUILT.glob("python/lib/*/site-packages/apache_flink-*.dist-info")),
        "Flink's Kafka connector": list(BUILT.glob("flink/flink-sql-connector-kafka-*.jar")),
    }
    return ", ".join(f"{name} {_VERSION.findall(files[0].name)[0]}" for name, files in found.items() if files)


_VERSION = re.compile(r"-(\d[\d.]*\d(?:-[\d.]*\d)?)\.")
_OURS = "after `replayfilter prepare`"
_ROUTES = ("unique", "duplicate", "expired", "error")
_SPARK = "RocksDB with changelogs, no trigger interval"
_STREAMS = "commit.interval.ms 100, a window store of 1 h with its changelog"
_FLINK = (
    "SQL, RocksDB with incremental checkpoints, object reuse, pooled transactions, time to live 1 h, "
    "checkpoint every {every}"
)
_FLINK_OPTIONS = {"FLINK_ENV_JAVA_OPTS": HEAP}


def _our_state(folder: Path) -> int:
    return storage.measure(LocalFolder(folder / "checkpoint" / "spark")).latest


def _latest_spark_state(folder: Path) -> int:
    return storage.measure(LocalFolder(folder / "checkpoint")).latest


SYSTEMS: dict[str, System] = {
    "ours": System(
        "replayfilter", "exactly once, 4 topics, order kept", f"interval 1s, the default, {_OURS}",
        _ours("1s"), _our_state, outputs=_ROUTES, own=True,
    ),
    "ours-low": System(
        "replayfilter, interval 0s", "exactly once, 4 topics, order kept", f"interval 0s, {_OURS}",
        _ours("0s"), _our_state, outputs=_ROUTES, own=True,
    ),
    "ours-local": System(
        "replayfilter, within partitions", "exactly once, 4 topics, order kept, only within a partition",
        f'interval 1s, the default, scope = "partition", {_OURS}',
        _ours("1s", "partition"), _our_state, outputs=_ROUTES, own=True,
    ),
    "streams": System(
        "Kafka Streams, repartition", "exactly once, drops", f"exactly_once_v2, {_STREAMS}",
        _streams(True), lambda folder: bytes_in(folder / "state"), BUILT / "streams",
    ),
    "streams-local": System(
        "Kafka Streams, within partitions", "exactly once, drops, only within a partition",
        f"exactly_once_v2, {_STREAMS}",
        _streams(False), lambda folder: bytes_in(folder / "state"), BUILT / "streams",
    ),
    "flink-10s": System(
        "Flink, checkpoint 10 s", "exactly once, drops", _FLINK.format(every="10 s"),
        _flink(10), lambda folder: bytes_in(folder / "checkpoint"), PYTHON,
        environment=_FLINK_OPTIONS,
    ),
    "flink-1s": System(
        "Flink, checkpoint 1 s", "exactly once, drops", _FLINK.format(every="1 s"),
        _flink(1), lambda folder: bytes_in(folder / "checkpoint"), PYTHON,
        environment=_FLINK_OPTIONS,
    ),
    "plain": System(
        "Spark, dropDuplicates", "at least once, drops", _SPARK, _spark("plain"), _latest_spark_state,
    ),
    "within": System(
        "Spark, dropDuplicatesWithinWatermark", "at least once, drops", _SPARK,
        _spark("within"), _latest_spark_state,
    ),
    "copy": System(
        "Spark, copy without any logic", "at least once", "no trigger interval",
        _spark("copy"), lambda folder: 0, keeps="everything",
    ),
}  # fmt: skip
