"""Tables, plots and the page from the results of ``python -m benchmarks``.

    python -m benchmarks.report [RESULTS ...]             print the tables
    python -m benchmarks.report [RESULTS ...] --page      also write them to docs/concepts/performance.md

The results of several calls make one report, so a long benchmark can be run in parts. Those of the page are
kept in the repository, so a test can check that nobody has edited its tables by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks import goals
from benchmarks.comparison import Result
from benchmarks.figures import BACKLOG, Column, Figures
from benchmarks.systems import PYTHON, RESULTS, SYSTEMS

PAGE = Path(__file__).parents[1] / "docs" / "concepts" / "performance.md"
KEPT = Path(__file__).with_name("results.json")
MADE = re.compile(r"(<!-- made by benchmarks/report\.py -->\n).*?(<!-- end of what is made -->\n)", re.DOTALL)
PLOTS = {
    "throughput": "Catch-up: records per second, and CPU of the system alone / with the broker (paler)",
    "latency": "Delay from the producer to the reader: median (dot), 95% (tick) and 99% (end of the line)",
}
OWN = ["ours", "ours-low"]


class Rows(NamedTuple):
    """A table as texts; in a table of ``figures`` all columns but the first are numbers."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    figures: bool = False


def merged(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The results of several calls as one. Raises ValueError if their machine or settings differ."""
    first = documents[0]
    settings: dict[str, Any] = {}
    for document in documents:
        if document["machine"] != first["machine"]:
            raise ValueError(
                f"results of different machines or versions make no table: {first['machine']}, "
                f"{document['machine']}"
            )
        for partitions, found in document["settings"].items():
            if settings.setdefault(partitions, found) != found:
                raise ValueError(
                    f"results with different settings for {partitions} partitions make no table: "
                    f"{settings[partitions]}, {found}"
                )
    return first | {
        "date": max(document["date"] for document in documents),
        "settings": settings,
        "runs": [run for document in documents for run in document["runs"]],
        "failures": [failure for document in documents for failure in document["failures"]],
    }


class Report:
    """The results of the benchmark as texts; figures are medians over rounds."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.figures = Figures(document["runs"])

    def tables(self) -> Iterator[Rows]:
        """All tables of figures."""
        for title, partitions, columns in self.figures.sections():
            heads = ["", *(column.title for column in columns)]
            yield Rows(title, heads, [
                [SYSTEMS[name].label, *(self._text(name, partitions, each) for each in columns)]
                for name in self.figures.systems(partitions)
            ], figures=True)  # fmt: skip

    def comparisons(self) -> Iterator[Rows]:
        """What is to be reached, where a peer is better, and what each system was given and promises."""
        yield Rows("Goals", ["", "goal", "measured", "reached"], goals.rows(self.figures))
        yield Rows("Where a peer is better", ["", *map(_label, OWN), "peers that are better"], self.losses())
        yield Rows(
            "Guarantees and settings",
            ["", "guarantee", "settings"],
            [
                [system.label, system.guarantee, system.settings]
                for name, system in SYSTEMS.items()
                if any(run.system == name for run in self.figures.runs)
            ],
        )

    def losses(self) -> list[list[str]]:
        """Every figure in which peers that remove duplicates are better than this service."""
        return [
            [f"{title}: {column.title}", *(self._text(name, partitions, column) for name in OWN),
             "; ".join(f"{_label(name)} {self._text(name, partitions, column)}" for name in better)]
            for title, partitions, columns in self.figures.sections()
            for column in columns
            if column.compared and (better := self._better(partitions, column))
        ]  # fmt: skip

    def _better(self, partitions: int, column: Column) -> list[str]:
        """The peers with a better figure than each form of this service."""
        sign = 1 if column.more_is_better else -1
        found = {
            name: sign * value
            for name in self.figures.systems(partitions)
            if (value := self.figures.median(name, partitions, column)) is not None
        }
        own = [value for name, value in found.items() if name in OWN]
        peers = (name for name in found if not SYSTEMS[name].own and SYSTEMS[name].keeps == "first copies")
        return [name for name in peers if own and found[name] > max(own)]

    def errors(self) -> list[str]:
        """The runs that failed, and those whose output was not exactly right."""
        wrong = [
            f"{_label(run.system)}, {run.partitions} partitions: {run.error}"
            for run in self.figures.runs
            if run.error
        ]
        return [*(failure.splitlines()[0] for failure in self.document["failures"]), *wrong]

    def heading(self) -> str:
        """The machine, the versions and the size of the runs."""
        machine = self.document["machine"]
        least, most = self.figures.rounds()
        sizes = " ".join(
            f"With {partitions} partitions the backlog has {found['records']:,} records, systems with "
            f"batches take {found['batch']:,} at once, and each rate lasts {found['seconds']:g} s."
            for partitions, found in self.document["settings"].items()
            if self.figures.systems(int(partitions))
        )
        return (
            f"Measured on {self.document['date']} with {machine['cores']} cores ({machine['cpu']}), "
            f"{machine['memory']}, {machine['system']}; Java {machine['java']}, Python {machine['python']}, "
            f"PySpark {machine['pyspark']}, {machine['peers']}; the broker, producer and reader on the same "
            f"machine. All systems take turns; the figures are medians of "
            f"{least if least == most else f'{least} to {most}'} rounds. Records have 200 bytes, and 14% of "
            f"them are second copies. {sizes}"
        )

    def _text(self, name: str, partitions: int, column: Column) -> str:
        return column.text(self.figures.median(name, partitions, column))


def _label(name: str) -> str:
    return SYSTEMS[name].label


def line(run: Result) -> str:
    """One run in one line."""
    figures = [f"{column.title} {column.text(column.value(run))}" for column in BACKLOG]
    figures += [f"median at {live.rate:,}/s {live.p50:,.0f} ms" for live in run.live if live.p50 is not None]
    return f"{_label(run.system)}, {run.partitions} partitions: {', '.join(figures)}. {run.error}"


def show(console: Console, report: Report) -> None:
    """Print all tables."""
    console.print(report.heading(), highlight=False)
    for rows in (*report.tables(), *report.comparisons()):
        table = Table(title=rows.title, title_justify="left")
        for number, head in enumerate(rows.heads):
            table.add_column(head, justify="right" if number and rows.figures else "left")
        for row in rows.rows:
            table.add_row(*row)
        console.print(table)
    for error in report.errors():
        console.print("Failed or wrong:", error, markup=False, highlight=False)


def markdown(report: Report) -> str:
    """What the page says between its two marks."""
    parts = [report.heading()]
    for name, text in PLOTS.items():
        parts += [f"{text}:", f"![{text}](performance-{name}.svg)"]
    for rows in (*report.comparisons(), *report.tables()):
        others = ["---:" if rows.figures else "---"] * (len(rows.heads) - 1)
        lines = [rows.heads, ["---", *others], *rows.rows]
        parts.append(f"### {rows.title}")
        parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    if errors := report.errors():
        parts += ["### Failures and wrong outputs", "\n".join(f"- {each}" for each in errors)]
    return "\n" + "\n\n".join(parts) + "\n\n"


def page(text: str, report: Report) -> str:
    """The page with what is made made again; ValueError without the marks."""
    if not MADE.search(text):
        raise ValueError(f"{PAGE.name} has no marks around what benchmarks/report.py makes: add them")
    return MADE.sub(lambda found: found[1] + markdown(report) + found[2], text)


def write_page(document: dict[str, Any]) -> None:
    """Keep the results in the repository, and write the page and its plots from them."""
    KEPT.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    plots = Path(__file__).with_name("plots.py")
    labels = json.dumps({name: system.label for name, system in SYSTEMS.items()})
    subprocess.run([PYTHON, plots, KEPT, PAGE.parent, labels], check=True)
    PAGE.write_text(page(PAGE.read_text("utf-8"), Report(document)), "utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("results", type=Path, nargs="*", default=[RESULTS])
    parser.add_argument("--page", action="store_true", help="write the page, too")
    options = parser.parse_args(arguments)
    document = merged([json.loads(file.read_text()) for file in options.results])
    show(Console(width=160), Report(document))
    if options.page:
        write_page(document)


if __name__ == "__main__":
    main()
