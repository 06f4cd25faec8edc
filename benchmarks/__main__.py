"""This service compared with its peers, in turn on one broker: ``make bench`` or ``make bench-quick``.

    python -m benchmarks                                  about 20 minutes
    python -m benchmarks --quick                          about 4 minutes, 4 partitions; Java is still cold
    python -m benchmarks --rounds 3 --records 4800000     hours; Java is warm

The file of results is written after each run. ``python -m benchmarks.report FILE ...`` makes the tables from
one or more such files, and with ``--page`` writes docs/concepts/performance.md. Peers that are not built are
left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from rich.console import Console

from benchmarks import report
from benchmarks.comparison import measure
from benchmarks.orders import Backlog
from benchmarks.processes import machine
from benchmarks.systems import RESULTS, SYSTEMS, System, peer_versions
from replayfilter.devbroker import DevBroker
from replayfilter.errors import ReplayfilterError

BATCHES = 8  # at least so many for the backlog; at most 1.2 million records each, the service's default
QUICK = ["ours", "streams", "streams-local", "flink-1s", "plain", "copy"]
MANY = 32  # partitions; with more, some systems are left out by default, to save time
LEFT_OUT = {"flink-10s", "within", "copy"}
LONG = 4_000_000  # records; with fewer, a checkpoint every 10 s makes too few steps to measure
console = Console(width=140)


def main() -> None:
    options = _options()
    batch = min(1_200_000, options.records // BATCHES)
    settings = {"records": options.records, "batch": batch, "seconds": options.seconds}
    began = time.monotonic()
    runs: list[dict[str, Any]] = []
    failures: list[str] = []
    document = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine() | {"peers": peer_versions()},
        "settings": {str(partitions): settings for partitions in options.partitions},
        "runs": runs,
        "failures": failures,
    }
    options.results.parent.mkdir(parents=True, exist_ok=True)
    chosen = {partitions: _systems(options, partitions) for partitions in options.partitions}
    expected = options.rounds * sum(map(len, chosen.values()))
    with DevBroker() as broker:
        for partitions, systems in chosen.items():
            backlog = Backlog(options.records, partitions)
            for number in range(options.rounds):
                for name, system in systems.items():
                    start = options.start and number == 0
                    count = f"{len(runs) + len(failures) + 1} of {expected}"
                    console.print(f"{time.monotonic() - began:5.0f} s: {count}, {name}", highlight=False)
                    try:
                        found = measure(
                            broker, name, system, backlog, batch, options.rates, options.seconds, start
                        )
                        runs.append(found.to_json())
                        console.print(report.line(found), highlight=False)
                    except (RuntimeError, ReplayfilterError, KafkaException) as error:
                        failures.append(f"{system.label}, {partitions} partitions: {error}")
                        console.print(failures[-1], markup=False)
                    options.results.write_text(json.dumps(document, indent=1) + "\n")
    if runs:
        report.show(console, report.Report(document))
    console.print(f"results in {options.results}")


def _systems(options: argparse.Namespace, partitions: int) -> dict[str, System]:
    """The systems to run with so many partitions, without those that are not built."""
    left_out = LEFT_OUT if partitions > MANY else {"flink-10s"} if options.records < LONG else set()
    default = [name for name in SYSTEMS if name not in left_out]
    found = {name: SYSTEMS[name] for name in options.systems or default}
    for name, system in list(found.items()):
        if system.needs and not system.needs.exists():
            console.print(f"{system.label} is left out: it is not built; `make peers` builds it")
            del found[name]
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the defaults for 4 minutes")
    quick = "--quick" in sys.argv
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=SYSTEMS,
        default=QUICK if quick else None,
        help=f"all by default; above {MANY} partitions without {', '.join(sorted(LEFT_OUT))}, below "
        f"{LONG:,} records without flink-10s",
    )
    parser.add_argument("--partitions", type=int, nargs="+", default=[4] if quick else [4, 200])
    parser.add_argument("--records", type=int, default=500_000 if quick else 2_000_000, help="of the backlog")
    rates = [20_000, 1_000] if quick else [20_000, 1_000, 0]  # the higher a rate, the sooner Java is warm
    parser.add_argument("--rates", type=int, nargs="*", default=rates, help="of the live stream; 0 is idle")
    parser.add_argument("--seconds", type=float, default=4 if quick else 8, help="of each rate")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--start", action=argparse.BooleanOptionalAction, default=not quick,
                        help="also measure the start")  # fmt: skip
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
