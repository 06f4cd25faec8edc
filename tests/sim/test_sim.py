"""Random histories of the whole service, each from a seed; `make sim` plays more of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter

import pytest

from tests.sim import mutants
from tests.sim.run_one import play_seed
from tests.sim.scenario import KINDS, POINTS, Fault

SECONDS = float(os.environ.get("SIM_SECONDS", "60"))
SEEN = ("UNIQUE", "DUPLICATE", "CONFLICT", "EXPIRED", "REPLAY", "FUTURE", "ERROR")
AT_LEAST = 100  # seeds, however slow the machine is
# Faults that showed a defect once, and what was wrong.
KEPT = {
    Fault(
        "commits: after", 1, "kill", 0
    ): "a group was called set back while its last commit was still pending",
    Fault(
        "send offsets: before", 1, "freeze", 2
    ): "a driver that joined again took itself for another service",
}


@pytest.mark.parametrize("fault", KEPT, ids=str)
def test_what_was_wrong_once_is_right(fault: Fault) -> None:
    for seed in range(8):
        assert play_seed(seed, fault).problem is None, f"seed {seed}, {fault}: {KEPT[fault]}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whatever_happens_each_record_is_delivered_once() -> None:
    """Each fault happens, and processes are killed at nearly every point."""
    until, kills, seen, seed = time.monotonic() + SECONDS, Counter[str](), Counter[str](), 0
    while time.monotonic() < until or seed < AT_LEAST:
        outcome = play_seed(seed)
        assert outcome.problem is None, (
            f"seed {seed}: see `python -m tests.sim --seed {seed}`: {outcome.problem}"
        )
        kills, seen, seed = kills + outcome.kills, seen + outcome.seen, seed + 1
    print(f"{seed} seeds, killed at {len(kills)} of {len(POINTS)} points")
    assert len(kills) > len(POINTS) / 2
    assert [kind for kind in KINDS if not seen[kind]] == []
    assert min(seen[route] for route in SEEN) > 20


def test_a_seed_always_gives_the_same_history() -> None:
    command = [sys.executable, "-m", "tests.sim", "--seed", "20"]
    told = [
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": salt}, capture_output=True, check=True)
        for salt in "12"
    ]
    assert told[0].stdout == told[1].stdout
    assert told[0].stdout.count(b"FAULT") > 2


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_still_fits_the_source(mutant: mutants.Mutant) -> None:
    compile(mutants.applied(mutant), mutant.module, "exec")
