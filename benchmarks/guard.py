"""What the core's hot paths cost, and what has changed since it was last kept: ``make bench-guard``.

    python -m benchmarks.guard            compare with guard.json
    python -m benchmarks.guard --keep     write guard.json

CPU seconds depend on the machine, so each figure is a multiple of a calibration loop, which runs in turn with
the hot paths. The best of all rounds counts. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.hot_paths import HotPath, hot_paths

KEPT = Path(__file__).with_name("guard.json")
ROUNDS = 15
SECONDS = 0.1  # of one path in a round, about
CHANGED = 0.1  # smaller changes come and go between two runs


def calibrate() -> None:
    """Work like the core's, half Python and half NumPy, that no change of this project makes faster."""
    seen: dict[bytes, int] = {}
    for number in range(20_000):
        seen[number.to_bytes(8)] = number
    numbers = np.fromiter(seen.values(), np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for _ in range(10):
        np.searchsorted(np.sort(numbers), numbers)


def measure(paths: Mapping[str, HotPath], rounds: int = ROUNDS) -> dict[str, float]:
    """Each path's cost per million records, in runs of the calibration loop; under ``""`` its seconds."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        best[""] = min(best.get("", 1e9), cpu_seconds(calibrate))
        for name, path in paths.items():
            seconds = cpu_seconds(path.run) / path.records * 1e6
            best[name] = min(best.get(name, 1e9), seconds)
    return {name: seconds / best[""] if name else seconds for name, seconds in best.items()}


def cpu_seconds(run: Callable[[], object]) -> float:
    """CPU seconds of one call, over as many calls as take a while."""
    calls, started = 0, time.process_time()
    while not calls or time.process_time() - started < SECONDS:
        run()
        calls += 1
    return (time.process_time() - started) / calls


def compare(found: Mapping[str, float], kept: Mapping[str, float]) -> Table:
    """A line for each path: its cost here, that of the kept results, and the change."""
    table = Table(title="CPU of the hot paths; unit: the calibration loop", title_justify="left")
    for head in ("path", "us per record here", "now", "kept", "change"):
        table.add_column(head, justify="left" if head == "path" else "right")
    for name in dict.fromkeys([*kept, *found]):
        if not name:
            continue
        now, before = found.get(name), kept.get(name)
        change = "new" if before is None else "gone" if now is None else f"{now / before - 1:+.0%}"
        if now is not None and before is not None and abs(now / before - 1) > CHANGED:
            change += " !"
        here = "" if now is None else f"{now * found['']:.2f}"
        table.add_row(name, here, *("" if each is None else f"{each:.1f}" for each in (now, before)), change)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__.splitlines()[0])
    parser.add_argument("--keep", action="store_true", help=f"write the results to {KEPT.name}")
    options = parser.parse_args()
    found = measure(hot_paths())
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    Console(width=120).print(compare(found, kept))
    if options.keep:
        KEPT.write_text(
            json.dumps({name: round(cost, 2) for name, cost in found.items() if name}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
