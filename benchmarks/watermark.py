"""The watermark: records that it saves compared with Spark's own, and its server under load.

    python -m benchmarks.watermark windows              three cases of late origins, hourly windows
    python -m benchmarks.watermark rules                the same cases with the rule of Flink and Spark
    python -m benchmarks.watermark stall [--plot F.svg] 30% of the origins stall: ours, Spark's rule, Spark
    python -m benchmarks.watermark load                 10,000 origins report every second, server on one core
    python -m benchmarks.watermark stores               how long one report takes, by store

``stall`` also runs the records through a real Spark query, and counts what Spark reports as dropped. ``load``
pins the server to core 0, and its clients to the other cores. ``stores`` sends one report after the other, in
rounds that alternate between two servers: one with a file, one with a topic of a development broker. Each
part prints a table; the assertions are in the tests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.watermark_cases import CASES, HOUR_S, ORIGINS, Batch, Stall, replay_stall, replay_windows
from replayfilter.core.clock.units import UNKNOWN
from replayfilter.devbroker import DevBroker
from tests.support.server_process import ServerProcess, write_config

console = Console(width=120)


def show(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table of numbers."""
    table = Table(title=title, title_justify="left")
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left")
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    console.print(table)


# ---- windows -----------------------------------------------------------------------------------------


def windows() -> None:
    """For each of the three cases, what each closed window lacks of the full data."""
    for name, delay in CASES.items():
        rows = [
            (f"{window.hour}:00-{window.hour + 1}:00", f"{window.at_s / 3600:.2f} h", window.held,
             window.full, f"{100 * window.difference:.4f} %")
            for window in replay_windows(delay, 6)
        ]  # fmt: skip
        heads = ("window", "closed at", "records at closing", "records in the end", "difference")
        show(f"{ORIGINS:,} origins, 99.9%: {name}", heads, rows)


# ---- rules ---


def rules() -> None:
    """For each case and rule, how late the windows close, and what they lack then."""
    rows = []
    for name, delay in CASES.items():
        for bound_s in (None, 60, 600, HOUR_S, 3 * HOUR_S):
            closed = replay_windows(delay, 6, bound_s=bound_s)
            rule = "origins counted, 99.9%" if bound_s is None else f"largest time - {bound_s // 60} min"
            after = [(window.at_s - (window.hour + 1) * HOUR_S) / 60 for window in closed]
            lacks = [100 * window.difference for window in closed]
            late = sum(window.full - window.held for window in closed)
            rows.append(
                (name, rule, f"{statistics.median(after):.0f} min", f"{max(after):.0f} min",
                 f"{max(lacks):.4f} %", late)
            )  # fmt: skip
    heads = ("case", "rule", "closes after, median", "at most", "worst window lacks", "records too late")
    show(f"{ORIGINS:,} origins, a record a minute each, 6 hourly windows", heads, rows)


# ---- stall -------------------------------------------------------------------------------------------


def stall(plot: Path | None) -> None:
    """By minute, how many records are behind the watermark when they arrive."""
    case = Stall()
    batches = replay_stall(case)
    real = run_spark(case, batches)
    rows = []
    for start in range(0, case.length_s, 60):
        part = [n for n, batch in enumerate(batches) if start < batch.at_s <= start + 60]
        last = batches[part[-1]]
        arrived = sum(len(batches[n].times) for n in part)
        lows = ["-" if low == UNKNOWN else f"{low} s" for low in (last.ours_low, last.spark_low)]
        counts = [sum(batches[n].ours for n in part), sum(batches[n].spark for n in part)]
        rows.append((f"{start // 60 + 1}", arrived, *lows, *counts, sum(real[n] for n in part)))
    heads = (
        "minute",
        "records",
        "our low",
        "Spark's",
        "behind ours",
        "behind Spark's rule",
        "dropped by Spark",
    )
    minutes = f"{case.start_s // 60 + 1} to {case.end_s // 60}"
    away = f"{case.stalled} of {case.origins} origins stall in minutes {minutes}"
    show(f"{away}; Spark allows {case.allowed_s} s", heads, rows)
    totals = [sum(getattr(batch, name) for batch in batches) for name in ("ours", "spark")]
    everything = sum(len(batch.times) for batch in batches)
    console.print(
        f"of {everything:,} records behind the watermark: ours {totals[0]:,}, Spark's rule {totals[1]:,}, "
        f"dropped by Spark itself {sum(real):,}"
    )
    if plot is not None:
        plot.write_text(svg_of(case, batches, real), "utf-8")
        console.print(f"plot: {plot}")


def run_spark(case: Stall, batches: Sequence[Batch]) -> list[int]:
    """Run the batches through Spark's withWatermark and dropDuplicates; the rows dropped in each."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "in")
        files.mkdir()
        for number, batch in enumerate(batches):
            table = pa.table({"origin": batch.origins, "us": batch.times * 1_000_000})
            path = files / f"{number:05d}.parquet"
            pq.write_table(table, path)
            os.utime(path, (number + 1, number + 1))  # the source reads files in this order
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.sql.shuffle.partitions", "1").config("spark.driver.host", "127.0.0.1")
        spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        read = spark.readStream.schema("origin LONG, us LONG").option("maxFilesPerTrigger", 1)
        records = read.parquet(str(files)).selectExpr("origin", "timestamp_micros(us) AS ts")
        unique = records.withWatermark("ts", f"{case.allowed_s} seconds").dropDuplicates(["origin", "ts"])
        writer = unique.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(Path(folder, "checkpoint"))).start()
        dropped = {}
        while True:
            ended = query.awaitTermination(0.2)  # type: ignore[arg-type]  # seconds, may be a fraction
            for progress in query.recentProgress:
                if progress["numInputRows"]:
                    found = progress["stateOperators"][0]["numRowsDroppedByWatermark"]
                    dropped[progress["batchId"]] = int(found)
            if ended:
                break
        spark.stop()
    if len(dropped) != len(batches):
        raise RuntimeError(f"Spark reported {len(dropped)} batches of {len(batches)}")
    return [dropped[number] for number in sorted(dropped)]


def svg_of(case: Stall, batches: Sequence[Batch], real: Sequence[int]) -> str:
    """A plot of both watermarks over time, and below it the records lost."""
    width, left, top, height = 900, 70, 30, 260
    right, bottom, bars = width - 20, top + height, 120

    def x(at: float) -> float:
        return left + at / case.length_s * (right - left)

    def y(time_s: float) -> float:
        return bottom - time_s / case.length_s * height

    def line(points: list[tuple[float, float]], color: str, dash: str = "") -> str:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        style = f'fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"'
        return f'<polyline points="{path}" {style}/>'

    ours = [(x(b.at_s), y(b.ours_low)) for b in batches if b.ours_low != UNKNOWN]
    most = max([1, *real])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + bars + 50}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<rect x="{x(case.start_s)}" y="{top}" width="{x(case.end_s) - x(case.start_s)}" '
        f'height="{height + bars}" fill="#f3e9e2"/>',
        line([(x(0), y(0)), (x(case.length_s), y(case.length_s))], "#999999", "2 4"),
        line(ours, "#0b6bcb"),
        line([(x(b.at_s), y(b.spark_low)) for b in batches], "#b3401b", "6 3"),
    ]
    for batch, lost in zip(batches, real, strict=True):
        tall = lost / most * (bars - 20)
        box = f'x="{x(batch.at_s) - 3}" y="{bottom + bars - tall:.1f}" width="4" height="{tall:.1f}"'
        parts.append(f'<rect {box} fill="#b3401b"/>')
    for minute in range(0, case.length_s // 60 + 1, 5):
        for at, beside, anchor in (
            (x(minute * 60), bottom + bars + 16, "middle"),
            (left - 8, y(minute * 60) + 4, "end"),
        ):
            parts.append(f'<text x="{at}" y="{beside}" text-anchor="{anchor}">{minute} min</text>')
    texts = [
        (left, 18, "watermarks over time: ours (blue), Spark's (red, dashed); shaded: the stall"),
        (left, bottom + 24, f"records behind the watermark in each batch: Spark dropped {sum(real):,} "
         f"(largest bar {most:,}), ours {sum(b.ours for b in batches):,}"),
    ]  # fmt: skip
    parts += [f'<text x="{at}" y="{line_}">{text}</text>' for at, line_, text in texts]
    return "\n".join([*parts, "</svg>\n"])


# ---- load --------------------------------------------------------------------------------------------

SECONDS, WARM_SECONDS, READS = 20, 3, 50
READ = ["/v1/stages/web/low", "/v1/low", "/v1/stages/web/window?end=1", "/v1/stages/web", "/v1/health"]


@dataclass
class Loaded:
    """Latencies in seconds, by kind of request; ``late``: reports that took longer than a second."""

    reports: list[float] = field(default_factory=list)
    reads: dict[str, list[float]] = field(default_factory=lambda: {path: [] for path in READ})
    late: int = 0


class Connection:
    """A keep-alive HTTP connection that does as little as possible, so that the server is measured."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def ask(self, request: bytes) -> None:
        """Send a request and read its response; RuntimeError unless it is 200."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await self._reader.readexactly(length)


def load() -> None:
    """Let 10,000 origins report every second, over different numbers of clients, with reads beside them."""
    rows = []
    for clients in (1, 10, 100, 1_000):
        with tempfile.TemporaryDirectory() as folder:
            names = [f"host-{number:05d}" for number in range(ORIGINS)]
            Path(folder, "hosts").write_text("\n".join(names))
            stages = (
                '[stages.web]\nroster = "hosts"\ncompleteness = "0.999"\n[stages.next]\nupstream = ["web"]\n'
            )
            with ServerProcess(write_config(Path(folder), stages, lease="5s"), core=0) as server:
                before = cpu_seconds(server.process.pid)
                started = time.monotonic()
                found = asyncio.run(drive(int(server.url.rsplit(":", 1)[1]), names, clients))
                elapsed = time.monotonic() - started
                share = (cpu_seconds(server.process.pid) - before) / elapsed
                origins = server.get("/v1/stages/web")["origins"]
                assert origins == ORIGINS
        console.print(f"{clients:,} clients done")
        reads = [each for times in found.reads.values() for each in times]
        rows.append(
            (f"{clients:,} x {ORIGINS // clients:,}", f"{100 * share:.0f} %", quantile(found.reports, 0.5),
             quantile(found.reports, 0.99), found.late, quantile(reads, 0.5), quantile(reads, 0.99),
             f"{max(reads) * 1e3:.1f} ms")
        )  # fmt: skip
    heads = ("clients x origins", "CPU of the core", "report p50", "report p99", "late reports", "read p50",
             "read p99", "read max")  # fmt: skip
    title = f"{ORIGINS:,} origins each second for {SECONDS} s, {READS} reads/s, server on one core"
    show(f"{title} (load average {os.getloadavg()[0]:.1f})", heads, rows)


async def drive(port: int, names: list[str], clients: int) -> Loaded:
    """Report all origins once a second, spread over the second, and read at the same time."""
    found, begin = Loaded(), time.monotonic() + 0.5
    parts = np.array_split(np.array(names), clients)
    reporters = [
        report_on(found, port, part.tolist(), number, clients, begin) for number, part in enumerate(parts)
    ]
    await asyncio.gather(*reporters, read_on(found, port, begin))
    return found


async def report_on(
    found: Loaded, port: int, names: list[str], number: int, clients: int, begin: float
) -> None:
    """One client: one report per second. A report answered after more than a second is late."""
    connection = await Connection(port).open()
    for second in range(SECONDS + WARM_SECONDS):
        due = begin + second + number / clients
        now_us = time.time_ns() // 1_000
        report = {"stage": "web", "partition": str(number), "origins": dict.fromkeys(names, now_us)}
        body = json.dumps({"session": 1, "sequence": second, "reports": [report]}).encode()
        head = f"POST /v1/report HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        started = time.monotonic()
        await connection.ask(head + body)
        if second >= WARM_SECONDS:
            ended = time.monotonic()
            found.reports.append(ended - started)
            found.late += ended > due + 1


async def read_on(found: Loaded, port: int, begin: float) -> None:
    """Read at a steady rate; latency counts from the time when a read was due."""
    connection = await Connection(port).open()
    for number in range((SECONDS + WARM_SECONDS) * READS):
        due = begin + number / READS
        path = READ[number % len(READ)]
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        started = time.monotonic()
        await connection.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        if number >= WARM_SECONDS * READS:
            found.reads[path].append(time.monotonic() - started)


# ---- stores ------------------------------------------------------------------------------------------


def stores() -> None:
    """How long one report of one origin takes, until the server has acknowledged it."""
    rounds, reports = 5, 200
    with ExitStack() as running:
        broker = running.enter_context(DevBroker())
        kafka = f'[kafka]\nbootstrap = "{broker.bootstrap}"\n'
        stage = '[stages.web]\nroster = ["host-1"]\n'
        servers = {}
        for store, text in (("a file", stage), ("a topic", kafka + stage)):
            folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
            keys = {"lease": "5s", "store": "watermark.db" if text is stage else "kafka:watermark"}
            servers[store] = running.enter_context(ServerProcess(write_config(folder, text, **keys)))
            for sequence in range(100):
                servers[store].report("web", {"host-1": sequence}, sequence=sequence)
        times: dict[str, list[float]] = {store: [] for store in servers}
        for number in range(rounds):
            for store, server in servers.items():
                for each in range(reports):
                    sequence = 1_000 + number * reports + each
                    started = time.monotonic()
                    server.report("web", {"host-1": sequence}, sequence=sequence)
                    times[store].append(time.monotonic() - started)
        for server in servers.values():
            assert server.low("web") == 999 + rounds * reports
    title = f"{rounds * reports:,} reports, one after the other (load average {os.getloadavg()[0]:.1f})"
    rows = [
        (store, quantile(each, 0.5), quantile(each, 0.99), f"{max(each) * 1e3:.1f} ms")
        for store, each in times.items()
    ]
    show(title, ("store", "median", "99%", "max"), rows)


def quantile(times: list[float], share: float) -> str:
    """A quantile as text, in ms."""
    return f"{statistics.quantiles(times, n=1000)[round(share * 1000) - 1] * 1e3:.1f} ms"


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run the part that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watermark")
    parser.add_argument("part", choices=["windows", "rules", "stall", "load", "stores"])
    parser.add_argument("--plot", type=Path, help="for stall: write an SVG to this file")
    options = parser.parse_args()
    if options.part == "windows":
        windows()
    elif options.part == "rules":
        rules()
    elif options.part == "stall":
        stall(options.plot)
    elif options.part == "stores":
        stores()
    else:
        if hasattr(os, "sched_setaffinity") and (cores := os.sched_getaffinity(0) - {0}):
            os.sched_setaffinity(0, cores)
        load()


if __name__ == "__main__":
    main()
