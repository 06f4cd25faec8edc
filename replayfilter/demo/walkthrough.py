"""The demo: a real broker, a dirty stream, the service as a user runs it, and a check of every record.

It stands on the command line alone (``topics``, ``run --once``), so it shows what anybody would see. The
check knows nothing of the service: see `demo_stream` and `demo_check`.
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

from replayfilter.demo.check import Found, Verdict, compare
from replayfilter.demo.kafka_io import create_topic, publish, read_topic
from replayfilter.demo.stream import OUTPUTS, Expected, Record, expected_routes, generate
from replayfilter.devbroker import DevBroker

INPUT = "orders"
PARTITIONS = 4
BATCH_RECORDS = 60_000
"""Several batches, so that the state works too: each meets the keys and marks of those before."""

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
    "unique": "first of their kind, in time",
    "duplicate": "a sender tried again",
    "expired": "hours late",
    "error": "unusable, bytes kept",
    "replay": "written again after a crash",
}


def write_config(folder: Path, bootstrap: str, name: str = INPUT, batch_records: int = BATCH_RECORDS) -> Path:
    """Write a config into ``folder`` for a service and topics called ``name``; its path."""
    path = folder / f"{name}.toml"
    text = CONFIG.format(folder=folder, bootstrap=bootstrap, name=name, batch_records=batch_records)
    path.write_text(text, "utf-8")
    return path


def run_demo(records: int, console: Console) -> bool:
    """Run the whole demo with ``records`` records and say how it went; True only if every record is right.

    Raises MissingDependency without Java or jars, BrokerError if Kafka fails, ValueError below 2,000 records.
    """
    started = time.monotonic()
    console.print(
        f"\n[bold]replayfilter demo[/bold]: {records:,} records of a dirty stream through real Kafka and "
        "real Spark;\nthen each record of the output topics is compared with what was published.\n"
    )
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="replayfilter-demo-")))
        aside = stack.enter_context(ThreadPoolExecutor(1))
        story = aside.submit(_tell, records, int(time.time() * 1000))
        with _step(console, "Kafka starts"):
            broker = stack.enter_context(DevBroker())
        with _step(console, "Two upstream jobs publish orders, crash now and then, and write again"):
            stream, expected = story.result()
            create_topic(broker.bootstrap, INPUT, PARTITIONS)
            publish(broker.bootstrap, INPUT, stream)
        config = write_config(folder, broker.bootstrap)
        console.print(Syntax(config.read_text("utf-8").rstrip(), "toml", background_color="default"))
        for arguments in (["topics", str(config)], ["run", str(config), "--once", "--log-format", "text"]):
            with _step(console, f"replayfilter {' '.join(arguments).replace(str(folder) + '/', '')}"):
                code = _replayfilter(console, arguments)
            if code != 0:
                console.print(f"[red]It ended with exit code {code}; what it said stands above.[/red]")
                return False
        with _step(console, "Reading the output topics back and comparing every record"):
            outputs = {route: read_topic(broker.bootstrap, f"{INPUT}.{route}") for route in OUTPUTS}
            verdicts = compare(stream, expected, outputs)
    console.print()
    console.print(_table(verdicts))
    _show_an_error(console, outputs["error"])
    return _conclude(console, verdicts, time.monotonic() - started)


def _tell(records: int, end_ms: int) -> tuple[list[Record], list[Expected]]:
    stream = generate(records, end_ms=end_ms, partitions=PARTITIONS)
    return stream, expected_routes(stream, end_ms=end_ms)


@contextlib.contextmanager
def _step(console: Console, what: str) -> Iterator[None]:
    started = time.monotonic()
    console.print(f"[cyan]▸[/cyan] {what} ...", highlight=False)
    yield
    console.print(f"  [green]done[/green] in {time.monotonic() - started:.1f} s", highlight=False)


def _replayfilter(console: Console, arguments: list[str]) -> int:
    """Run our own command line and show what it says; its exit code."""
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
    title = "Every record, by the route it had to take"
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


def _show_an_error(console: Console, errors: list[Found]) -> None:
    """One broken record as it stands in the error topic; one with something to see."""
    row = next((row for row in errors if row.value and row.value.startswith(b"<html")), None)
    if row is not None:
        said = {name: (value or b"").decode() for name, value in row.headers if name.startswith("rf-")}
        console.print("\nOne of the broken ones, as it stands in orders.error:")
        for name, text in {**said, "value": (row.value or b"").decode()}.items():
            console.print(Text(f"  {name:<11} {text}", style="dim"))


def _conclude(console: Console, verdicts: dict[str, Verdict], seconds: float) -> bool:
    for verdict in verdicts.values():
        if verdict.wrong:
            console.print(f"\n[red]{verdict.route}: {verdict.wrong:,} wrong[/red]; the first of them:")
            for problem in verdict.problems:
                console.print(Text(f"  {problem}"[:400]))
    if not all(verdict.ok for verdict in verdicts.values()):
        console.print(f"\n[bold red]Not all records came out right[/bold red] ({seconds:.0f} s).")
        return False
    kinds = sum((verdict.kinds for verdict in verdicts.values()), Counter[str]())
    console.print(
        f"\n[bold green]Right to the last byte[/bold green] after {seconds:.0f} s: topic, partition, order, "
        f"key, value, timestamp and headers\nof every record, among {len(kinds)} kinds of them.\n\n"
        "Next: README.md says what is guaranteed and what is not. [bold]replayfilter broker[/bold] gives you "
        "a Kafka to play with;\n[bold]replayfilter run CONFIG[/bold] takes a config like the one above.",
        highlight=False,
    )
    return True
