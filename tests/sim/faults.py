"""Faults: what happens at the points of a scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.sim.clients import SESSION_S
from tests.sim.programs import Program
from tests.sim.scenario import DOWNTIMES_S, LONG_S, OVERTAKEN_S, PERIODS, SKEWS_S, Fault, Scenario
from tests.sim.scheduler import Killed, Process
from tests.sim.service_model import INPUT, NAME, OUTPUTS, Deployment, Operator
from tests.sim.world import Simulation


class Injector:
    """Makes a scenario's faults happen. ``kills``: by point. ``seen``: how often each fault happened."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._faults: dict[tuple[str, int], Fault] = {
            (each.point, each.nth): each for each in scenario.faults
        }
        self.kills: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self._point = ""

    def connect(self, sim: Simulation, operator: Operator, programs: Sequence[Program], folder: Path) -> None:
        """Know the world."""
        self._sim, self._operator, self._programs, self._folder = sim, operator, programs, folder

    def at_point(self, point: str, nth: int) -> None:
        """A point was reached for the nth time."""
        fault = self._faults.get((point, nth))
        if fault is None:
            return
        self._point = point
        act = getattr(self, "_" + fault.kind.replace(" ", "_"))
        deployment = self._deployment()
        if act(fault.amount, deployment) is not False:
            self.seen[fault.kind] += 1
            if not self._sim.process.dead:
                return
            raise Killed

    def _deployment(self) -> Deployment:
        """The deployment whose code runs; the first if it is another program's."""
        name = self._sim.process.service
        found = [each for each in self._operator.deployments if each.name == name]
        return (found or self._operator.deployments)[0]

    def _say(self, what: str) -> None:
        self._sim.note(f"FAULT at {self._point!r}: {what}")

    def _kill_process(self, process: Process) -> None:
        process.dead = True
        if process is self._sim.process:
            self.kills[self._point] += 1

    def _kill(self, amount: int, deployment: Deployment) -> bool:
        """The driver dies; its workers die with it, or live a while longer."""
        if deployment.process is None or deployment.process.dead:
            return False
        linger = amount >= 2 and self._sim.process is not deployment.process
        self._say(f"the driver of {deployment.name} is killed" + (", its workers go on" if linger else ""))
        own = self._sim.process.service == deployment.name
        self._kill_process(deployment.process)
        if own and self._sim.process is not deployment.process:
            self.kills[self._point] += not linger
        for worker in deployment.workers:
            worker.dead = worker.dead or not linger
        deployment.workers.clear()
        return True

    def _kill_worker(self, amount: int, deployment: Deployment) -> bool:
        if self._sim.process not in deployment.workers:
            return False
        self._say("the worker is killed")
        self._kill_process(self._sim.process)
        return True

    def _pause(self, amount: int, deployment: Deployment) -> None:
        self._say(f"pauses for {LONG_S[amount]} s")
        actor = self._sim.current
        assert actor is not None
        actor.paused_until = self._sim.clock + LONG_S[amount]

    def _cut(self, amount: int, deployment: Deployment) -> None:
        self._say(f"no connection for {LONG_S[amount]} s")
        self._sim.process.cut_until = self._sim.clock + LONG_S[amount]

    def _brokers_away(self, amount: int, deployment: Deployment) -> None:
        self._say(f"no broker answers for {LONG_S[amount]} s")
        self._sim.away_until = self._sim.clock + LONG_S[amount]

    def _freeze(self, amount: int, deployment: Deployment) -> bool:
        """All processes of a service are frozen; Kafka ends the driver's session."""
        if deployment.process is None:
            return False
        self._say(f"all of {deployment.name} is frozen for {LONG_S[amount]} s")
        until = self._sim.clock + LONG_S[amount]
        for process in (deployment.process, *deployment.workers):
            process.frozen_until = until
        member = deployment.process.memory.get("member", {}).get("id")
        if LONG_S[amount] > SESSION_S and isinstance(member, str):
            self._sim.later(SESSION_S, lambda: self._sim.broker.expire_member(NAME, member))
        return True

    def _downtime(self, amount: int, deployment: Deployment) -> None:
        """Kafka may forget the group's offsets; but nobody can go on if the checkpoint is lost as well."""
        known = len(self._operator.deployments) == 1 and len(deployment.eras) == 1
        seconds = DOWNTIMES_S[amount if known else min(amount, 2)]
        deployment.down_until = self._sim.clock + seconds
        self._say(f"{deployment.name} is down for {seconds:.0f} s")
        self._kill(0, deployment)

    def _clock(self, amount: int, deployment: Deployment) -> None:
        self._sim.skew_s = SKEWS_S[amount]
        self._say(f"the host's clock is wrong by {SKEWS_S[amount]:.0f} s")

    def _change_config(self, amount: int, deployment: Deployment) -> bool:
        change: dict[str, dict[str, Any]] = {"dedup": {"period": PERIODS[amount]}}
        if amount == 0 and deployment.tables["dedup"]["match"] == "window":
            change["dedup"]["refresh"] = not deployment.tables["dedup"]["refresh"]
        if amount == 3:
            was_off = deployment.tables["dedup"]["conflict"] == "off"
            change["dedup"]["conflict"] = "topic" if was_off else "off"
        if amount == 1:
            change = {"dedup": {"max_future": "5s"}}
        if amount == 2:
            change = {"replay": {"mark_ttl": "3h"}}
        self._say(f"{change} from the next start on")
        for section, keys in change.items():
            deployment.changes.setdefault(section, {}).update(keys)
        return self._kill(0, deployment)

    def _change_shards(self, amount: int, deployment: Deployment) -> bool:
        shards = deployment.tables["service"]["shards"] + 1
        deployment.changes.setdefault("service", {})["shards"] = shards
        self._say(f"service.shards = {shards} from the next start on")
        return self._kill(0, deployment)

    def _rival(self, amount: int, deployment: Deployment) -> bool:
        """A second service of the name starts, or the first one again."""
        deployments = self._operator.deployments
        if len(deployments) > 1:
            ended = [each for each in deployments if each.retired]
            if ended:
                self._say(f"{ended[0].name} is started again")
                self._operator.resume(ended[0])
            return bool(ended)
        tables = {name: dict(table) for name, table in self.scenario.tables.items()}
        tables["service"]["shards"] = 1 + tables["service"]["shards"] % 3
        self._say("a second service of the name starts, with another checkpoint and other lanes")
        deployments[0].down_until = min(deployments[0].down_until, self._sim.clock + DOWNTIMES_S[2])
        self._operator.add(Deployment("B", self._folder / "B", tables))
        return True

    def _overtake(self, amount: int, deployment: Deployment) -> bool:
        """A second service starts while this attempt sleeps; its transaction is still open when it wakes."""
        if not self._rival(amount, deployment):
            return False
        actor = self._sim.current
        assert actor is not None
        actor.paused_until = self._sim.clock + OVERTAKEN_S[amount]
        self._say(f"and this pauses for {OVERTAKEN_S[amount]} s")
        return True

    def _lose_checkpoint(self, amount: int, deployment: Deployment) -> bool:
        if deployment.process is None or self._sim.process.service != deployment.name:
            return False
        self._kill(0, deployment)
        self._say(f"the checkpoint of {deployment.name} is deleted")
        deployment.from_committed = False
        deployment.lose_checkpoint()
        return True

    def _more_input_partitions(self, amount: int, deployment: Deployment) -> None:
        self._sim.broker.create(INPUT, len(self._sim.broker.topics[INPUT]) + 1)
        self._say("the input topic has one more partition")

    def _more_output_partitions(self, amount: int, deployment: Deployment) -> None:
        for topic in OUTPUTS.values():
            self._sim.broker.create(topic, len(self._sim.broker.topics[topic]) + 1)
        self._say("the output topics have one more partition")

    def _retention(self, amount: int, deployment: Deployment) -> None:
        """Kafka deletes what the first partition has, read or not."""
        log = self._sim.broker.topics[INPUT][0]
        log.start = log.stable_end()
        self._say(f"retention deletes {INPUT}-0 up to offset {log.start}")

    def _crash_a_program(self, amount: int, deployment: Deployment) -> bool:
        program = self._programs[amount % len(self._programs)]
        if program.done:
            return False
        self._say(f"{program.name} is killed")
        program.process.dead = True
        return True
