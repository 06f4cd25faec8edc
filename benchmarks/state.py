"""The cost of a large state: throughput, small batches, bytes per key and restart, by remembered keys.

    python -m benchmarks.state                      0.1, 1 and 10 million keys
    python -m benchmarks.state 0.1 1 10 50          also 50 million: needs 15 GB of disk and an hour

With a real broker and pipeline, no stamps, and match = "window", which costs more than "bucket" because every
live bucket is searched. The steps for each number of keys:

1. Load the keys, then two minutes of small batches, in which Spark cleans up its files after the load.
2. Measure the bytes per key on disk, of the version that a restart reads and of all that Spark retains.
3. Batches of known keys with a tenth of new ones.
4. Batches of 1,000 records.
5. A new process that starts from the checkpoint and processes one batch.

Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from benchmarks.batches import Batches, rows_of
from replayfilter.demo.kafka_io import create_topic
from replayfilter.demo.stream import OUTPUTS
from replayfilter.devbroker import DevBroker
from replayfilter.service.config.loader import config_from
from replayfilter.service.monitor import storage
from replayfilter.service.runtime.plan import pipeline_settings_of
from replayfilter.service.runtime.preflight import inspect
from replayfilter.spark.checkpoint_folder import LocalFolder
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.query import Service

PARTITIONS, PERIOD_MS = 4, 3_600_000
BIG, NEW, BIG_BATCHES = 400_000, 40_000, 4
SMALL, SMALL_BATCHES = 1_000, 30
WARM_UP_BATCHES = 6
# Spark's maintenance runs every 60 s; meanwhile there is a small batch every 2 s.
MAINTENANCE_S, SMALL_BATCH_EVERY_S = 70, 2
RESTART = "--restart"
console = Console(width=120)


class Bench:
    """A service between its topics; ``keys`` counts the keys that were published so far."""

    def __init__(self, bootstrap: str, folder: Path, most_keys: int) -> None:
        for topic in ("state", *(f"state.{route}" for route in OUTPUTS)):
            create_topic(bootstrap, topic, PARTITIONS)
        config = config_from({
            "service": {"name": "state", "checkpoint": str(folder / "checkpoint")},
            "kafka": {"bootstrap": bootstrap},
            "input": {"topics": ["state"], "stamp": "none"},
            "replay": {"enabled": False},
            "dedup": {"key": ["id"], "expiry_key": "ts", "period": f"{PERIOD_MS}ms", "cache": "8GB"},
            "output": {route: f"state.{route}" for route in OUTPUTS},
        })  # fmt: skip
        findings = inspect(config, False)
        assert not findings.errors, findings.errors
        self.settings = pipeline_settings_of(config, findings)
        self.settings_file = folder / "settings.pickle"
        self.settings_file.write_bytes(pickle.dumps(self.settings))
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 1_000_000, "linger.ms": 50}
        )
        self.begin, self.step = int(time.time() * 1000) - PERIOD_MS, PERIOD_MS * 0.9 / (most_keys + 20 * BIG)
        self.keys = 0

    def publish(self, numbers: Iterator[int]) -> None:
        """Publish one record per key number; the same number always has the same time."""
        for count, number in enumerate(numbers):
            value = f'{{"id":{number},"ts":{self.begin + int(number * self.step)}}}'
            while True:
                try:
                    self.producer.produce("state", value, partition=count % PARTITIONS)
                    break
                except BufferError:
                    self.producer.poll(0.1)
            if not count % 1000:
                self.producer.poll(0)
        self.producer.flush()

    def publish_new(self, count: int) -> None:
        self.publish(iter(range(self.keys, self.keys + count)))
        self.keys += count

    def run(self, batch_records: int) -> tuple[list[dict[str, Any]], list[float]]:
        """Process all that is there now; each batch's progress, and the CPU seconds used until its end.

        The first batch also loads the state, so all measurements leave it out.
        """
        batches = Batches()
        service = Service(replace(self.settings, batch_records=batch_records), [batches.add])
        service.start(once=True)
        service.await_end()
        return batches.found, batches.cpu

    def run_small_batches(self) -> None:
        """A quiet service for as long as Spark needs to put the old versions of its state away, twice."""
        service = Service(replace(self.settings, batch_records=SMALL), [])
        service.start()
        ending = threading.Thread(target=service.await_end)
        ending.start()
        for _ in range(2 * MAINTENANCE_S // SMALL_BATCH_EVERY_S):
            self.publish_new(SMALL)
            time.sleep(SMALL_BATCH_EVERY_S)
        service.stop_after_batch()
        self.publish_new(SMALL)
        ending.join()

    def restart(self) -> float:
        """The seconds from the start of a new process to the end of its first batch."""
        self.publish_new(SMALL)
        command = [sys.executable, "-m", "benchmarks.state", RESTART, str(self.settings_file)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return float(done.stdout.splitlines()[-1])


def restart(settings_file: Path) -> None:
    """Start from a checkpoint; print the seconds from the start of this process to the end of a batch."""
    started_at = time.time() - _process_age()
    ends: list[float] = []
    service = Service(pickle.loads(settings_file.read_bytes()), [lambda _: ends.append(time.time())])
    service.start(once=True)
    service.await_end()
    print(ends[0] - started_at)


def _process_age() -> float:
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return uptime - started / os.sysconf("SC_CLK_TCK")


def warm_up(bench: Bench, keys: int) -> None:
    """Run batches of known keys while Java compiles, which takes about a minute."""
    bench.publish_new(keys)
    for _ in range(WARM_UP_BATCHES):
        bench.publish(known_keys(bench, BIG))
        bench.run(BIG)


def known_keys(bench: Bench, count: int) -> Iterator[int]:
    """Numbers of published keys, evenly from the first to the last, so that every bucket is searched."""
    return (bench.keys * number // count for number in range(count))


def measure(bench: Bench, keys: int) -> dict[str, float]:
    bench.publish_new(max(0, keys - bench.keys))
    bench.run(1_200_000)
    bench.run_small_batches()
    stored, keys_stored = storage.measure(LocalFolder(_spark_folder(bench.settings))), bench.keys
    for _ in range(1 + BIG_BATCHES):
        bench.publish(known_keys(bench, BIG - NEW))
        bench.publish_new(NEW)
    big, cpu = bench.run(BIG)
    rows = sum(map(rows_of, big[1:]))
    seconds = sum(batch["durationMs"]["triggerExecution"] for batch in big[1:]) / 1000
    bench.publish_new(SMALL * SMALL_BATCHES)
    small, _ = bench.run(SMALL)
    times = [batch["durationMs"]["triggerExecution"] for batch in small]
    counts = small[-1]["observedMetrics"]["counts"]
    return {
        "keys": counts["state_keys"],
        "rec/s": rows / seconds,
        "CPU s/million": (cpu[-1] - cpu[0]) / rows * 1e6,
        "small batch ms": statistics.median(times[SMALL_BATCHES // 3 :]),
        "bytes/key": counts["state_bytes"] / counts["state_keys"],
        "on disk": stored.latest / keys_stored,
        "all versions": stored.all / keys_stored,
        "restart s": bench.restart(),
    }


def _spark_folder(settings: PipelineSettings) -> Path:
    return Path(settings.checkpoint.removeprefix("file:"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("millions", type=float, nargs="*", default=[0.1, 1, 10])
    sizes = [int(millions * 1e6) for millions in parser.parse_args().millions]
    table = Table(title="by remembered keys", title_justify="left")
    with tempfile.TemporaryDirectory(prefix="replayfilter-state-") as folder, DevBroker() as broker:
        bench = Bench(broker.bootstrap, Path(folder), max(sizes))
        warm_up(bench, min(sizes))
        for size in sizes:
            found = measure(bench, size)
            console.print(json.dumps({name: round(value, 2) for name, value in found.items()}))
            if not table.columns:
                for name in found:
                    table.add_column(name, justify="right")
            table.add_row(*(f"{value:,.1f}" if value < 1000 else f"{value:,.0f}" for value in found.values()))
    console.print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == [RESTART]:
        restart(Path(sys.argv[2]))
    else:
        main()
