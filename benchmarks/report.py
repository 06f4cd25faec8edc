"""Tables, plots and the page from the results of ``python -m benchmarks``.

    python -m benchmarks.report [RESULTS]             print the tables
    python -m benchmarks.report [RESULTS] --page      also write them to docs/concepts/performance.md

The page keeps the results next to it, so a test can check that nobody has edited its tables by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.comparison import Live, Result
from benchmarks.systems import PYTHON, RESULTS, SYSTEMS

PAGE = Path(__file__).parents[1] / "docs" / "concepts" / "performance.md"
KEPT = Path(__file__).with_name("results.json")
MADE = re.compile(r"(<!-- made by benchmarks/report\.py -->\n).*?(<!-- end of what is made -->\n)", re.DOTALL)
PLOTS = {"throughput": "Records per second, and CPU seconds per million", "latency": "Delay at a steady rate"}


class Column(NamedTuple):
    """A figure of a run; ``value`` is None if it was not measured."""

    title: str
    value: Callable[[Result], float | None]
    digits: int = 0
    more_is_better: bool = False


class Rows(NamedTuple):
    """A table as texts."""

    title: str
    heads: list[str]
    rows: list[list[str]]


BACKLOG = [
    Column("records/s", lambda run: run.records_per_s, more_is_better=True),
    Column("CPU s per million", lambda run: run.cpu_per_million, 1),
    Column("broker's CPU s per million", lambda run: run.broker_cpu_per_million, 1),
    Column("peak memory, MB", lambda run: run.memory_mb),
    Column("state, bytes per key", lambda run: run.state_bytes_per_key or None, 1),
    Column("start, s", lambda run: run.start_s, 1),
]


def live_columns(rate: int) -> list[Column]:
    """The figures of the live phase at a rate."""

    def at(figure: Callable[[Live], float | None]) -> Callable[[Result], float | None]:
        return lambda run: next((figure(live) for live in run.live if live.rate == rate), None)

    delays = [
        Column("median, ms", at(lambda live: live.p50)),
        Column("95%, ms", at(lambda live: live.p95)),
        Column("99%, ms", at(lambda live: live.p99)),
    ]
    cores = [
        Column("cores", at(lambda live: live.cores), 2),
        Column("broker's cores", at(lambda live: live.broker_cores), 2),
    ]
    return [*(delays if rate else []), *cores]


class Report:
    """The results of one call of the benchmark; figures are medians over rounds."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.runs = [Result.from_json(run) for run in document["runs"]]

    def sections(self) -> Iterator[tuple[str, int, list[Column]]]:
        """Title, number of partitions and columns of each table."""
        for partitions in sorted({run.partitions for run in self.runs}):
            yield f"Catch-up, {partitions} partitions", partitions, BACKLOG
            rates = sorted({live.rate for run in self.runs for live in run.live})
            for rate in rates:
                title = f"{rate:,} records per second" if rate else "Idle"
                yield f"{title}, {partitions} partitions", partitions, live_columns(rate)

    def tables(self) -> Iterator[Rows]:
        """All tables of figures."""
        for title, partitions, columns in self.sections():
            yield Rows(
                title,
                ["", *(column.title for column in columns)],
                [
                    [
                        SYSTEMS[name].label,
                        *(_text(self.median(name, partitions, each), each) for each in columns),
                    ]
                    for name in self.systems(partitions)
                ],
            )

    def settings(self) -> Rows:
        """What each system was given and what it promises."""
        batch = f"{self.document['settings']['batch']:,}"
        rows = [
            [SYSTEMS[name].label, SYSTEMS[name].guarantee, SYSTEMS[name].settings.format(batch=batch)]
            for name in SYSTEMS
            if any(run.system == name for run in self.runs)
        ]
        return Rows("Guarantees and settings", ["", "guarantee", "settings"], rows)

    def losses(self) -> list[str]:
        """Every figure in which peers that remove duplicates are better than we are, and by how much."""
        found = []
        for title, partitions, columns in self.sections():
            for column in columns:
                ours = self.median("ours", partitions, column)
                better = [
                    f"{SYSTEMS[name].label} {_text(theirs, column)}"
                    for name in self.systems(partitions)
                    if SYSTEMS[name].keeps == "first copies"
                    and not SYSTEMS[name].own
                    and ours is not None
                    and (theirs := self.median(name, partitions, column)) is not None
                    and (theirs > ours if column.more_is_better else theirs < ours)
                ]
                if better:
                    found.append(f"{title}, {column.title}: {_text(ours, column)}; {', '.join(better)}")
        return found

    def errors(self) -> list[str]:
        """The runs that failed, and those whose output was not exactly right."""
        wrong = [
            f"{SYSTEMS[run.system].label}, {run.partitions} partitions: {run.error}"
            for run in self.runs
            if run.error
        ]
        return [*(failure.splitlines()[0] for failure in self.document["failures"]), *wrong]

    def findings(self) -> list[tuple[str, list[str]]]:
        """Titles and lines of what must not be overlooked."""
        return [("Failures and wrong outputs", self.errors()), ("Where a peer is better", self.losses())]

    def systems(self, partitions: int) -> list[str]:
        """The systems that were measured with so many partitions, in the order of the table."""
        return [
            name
            for name in SYSTEMS
            if any((run.system, run.partitions) == (name, partitions) for run in self.runs)
        ]

    def median(self, system: str, partitions: int, column: Column) -> float | None:
        """The median of a figure over all runs that have it."""
        runs = [run for run in self.runs if (run.system, run.partitions) == (system, partitions)]
        values = [value for run in runs if (value := column.value(run)) is not None]
        return statistics.median(values) if values else None

    def heading(self) -> str:
        """The machine, the versions and the size of the run."""
        machine, settings = self.document["machine"], self.document["settings"]
        rounds = max(sum((run.system, run.partitions) == (each.system, each.partitions) for run in self.runs)
                     for each in self.runs)  # fmt: skip
        return (
            f"Measured on {self.document['date']} with {machine['cores']} cores ({machine['cpu']}), "
            f"{machine['memory']}, {machine['system']}; Java {machine['java']}, Python {machine['python']}, "
            f"PySpark {machine['pyspark']}, {machine['peers']}; the broker, producer and reader on the same "
            f"machine. All systems take turns; the figures are medians, rounds: {rounds}. The backlog has "
            f"{settings['records']:,} records of 200 bytes, 14% of them second copies; each rate lasts "
            f"{settings['seconds']:g} s."
        )


def _text(value: float | None, column: Column) -> str:
    return "–" if value is None else f"{value:,.{column.digits}f}"  # noqa: RUF001  # a dash for no figure


def line(run: Result) -> str:
    """One run in one line."""
    figures = [f"{column.title} {_text(column.value(run), column)}" for column in BACKLOG]
    figures += [f"median at {live.rate:,}/s {live.p50:,.0f} ms" for live in run.live if live.p50 is not None]
    return f"{SYSTEMS[run.system].label}, {run.partitions} partitions: {', '.join(figures)}. {run.error}"


def show(console: Console, report: Report) -> None:
    """Print all tables."""
    console.print(report.heading(), highlight=False)
    for rows in (*report.tables(), report.settings()):
        table = Table(title=rows.title, title_justify="left")
        for number, head in enumerate(rows.heads):
            table.add_column(
                head, justify="right" if number and rows.title != "Guarantees and settings" else "left"
            )
        for row in rows.rows:
            table.add_row(*row)
        console.print(table)
    for title, lines in report.findings():
        if lines:
            console.print(title, *lines, sep="\n  ", highlight=False)


def markdown(report: Report) -> str:
    """What the page says between its two marks."""
    parts = [report.heading(), *(f"![{text}](performance-{name}.svg)" for name, text in PLOTS.items())]
    for rows in (*report.tables(), report.settings()):
        lines = [rows.heads, ["---"] * len(rows.heads), *rows.rows]
        parts.append(f"### {rows.title}")
        parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    for title, lines_ in report.findings():
        if lines_:
            parts += [f"### {title}", "\n".join(f"- {each}" for each in lines_)]
    return "\n" + "\n\n".join(parts) + "\n\n"


def page(text: str, report: Report) -> str:
    """The page with what is made made again; ValueError without the marks."""
    if not MADE.search(text):
        raise ValueError(f"{PAGE.name} has no marks around what benchmarks/report.py makes: add them")
    return MADE.sub(lambda found: found[1] + markdown(report) + found[2], text)


def write_page(results: Path) -> None:
    """Keep the results in the repository, and write the page and its plots from them."""
    if results != KEPT:
        shutil.copyfile(results, KEPT)
    report = Report(json.loads(KEPT.read_text()))
    plots = Path(__file__).with_name("plots.py")
    labels = json.dumps({name: system.label for name, system in SYSTEMS.items()})
    subprocess.run([PYTHON, plots, KEPT, PAGE.parent, labels], check=True)
    PAGE.write_text(page(PAGE.read_text("utf-8"), report), "utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--page", action="store_true", help="write the page, too")
    options = parser.parse_args(arguments)
    show(Console(width=160), Report(json.loads(options.results.read_text())))
    if options.page:
        write_page(options.results)


if __name__ == "__main__":
    main()
