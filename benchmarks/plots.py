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
from matplotlib.axes import Axes

# Told apart with any kind of colour vision; each row is also labelled.
COLORS = {"ours": "#00796b", "streams": "#56b4e9", "flink": "#cc79a7"}
SPARK = "#e69f00"
Run = dict[str, Any]


class Panel(NamedTuple):
    """One chart: its title, the number of partitions, and the figures of a run; none were not measured."""

    title: str
    partitions: int
    figures: Callable[[Run], list[float]]


def main(results: str, folder: str, labels: str) -> None:
    matplotlib.rcParams.update({"font.size": 9, "svg.hashsalt": "replayfilter", "axes.spines.top": False,
                                "axes.spines.right": False})  # fmt: skip
    runs, names = json.loads(Path(results).read_text())["runs"], json.loads(labels)
    counts = sorted({run["partitions"] for run in runs})
    rates = sorted({live["rate"] for run in runs for live in run["live"]} - {0})
    throughput = [
        [
            Panel(f"thousand records per second, {count:,} partitions", count,
                  lambda run: [run["records_per_s"] / 1e3]),
            Panel(f"CPU µs per record, {count:,} partitions", count, cpu),
        ]
        for count in counts
    ]  # fmt: skip
    latency = [
        [
            Panel(f"ms at {rate:,} records/s, {count:,} partitions", count, partial(delays, rate))
            for rate in rates
        ]
        for count in counts
    ]  # fmt: skip
    draw(runs, names, throughput, bars, Path(folder, "performance-throughput"))
    draw(runs, names, latency, ranges, Path(folder, "performance-latency"))


def cpu(run: Run) -> list[float]:
    """Of the system alone, and together with the broker."""
    own: float = run["cpu_per_million"]
    return [own, own + run["broker_cpu_per_million"]]


def delays(rate: int, run: Run) -> list[float]:
    """The median, 95% and 99%."""
    found = [live for live in run["live"] if live["rate"] == rate]
    return [live[share] for live in found for share in ("p50", "p95", "p99")]


def draw(
    runs: list[Run], labels: dict[str, str], panels: list[list[Panel]],
    mark: Callable[[Axes, int, list[float], str], None], file: Path,
) -> None:  # fmt: skip
    """Panels with the same number of partitions side by side; each row has the medians over rounds."""
    width = max(map(len, panels))
    systems = [
        [name for name in labels if any((run["system"], run["partitions"]) == (name, count) for run in runs)]
        for count in (line[0].partitions for line in panels)
    ]
    heights = [len(names) + 1.5 for names in systems]  # with the title and the scale
    figure, axes = pyplot.subplots(
        len(panels), width, figsize=(4.3 * width, 0.46 * sum(heights)), squeeze=False, sharey="row",
        sharex="col", height_ratios=heights,
    )  # fmt: skip
    cells = [(axis, panel, names) for line, found, names in zip(axes, panels, systems, strict=True)
             for axis, panel in zip(line, found, strict=True)]  # fmt: skip
    for axis, panel, names in cells:
        chosen = [run for run in runs if run["partitions"] == panel.partitions]
        axis.set_title(panel.title, loc="left", fontsize=10)
        texts = [labels[name].replace(", ", ",\n").replace("sWithin", "s\nWithin") for name in names]
        axis.set_yticks(range(len(names)), texts)
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.tick_params(axis="y", length=0)
        axis.tick_params(axis="x", labelbottom=True)
        for row, name in enumerate(names):
            found = [panel.figures(run) for run in chosen if run["system"] == name]
            if medians := [statistics.median(values) for values in zip(*filter(None, found), strict=True)]:
                mark(axis, row, medians, COLORS.get(name.partition("-")[0], SPARK))
        axis.set_visible(axis.has_data())  # a rate may be measured with few partitions only
    for axis in axes[0]:  # each column shares its scale; it leaves room for the texts
        high = axis.get_xlim()[1]
        axis.set_xlim(*((10, high * 25) if axis.get_xscale() == "log" else (0, high * 1.2)))
    figure.tight_layout()
    figure.savefig(file.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(file.with_suffix(".png"), dpi=130)


def bars(axis: Axes, row: int, figures: list[float], color: str) -> None:
    """A bar to each figure, the last on the outside and paler."""
    for figure, alpha in reversed(list(zip(figures, (1.0, 0.45), strict=False))):
        axis.barh(row, figure, height=0.65, color=color, alpha=alpha)
    text = " / ".join(f"{each:,.1f}" if each < 100 else f"{each:,.0f}" for each in figures)
    axis.text(figures[-1], row, f" {text}", va="center", fontsize=8)


def ranges(axis: Axes, row: int, figures: list[float], color: str) -> None:
    """A dot at the median, a tick at 95% and a line to 99%; the scale is logarithmic."""
    median, high, highest = figures
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.hlines(row, median, highest, color=color, linewidth=3, alpha=0.6)
    axis.plot(high, row, "|", color=color, markersize=11, markeredgewidth=2)
    axis.plot(median, row, "o", color=color, markersize=7)
    axis.text(highest * 1.15, row, f"{median:,.0f} / {high:,.0f} / {highest:,.0f}", va="center", fontsize=8)


if __name__ == "__main__":
    main(*sys.argv[1:])
