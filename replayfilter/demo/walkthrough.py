"""The command ``replayfilter demo``: a real broker, a dirty stream, the service, a check of every record.

It uses the service only by its command line (``topics``, ``run --once``), so it shows what a user would see.
The stream and the check share no code with the service: see `replayfilter.demo.stream` and
`replayfilter.demo.check`.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from replayfilter.demo.check import ConsumerRecord, Verdict, compare
from replayfilter.demo.kafka_io import create_topic, publish, read_topic
from replayfilter.demo.stream import OUTPUTS, Expected, Record, expected_routes, generate
from replayfilter.devbroker import DevBroker

INPUT = "orders"
PARTITIONS = 4
BATCH_RECORDS = 60_000
"""Small enough for several batches: the later ones need the keys and marks that earlier ones stored."""

CONFIG = """\
[service]
name = "{name}"
checkpoint = "{folder}/checkpoint"
master = "local[*]"
batch_records = {batch_records}

[kafka]
bootstrap = "{bootstrap}"

[input]
topics = ["{name}"]              # JSON, stamped in the key by two upstream jobs

[dedup]
key = ["event_id"]
expiry_key = "ts"
period = "1h"

[output]
unique = "{name}.unique"
duplicate = "{name}.duplicate"
expired = "{name}.expired"
error = "{name}.error"
"""

MEANING = {
    "unique": "first with their key, on time",
    "duplicate": "sent again by a sender",
    "expired": "hours late",
    "error": "unusable, kept unchanged",
    "replay": "written again after a crash",
}


def write_config(folder: Path, bootstrap: str, name: str = INPUT, batch_records: int = BATCH_RECORDS) -> Path:
    """Write a config for a service and topics called ``name`` into ``folder``; return its path."""
    path = folder / f"{name}.toml"
    text = CONFIG.format(folder=folder, bootstrap=bootstrap, name=name, batch_records=batch_records)
    path.write_text(text, "utf-8")
    return path


def run_demo(records: int, console: Console) -> bool:
    """Run the demo with ``records`` records and print the result; True only if every record is right.

    Raises MissingDependency if Java or a jar is missing, BrokerError if Kafka fails, and ValueError for fewer
    than 2,000 records.
    """
    started = time.monotonic()
    console.print(
        f"\n[bold]replayfilter demo[/bold]: sends {records:,} records of a dirty stream through a real Kafka "
        "and a real Spark,\nthen compares every record of the output topics with what was published.\n"
    )
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="replayfilter-demo-")))
        executor = stack.enter_context(ThreadPoolExecutor(1))
        generated = executor.submit(_generate, records, int(time.time() * 1000))
        with _step(console, "Starting Kafka"):
            broker = stack.enter_context(DevBroker())
        with _step(console, "Publishing orders, as two upstream jobs that sometimes crash and write again"):
            stream, expected = generated.result()
            create_topic(broker.bootstrap, INPUT, PARTITIONS)
            publish(broker.bootstrap, INPUT, stream)
        config = write_config(folder, broker.bootstrap)
        console.print(Syntax(config.read_text("utf-8").rstrip(), "toml", background_color="default"))
        for arguments in (["topics", str(config)], ["run", str(config), "--once", "--log-format", "text"]):
            with _step(console, f"replayfilter {' '.join(arguments).replace(str(folder) + '/', '')}"):
                code = _replayfilter(console, arguments)
            if code != 0:
                console.print(f"[red]It failed with exit code {code}; its output is above.[/red]")
                return False
        with _step(console, "Reading the output topics and comparing every record"):
            outputs = {route: read_topic(broker.bootstrap, f"{INPUT}.{route}") for route in OUTPUTS}
            verdicts = compare(stream, expected, outputs)
    console.print()
    console.print(_table(verdicts))
    _show_an_error(console, outputs["error"])
    return _conclude(console, verdicts, time.monotonic() - started)


def _generate(records: int, end_ms: int) -> tuple[list[Record], list[Expected]]:
    stream = generate(records, end_ms=end_ms, partitions=PARTITIONS)
    return stream, expected_routes(stream, end_ms=end_ms)


@contextlib.contextmanager
def _step(console: Console, what: str) -> Iterator[None]:
    started = time.monotonic()
    console.print(f"[cyan]▸[/cyan] {what} ...", highlight=False)
    yield
    console.print(f"  [green]done[/green] in {time.monotonic() - started:.1f} s", highlight=False)


def _replayfilter(console: Console, arguments: list[str]) -> int:
    """Run the command line and print its output; return its exit code."""
    command = [sys.executable, "-m", "replayfilter", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                console.print(Text(f"  │ {line.rstrip()}", style="dim"), soft_wrap=True)
            return process.wait()
        finally:
            process.terminate()


def _table(verdicts: dict[str, Verdict]) -> Table:
    title = "Every record, by its expected route"
    table = Table(title=title, title_justify="left", show_footer=True, box=SIMPLE_HEAD)
    table.add_column("route", footer="all", style="bold")
    table.add_column("what these are", style="dim")
    table.add_column("published", f"{sum(v.expected for v in verdicts.values()):,}", justify="right")
    table.add_column("topic", min_width=len(f"{INPUT}.duplicate"))
    table.add_column("found", f"{sum(verdicts[route].found for route in OUTPUTS):,}", justify="right")
    table.add_column("verdict", _mark(all(verdict.ok for verdict in verdicts.values())))
    for route, verdict in verdicts.items():
        topic, found = f"{INPUT}.{route}", f"{verdict.found:,}"
        if route == "replay":
            topic, found = "none: dropped", "0" if verdict.ok else f"{verdict.expected - verdict.found:,}"
        table.add_row(route, MEANING[route], f"{verdict.expected:,}", topic, found, _mark(verdict.ok))
    return table


def _mark(ok: bool) -> Text:
    return Text("right", style="green") if ok else Text("WRONG", style="bold red")


def _show_an_error(console: Console, errors: list[ConsumerRecord]) -> None:
    """Print one broken record of the error topic with the headers that explain it."""
    row = next((row for row in errors if row.value and row.value.startswith(b"<html")), None)
    if row is not None:
        said = {name: (value or b"").decode() for name, value in row.headers if name.startswith("rf-")}
        console.print("\nOne of the broken records in orders.error:")
        for name, text in {**said, "value": (row.value or b"").decode()}.items():
            console.print(Text(f"  {name:<11} {text}", style="dim"))


def _conclude(console: Console, verdicts: dict[str, Verdict], seconds: float) -> bool:
    for verdict in verdicts.values():
        if verdict.wrong:
            console.print(f"\n[red]{verdict.route}: {verdict.wrong:,} problems[/red]; the first ones:")
            for problem in verdict.problems:
                console.print(Text(f"  {problem}"[:400]))
    if not all(verdict.ok for verdict in verdicts.values()):
        console.print(f"\n[bold red]The check failed[/bold red] after {seconds:.0f} s.")
        return False
    kinds = sum((verdict.kinds for verdict in verdicts.values()), Counter[str]())
    console.print(
        f"\n[bold green]All records are right[/bold green] after {seconds:.0f} s: topic, partition, order, "
        f"key, value, timestamp and headers\nof every record, in {len(kinds)} kinds of records.\n\n"
        "Next: README.md lists what is guaranteed. [bold]replayfilter broker[/bold] starts a Kafka to try "
        "things on;\n[bold]replayfilter run CONFIG[/bold] takes a config like the one above.",
        highlight=False,
    )
    return True
