"""The service compared with stock Spark: dropDuplicates and the Kafka sink, on the same broker and topic.

    python -m benchmarks throughput     all sides take turns, twice, with large batches
    python -m benchmarks latency        all sides take turns, twice, at 1,000 records/s
    python -m benchmarks                both

Each part prints a table; nothing is asserted. Machines are noisy, so compare only sides that took turns in
one run, and trust CPU seconds more than time. Stock Spark does less here: it finds no replays, has no topics
for duplicate, expired and error records, writes at least once, and keeps neither order nor stamps.

Time is Spark's ``triggerExecution`` of each batch, without waiting for records. The first third of the
batches is warm-up and not counted, since Java compiles for about a minute. CPU time is user and system time
of the whole process tree (Python driver, JVM and Python workers, but not the broker) over the same batches.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from rich.console import Console
from rich.table import Table

from replayfilter.demo.kafka_io import create_topic, publish
from replayfilter.demo.stream import OUTPUTS, STAMP, Record
from replayfilter.devbroker import DevBroker
from replayfilter.jvm.jars import connector_jars
from replayfilter.service.config.loader import config_from
from replayfilter.service.runtime.plan import pipeline_settings_of
from replayfilter.service.runtime.preflight import inspect
from replayfilter.spark.batch_range import BatchEnd
from replayfilter.spark.query import Service
from tests.support.service_process import descendants, paced

INPUT, PARTITIONS = "orders", 4
SIDE = "--side"
SIDES = {
    "ours": "replayfilter",
    "within": "stock dropDuplicatesWithinWatermark",
    "plain": "stock dropDuplicates + watermark",
}
PERIOD_MS = 3_600_000
console = Console(width=120)


def orders(records: int, start_ms: int, span_ms: int) -> Iterator[Record]:
    """Stamped orders of 200 bytes, up to half a minute out of order; one in ten repeats an earlier one."""
    rng, pid = random.Random(7), 4711
    recent: list[tuple[int, int]] = []
    for number in range(records):
        now = start_ms + span_ms * number // records
        partition = number % PARTITIONS
        event, ts = (number, now - rng.randrange(30_000)) if number % 10 or not recent else rng.choice(recent)
        if number % 10 == 1:
            recent = [*recent[-500:], (event, ts)]
        value = (
            f'{{"event_id":"order-{event:012d}","ts":{ts},"user":{event % 40_000},"amount":{event % 9_973}.5,'
        )
        value += f'"note":"{"x" * (199 - len(value) - 10)}"}}'
        yield Record(partition, number, STAMP.pack(pid, partition, number), value.encode(), now, [], "")


# ---- one side, in its own process -----------------------------------------------------------------------


@dataclass
class Task:
    """One run of one side. With ``seconds`` 0 it ends when everything is read."""

    side: str
    bootstrap: str
    output: str  # the start of the output topics' names
    batch_records: int
    seconds: float
    result: str


def run_side(task: Task) -> None:
    """Run one side, and write what its batches cost to the result file."""
    batches = Batches()
    with tempfile.TemporaryDirectory(prefix="replayfilter-bench-") as folder:
        run = (_ours if task.side == "ours" else _stock)(task, Path(folder))
        running = threading.Thread(target=run, args=(batches.add,), daemon=True)
        running.start()
        ends: float | None = None
        while running.is_alive() and not (ends and time.monotonic() > ends):
            time.sleep(0.05)
            if task.seconds and batches.found and ends is None:
                ends = time.monotonic() + task.seconds
        found, cpu = batches.found, batches.cpu
        assert len(cpu) > 2, f"{task.side} ran only {len(cpu)} batches: none is left after the warm-up"
        warm = len(cpu) // 3
        counted = found[warm : len(cpu)]
        cost = {
            "rows": sum(map(rows_of, counted)),
            "times_ms": list(map(milliseconds_of, counted)),
            "cpu_s": cpu[-1] - cpu[warm - 1],
        }
        Path(task.result).write_text(json.dumps(cost))
        SparkSession.active().stop()


class Batches:
    """The progress of each batch with records, and the process tree's CPU seconds at its end."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self.cpu: list[float] = []

    def add(self, progress: Any) -> None:
        if rows_of(progress):
            self.found.append(dict(progress))
            self.cpu.append(cpu_seconds(os.getpid()))


def rows_of(progress: Any) -> int:
    """The input records of a batch, from its offsets: Spark counts twice what a plan reads twice."""
    rows = 0
    for source in progress["sources"]:
        start, end = (BatchEnd.from_json(source[f"{side}Offset"] or {}).ends for side in ("start", "end"))
        rows += sum(offset - start.get(partition, 0) for partition, offset in end.items())
    return rows


def milliseconds_of(progress: Any) -> float:
    """The duration of a batch, without the time that our source waited for records before it."""
    waited_us = sum(BatchEnd.from_json(source["endOffset"] or {}).waited_us for source in progress["sources"])
    return float(progress["durationMs"]["triggerExecution"] - waited_us / 1000)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its descendants, with those that have ended."""
    ticks = 0
    for process in (pid, *descendants(pid)):
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{process}/stat").read_text("utf-8", "replace")
            ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


Run = Callable[
    [Callable[[Any], None]], None
]  # runs to the end; calls its argument with each batch's progress


def _ours(task: Task, folder: Path) -> Run:
    config = config_from({
        "service": {"name": task.output, "checkpoint": str(folder), "batch_records": task.batch_records},
        "kafka": {"bootstrap": task.bootstrap},
        "input": {"topics": [INPUT]},
        "dedup": {"key": ["event_id"], "expiry_key": "ts", "period": f"{PERIOD_MS}ms"},
        "output": {route: f"{task.output}.{route}" for route in OUTPUTS},
    })  # fmt: skip
    settings = pipeline_settings_of(config, inspect(config, False))

    def run(on_batch: Callable[[Any], None]) -> None:
        service = Service(settings, [on_batch])
        service.start(once=not task.seconds)
        service.await_end()

    return run


def _stock(task: Task, folder: Path) -> Run:
    builder = SparkSession.builder.appName(task.side).master("local[*]")
    for name, value in {
        "spark.jars": ",".join(map(str, connector_jars())),
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.shuffle.compress": "false",
        "spark.sql.shuffle.partitions": str(os.cpu_count()),
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }.items():
        builder = builder.config(name, value)
    source = (
        builder.getOrCreate().readStream.format("kafka").option("kafka.bootstrap.servers", task.bootstrap)
    )
    source = source.option("subscribe", INPUT).option("startingOffsets", "earliest")
    rows = source.option("maxOffsetsPerTrigger", task.batch_records).load()
    event = f.from_json(f.col("value").cast("string"), "event_id STRING, ts LONG")
    rows = rows.select("key", "value", event.alias("event")).select(
        "key", "value", "event.event_id", f.timestamp_millis("event.ts").alias("ts")
    )
    rows = rows.withWatermark("ts", f"{PERIOD_MS} milliseconds")
    if task.side == "within":
        unique = rows.dropDuplicatesWithinWatermark(["event_id"])
    else:
        unique = rows.dropDuplicates(["event_id", "ts"])
    sink = unique.select("key", "value").writeStream.format("kafka")
    sink = sink.option("kafka.bootstrap.servers", task.bootstrap).option("topic", f"{task.output}.unique")
    sink = sink.option("checkpointLocation", str(folder / "checkpoint"))

    def run(on_batch: Callable[[Any], None]) -> None:
        query = sink.start() if task.seconds else sink.trigger(availableNow=True).start()
        seen = -1
        while True:
            ended = query.awaitTermination(0.05)  # type: ignore[arg-type]  # seconds, may be a fraction
            if ended and seen >= (query.lastProgress or {"batchId": -1})["batchId"]:
                return
            for progress in query.recentProgress if query.lastProgress else ():
                if progress["batchId"] > seen:
                    seen = progress["batchId"]
                    on_batch(json.loads(progress.json))

    return run


# ---- the parts ---------------------------------------------------------------------------------------------


def measure(broker: DevBroker, side: str, batch_records: int, seconds: float = 0) -> dict[str, Any]:
    """Run a side in a new process with new output topics; what it cost."""
    output = f"{side}-{time.monotonic_ns()}"
    for route in OUTPUTS:
        create_topic(broker.bootstrap, f"{output}.{route}", PARTITIONS)
    with tempfile.NamedTemporaryFile(suffix=".json") as result:
        task = Task(side, broker.bootstrap, output, batch_records, seconds, result.name)
        subprocess.run([sys.executable, "-m", "benchmarks.stock", SIDE, json.dumps(asdict(task))], check=True)
        cost: dict[str, Any] = json.loads(Path(result.name).read_text())
    console.print(_line(side, cost), highlight=False)
    return cost


def throughput(records: int, batch_records: int, rounds: int) -> Table:
    with DevBroker() as broker:
        console.print(f"publishing {records:,} orders of 200 bytes over {PARTITIONS} partitions")
        create_topic(broker.bootstrap, INPUT, PARTITIONS)
        now = int(time.time() * 1000)
        publish(broker.bootstrap, INPUT, orders(records, now - 2 * PERIOD_MS, 2 * PERIOD_MS))
        runs = [(side, measure(broker, side, batch_records)) for _ in range(rounds) for side in SIDES]
    return _table(f"batches of {batch_records:,} records", runs)


def latency(seconds: float, rounds: int) -> Table:
    rate, runs = 1_000, []
    for side in [*SIDES] * rounds:
        with DevBroker() as broker, ThreadPoolExecutor(1) as aside:
            create_topic(broker.bootstrap, INPUT, PARTITIONS)
            now, count = int(time.time() * 1000), int((seconds + 20) * rate)
            stream = paced(orders(count, now, count), rate)
            publishing = aside.submit(publish, broker.bootstrap, INPUT, stream)
            runs.append((side, measure(broker, side, 1_200_000, seconds)))
            publishing.result()
    return _table(f"{rate:,} records/s", runs)


def _line(side: str, cost: dict[str, Any]) -> str:
    seconds = sum(cost["times_ms"]) / 1000
    return (
        f"{SIDES[side]:<38} {cost['rows'] / seconds:>9,.0f} rec/s  "
        f"{cost['cpu_s'] / cost['rows'] * 1e6:>6.1f} CPU s/million  "
        f"batch {statistics.median(cost['times_ms']):>6,.0f} ms median, {len(cost['times_ms'])} batches"
    )


def _table(title: str, runs: list[tuple[str, dict[str, Any]]]) -> Table:
    table = Table("side", title=title, title_justify="left")
    for column in ("rec/s", "CPU s/million records", "batch ms, median", "95%", "runs"):
        table.add_column(column, justify="right")
    for side, name in SIDES.items():
        own = [cost for key, cost in runs if key == side]
        times = sorted(ms for cost in own for ms in cost["times_ms"])
        rows = sum(cost["rows"] for cost in own)
        cpu = sum(cost["cpu_s"] for cost in own)
        table.add_row(
            name,
            f"{rows / sum(times) * 1000:,.0f}",
            f"{cpu / rows * 1e6:.1f}",
            f"{statistics.median(times):,.0f}",
            f"{times[int(len(times) * 0.95)]:,.0f}",
            str(len(own)),
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("throughput", "latency", "both"), nargs="?", default="both")
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--batch", type=int, default=300_000, help="records per batch")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=90, help="of each latency run")
    options = parser.parse_args()
    tables = []
    if options.part != "latency":
        tables.append(throughput(options.records, options.batch, options.rounds))
    if options.part != "throughput":
        tables.append(latency(options.seconds, options.rounds))
    console.print(*tables)


if __name__ == "__main__":
    if sys.argv[1:2] == [SIDE]:
        run_side(Task(**json.loads(sys.argv[2])))
    else:
        main()
