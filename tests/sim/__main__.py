"""Plays seeds for a while, one seed with its history, or the mutants.

python -m tests.sim --seeds 1000 --seconds 60     # stops at the first seed with a problem
python -m tests.sim --seed 4711                   # its history in words, shrunk if it has a problem
python -m tests.sim --mutants                     # a table: how many seeds find each mutant
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter

from tests.sim.mutants import MUTANTS, install

NOT_FOUND = 3
BROKEN = ("NameError", "AttributeError", "TypeError", "SyntaxError")  # such a mutant breaks only itself


def main() -> int:
    """Run the command line; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim")
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so many seconds")
    parser.add_argument("--seed", type=int, help="only this one, with its history")
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="all, or these")
    parser.add_argument("--mutant", help="play the seeds with this mutant")
    options = parser.parse_args()
    if options.mutants is not None:
        return try_mutants(options.mutants)
    if options.mutant:
        install(options.mutant)
    if options.seed is not None:
        return show(options.seed)
    return play_many(options.first, options.seeds, options.seconds, quiet=bool(options.mutant))


def show(seed: int) -> int:
    """Print a seed's history, of the smallest scenario that has its problem."""
    from tests.sim.history import describe

    text, is_wrong = describe(seed)
    print(text)
    return int(is_wrong)


def play_many(first: int, count: int, seconds: float, quiet: bool) -> int:
    """Play seeds until one has a problem."""
    from tests.sim.run_one import play_seed
    from tests.sim.scenario import POINTS

    started, kills, seen, played = time.monotonic(), Counter[str](), Counter[str](), 0
    for seed in range(first, first + count):
        if time.monotonic() - started > seconds:
            break
        outcome = play_seed(seed)
        played, kills, seen = played + 1, kills + outcome.kills, seen + outcome.seen
        if outcome.problem is not None:
            if quiet:
                print(f"{played}\t{outcome.problem.splitlines()[0]}")
                return 0
            print(f"seed {seed}: {outcome.problem}\nits history, shrunk: python -m tests.sim --seed {seed}")
            return 1
    hit = [point for point in POINTS if kills[point]]
    never = ", ".join(point for point in POINTS if not kills[point]) or "none"
    things = ", ".join(f"{name} {number}" for name, number in sorted(seen.items()))
    print(
        f"{played} seeds in {time.monotonic() - started:.0f} s: lost 0, twice 0, misrouted 0, out of order 0"
    )
    print(f"killed at {len(hit)} of {len(POINTS)} points, {sum(kills.values())} times; never at: {never}")
    print(things)
    return NOT_FOUND if quiet else 0


def try_mutants(names: list[str]) -> int:
    """Print how many seeds it takes to find each mutant; 1 if one is not found."""
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    missed = 0
    print(f"{'mutant':46} {'seeds':>5} {'limit':>5}  found by; what it breaks")
    for mutant in chosen:
        command = [
            sys.executable,
            "-m",
            "tests.sim",
            "--mutant",
            mutant.name,
            "--seeds",
            str(mutant.seeds),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode == 0 and not any(name in ended.stdout for name in BROKEN):
            seeds, problem = ended.stdout.rstrip("\n").split("\t", 1)
        else:
            missed += 1
            seeds, problem = (
                "-",
                "NOT FOUND" if ended.returncode == NOT_FOUND else ended.stdout + ended.stderr[-300:],
            )
        print(f"{mutant.name:46} {seeds:>5} {mutant.seeds:>5}  {problem[:60]}; {mutant.breaks}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutants found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
