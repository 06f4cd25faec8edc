"""Draws the plots of the performance page: SVG and PNG.

    python plots.py RESULTS FOLDER LABELS

It runs with the Python that `make peers` makes, which has Matplotlib. LABELS is a JSON object from the names
of systems to those in the plots.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib import pyplot

OURS, PEER = "#00796b", "#9e9e9e"
SHARES = {"p50": 1.0, "p95": 0.6, "p99": 0.3}
Runs = list[dict[str, Any]]


class Panel(NamedTuple):
    """One chart: its title, the number of partitions, and the figures of a run."""

    title: str
    partitions: int
    figures: Callable[[dict[str, Any]], list[float]]


def main(results: str, folder: str, labels: str) -> None:
    matplotlib.rcParams.update({"font.size": 9, "svg.hashsalt": "replayfilter", "axes.spines.top": False,
                                "axes.spines.right": False})  # fmt: skip
    runs, names = json.loads(Path(results).read_text())["runs"], json.loads(labels)
    counts = sorted({run["partitions"] for run in runs})
    rates = sorted({live["rate"] for run in runs for live in run["live"]} - {0})
    figures = {"records per second": "records_per_s", "CPU seconds per million": "cpu_per_million"}
    throughput = [
        Panel(f"{title}, {count} partitions", count, partial(backlog_figure, key))
        for count in counts
        for title, key in figures.items()
    ]
    latency = [
        Panel(f"ms at {rate:,}/s, {count} partitions: 50%, 95%, 99%", count, partial(delays, rate))
        for count in counts
        for rate in rates
    ]
    draw(runs, names, throughput, Path(folder, "performance-throughput"))
    draw(runs, names, latency, Path(folder, "performance-latency"))


def backlog_figure(key: str, run: dict[str, Any]) -> list[float]:
    return [run[key]]


def delays(rate: int, run: dict[str, Any]) -> list[float]:
    return [live[share] for live in run["live"] if live["rate"] == rate for share in SHARES]


def draw(runs: Runs, labels: dict[str, str], panels: list[Panel], file: Path) -> None:
    """Two panels a row; a bar is the median over rounds, and paler parts are higher percentiles."""
    lines = (len(panels) + 1) // 2
    figure, axes = pyplot.subplots(lines, 2, figsize=(11, 3.6 * lines), squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        chosen = [run for run in runs if run["partitions"] == panel.partitions]
        systems = [name for name in labels if any(run["system"] == name for run in chosen)]
        axis.set_title(panel.title, loc="left")
        axis.set_yticks(range(len(systems)), [labels[name].replace(", ", ",\n") for name in systems])
        axis.invert_yaxis()
        for row, name in enumerate(systems):
            found = [panel.figures(run) for run in chosen if run["system"] == name]
            medians = [statistics.median(values) for values in zip(*found, strict=True)]
            for median, alpha in reversed(list(zip(medians, SHARES.values(), strict=False))):
                axis.barh(row, median, color=OURS if name.startswith("ours") else PEER, alpha=alpha)
            if medians:
                texts = (f"{each:,.1f}" if each < 100 else f"{each:,.0f}" for each in medians)
                axis.text(medians[-1], row, f" {' / '.join(texts)}", va="center", fontsize=8)
        axis.margins(x=0.6)  # room for the figures
    figure.tight_layout()
    figure.savefig(file.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(file.with_suffix(".png"), dpi=130)


if __name__ == "__main__":
    main(*sys.argv[1:])
