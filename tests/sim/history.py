"""The story of a seed, told with as few faults and records as show its problem."""

from __future__ import annotations

from tests.sim.run_one import Outcome, play
from tests.sim.scenario import Scenario, make_scenario
from tests.sim.scheduler import EPOCH_S
from tests.sim.world import installed

SHARES = (0.2, 0.4, 0.6, 0.8)  # of the jobs' records


def describe(seed: int) -> tuple[str, bool]:
    """What happens in a seed, in words; whether it has a problem."""
    with installed():
        scenario = make_scenario(seed, int(EPOCH_S * 1000))
        outcome = play(scenario)
        if outcome.problem is None:
            return _story(scenario, outcome), False
        return f"before shrinking: {outcome.problem}\n{_story(*shrink(scenario, outcome))}", True


def shrink(scenario: Scenario, outcome: Outcome) -> tuple[Scenario, Outcome]:
    """The same problem with fewer faults, and then fewer records."""
    assert outcome.problem is not None
    kind = outcome.problem.split(" ")[0]
    smaller = True
    while smaller:
        smaller = False
        for fault in scenario.faults:
            fewer = tuple(each for each in scenario.faults if each is not fault)
            found = play(scenario.with_faults(fewer))
            if found.problem is not None and found.problem.startswith(kind):
                scenario, outcome, smaller = scenario.with_faults(fewer), found, True
                break
    for share in SHARES:
        found = play(scenario.with_records(share))
        if found.problem is not None and found.problem.startswith(kind):
            return scenario.with_records(share), found
    return scenario, outcome


def _story(scenario: Scenario, outcome: Outcome) -> str:
    service, dedup, replay = (scenario.tables[name] for name in ("service", "dedup", "replay"))
    settings = ", ".join(f"{name} = {value}" for name, value in (service | dedup | replay).items())
    return "\n".join(
        [
            f"seed {scenario.seed}: {settings}",
            f"{scenario.input_partitions} input and {scenario.output_partitions} output partitions, "
            f"jobs with {[len(job) for job in scenario.jobs]} records, "
            f"in transactions: {scenario.transactional}",
            *(f"fault: {fault}" for fault in scenario.faults),
            *outcome.history,
            outcome.problem or "all is right",
        ]
    )
