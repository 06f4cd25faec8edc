"""This service compared with its peers, in turn on one broker: ``make bench`` or ``make bench-quick``.

    python -m benchmarks                                  about 20 minutes
    python -m benchmarks --quick                          about 4 minutes, 4 partitions, one round
    python -m benchmarks --systems ours streams --rounds 3 --records 9600000

Every run is added to a file of results. ``python -m benchmarks.report FILE`` makes the table from it, and
with ``--page`` writes docs/concepts/performance.md. Peers that are not built are left out.
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
from benchmarks.systems import RESULTS, SYSTEMS, peer_versions
from replayfilter.devbroker import DevBroker
from replayfilter.errors import ReplayfilterError

BATCHES = 5  # at least so many for the backlog; at most 1.2 million records each, the service's default
QUICK = ["ours", "streams", "streams-local", "flink-1s", "plain", "within", "copy"]
console = Console(width=140)


def main() -> None:
    options = _options()
    batch = min(1_200_000, options.records // BATCHES)
    settings = {"records": options.records, "batch": batch, "seconds": options.seconds}
    runs: list[dict[str, Any]] = []
    failures: list[str] = []
    document = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine() | {"peers": peer_versions()},
        "settings": settings,
        "runs": runs,
        "failures": failures,
    }
    options.results.parent.mkdir(parents=True, exist_ok=True)
    chosen = {name: SYSTEMS[name] for name in options.systems}
    for name, system in list(chosen.items()):
        if system.needs and not system.needs.exists():
            console.print(f"{system.label} is left out: it is not built; `make peers` builds it")
            del chosen[name]
    with DevBroker() as broker:
        for partitions in options.partitions:
            console.print(f"generating {options.records:,} orders for {partitions} partitions")
            backlog = Backlog(options.records, partitions)
            for number in range(options.rounds):
                for name, system in chosen.items():
                    start = options.start and number == 0
                    try:
                        found = measure(
                            broker, name, system, backlog, batch, options.rates, options.seconds, start
                        )
                    except (RuntimeError, ReplayfilterError, KafkaException) as error:
                        failures.append(f"{system.label}, {partitions} partitions: {error}")
                        console.print(failures[-1], markup=False)
                        continue
                    runs.append(found.to_json())
                    options.results.write_text(json.dumps(document, indent=1) + "\n")
                    console.print(report.line(found), highlight=False)
    report.show(console, report.Report(document))
    console.print(f"results in {options.results}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the defaults for 4 minutes")
    quick = "--quick" in sys.argv
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=QUICK if quick else list(SYSTEMS))
    parser.add_argument("--partitions", type=int, nargs="+", default=[4] if quick else [4, 200])
    parser.add_argument("--records", type=int, default=500_000 if quick else 2_000_000, help="of the backlog")
    rates = [1_000, 20_000] if quick else [0, 1_000, 20_000]
    parser.add_argument("--rates", type=int, nargs="*", default=rates, help="of the live stream; 0 is idle")
    parser.add_argument("--seconds", type=float, default=4 if quick else 8, help="of each rate")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--start", action=argparse.BooleanOptionalAction, default=not quick,
                        help="also measure the start")  # fmt: skip
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
