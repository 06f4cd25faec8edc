"""One seed: the scenario is played, and the checker looks at what a read_committed reader sees after it."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.sim import checker
from tests.sim.faults import Injector
from tests.sim.programs import Job, Reader
from tests.sim.scenario import Fault, Scenario, make_scenario
from tests.sim.scheduler import EPOCH_S
from tests.sim.service_model import INPUT, OUTPUTS, Deployment, Operator
from tests.sim.world import Simulation, installed

SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())


@dataclass(frozen=True)
class Outcome:
    """What one history was: ``problem`` None if all was right."""

    problem: str | None
    history: list[str]
    kills: Counter[str]  # by point
    seen: Counter[str]


def play(scenario: Scenario) -> Outcome:
    """Play a scenario to its end, and check it."""
    folder = Path(tempfile.mkdtemp(prefix="replayfilter-sim-", dir=SCRATCH))
    injected = Injector(scenario)
    sim = Simulation(scenario.seed, injected.at_point)
    try:
        with sim.active():
            problem = _play(sim, scenario, injected, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    history = [line.replace(str(folder), "") for line in sim.history]
    return Outcome(problem, history, injected.kills, injected.seen)


def _play(sim: Simulation, scenario: Scenario, injected: Injector, folder: Path) -> str | None:
    sim.broker.create(INPUT, scenario.input_partitions)
    for topic in OUTPUTS.values():
        sim.broker.create(topic, scenario.output_partitions)
    jobs = [
        Job(sim, number, records, scenario.transactional[number])
        for number, records in enumerate(scenario.jobs)
    ]

    def all_written() -> bool:
        logs = sim.broker.topics[INPUT]
        return all(job.done for job in jobs) and all(log.stable_end() == len(log.entries) for log in logs)

    operator = Operator(all_written)
    reader = Reader(sim, all_written)
    injected.connect(sim, operator, [*jobs, reader], folder)
    for program in (*jobs, reader):
        program.start()
    operator.add(Deployment("A", folder / "A", scenario.tables))
    try:
        sim.run()
        sim.clock += 3600  # open transactions are over
        sim.broker.pass_time()
        sim.broker.settle()
        return checker.check(sim, operator, reader, injected)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def play_seed(seed: int, *faults: Fault) -> Outcome:
    """Play the scenario of a seed; with these faults only, if any are given."""
    with installed():
        scenario = make_scenario(seed, int(EPOCH_S * 1000))
        return play(scenario.with_faults(faults) if faults else scenario)
