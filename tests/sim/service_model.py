"""The service as its operator runs it: the checks before a start, the driver with its query, and restarts.

The steps are those of ``run`` in service/cli/run_commands.py, ``serve`` in service/runtime/run.py,
``Service`` in spark/query.py and ``Supervisor`` in service/runtime/supervision.py, without Java, signals and
pages. Everything that they call is the real code.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.rules import Rules
from replayfilter.errors import (
    BrokerError,
    CheckpointError,
    ConfigError,
    ReplayfilterError,
    ServiceReplaced,
    StampError,
)
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.client_settings import client_settings
from replayfilter.kafka.membership import Membership
from replayfilter.kafka.offsets import FIRST
from replayfilter.service.config.loader import config_from
from replayfilter.service.config.model import Config
from replayfilter.service.runtime.checkpoint import IDENTITY, SPARK, locked
from replayfilter.service.runtime.decisions import RecordedDecisions
from replayfilter.service.runtime.plan import pipeline_settings_of, with_topics
from replayfilter.service.runtime.preflight import Findings, inspect
from replayfilter.spark.batch_range import BatchEnd
from replayfilter.spark.checkpoint_folder import LocalFolder
from replayfilter.spark.first_offsets import as_member
from replayfilter.spark.pipeline_settings import PipelineSettings
from tests.sim import world
from tests.sim.scheduler import Actor, Process
from tests.sim.spark_model import Query, SparkCheckpoint

NAME, INPUT = "sim", "in"
OUTPUTS = {
    "unique": "out.unique",
    "duplicate": "out.duplicate",
    "conflict": "out.conflict",
    "expired": "out.expired",
    "error": "out.error",
}
TRIES = 5
TRIED_AGAIN = ("no Kafka broker answered", "can't be read yet", "in use by")  # errors that pass by themselves
PERMANENT = (ConfigError, CheckpointError, ServiceReplaced, StampError)
Tables = dict[str, dict[str, Any]]


class Refused(Exception):
    """The checks before a start found errors."""


@dataclass(frozen=True)
class Batch:
    """What the checker must know of a batch: its records, and by what it was decided first.

    ``began_us``: when it was first delivered, by a clock that is always right.
    """

    starts: dict[InputPartition, int]
    ends: dict[InputPartition, int]
    facts: BatchFacts
    rules: Rules
    max_future_us: int
    began_us: int


@dataclass(eq=False)
class Deployment:
    """A service with its own config and checkpoint folder. All deployments have the same service.name.

    ``changes``: to the config, from the next start on. ``eras``: the batches of each checkpoint that it had.
    """

    name: str
    folder: Path
    tables: Tables
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    from_committed: bool = False
    process: Process | None = None
    workers: list[Process] = field(default_factory=list)
    eras: list[dict[int, Batch]] = field(default_factory=lambda: [{}])
    down_until: float = 0.0
    retired: bool = False

    def __post_init__(self) -> None:
        self.checkpoint = SparkCheckpoint(self.folder / SPARK)

    def config(self) -> Config:
        """The config as it is now."""
        tables = {name: dict(table) for name, table in self.tables.items()}
        for section, keys in self.changes.items():
            tables[section] |= keys
        tables["service"]["checkpoint"] = str(self.folder)
        return config_from(tables)

    def lose_checkpoint(self) -> None:
        """Delete the folder, as an operator does by mistake. The service must be down."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.checkpoint.state.clear()
        self.eras.append({})


class Driver:
    """The driver's process, from its start to its end."""

    def __init__(self, deployment: Deployment, is_all_done: Callable[[], bool]) -> None:
        self._deployment, self._is_all_done = deployment, is_all_done
        self._sim = world.running()
        self._settings: PipelineSettings | None = None

    def run(self) -> None:
        """Check, start and serve. Raises Refused, or the error that ended the service."""
        self._sim.point("start")
        deployment, config = self._deployment, self._deployment.config()
        with locked(deployment.folder):
            may_be_empty = self._may_be_empty()
            findings = inspect(config, deployment.from_committed, None)
            if findings.errors:
                raise Refused(*findings.errors)
            assert findings.identity is not None
            assert may_be_empty, "a lost checkpoint was not noticed"
            folder = LocalFolder(deployment.folder)
            folder.write(IDENTITY, findings.identity.to_bytes())
            self._sim.point("identity written")
            self._settings = pipeline_settings_of(config, findings)
            settings = client_settings(config.kafka.bootstrap)
            with Membership(settings, self._settings.service, self._settings.topics) as membership:
                begun = RecordedDecisions(folder, self._sim.note)
                self._supervise(membership, begun, findings)

    def _may_be_empty(self) -> bool:
        """Whether there is a checkpoint, or it is right that there is none."""
        self._sim.broker.pass_time()  # its offsets may have expired
        group = self._sim.broker.groups.get(NAME)
        delivered = group is not None and any(text != FIRST for _, text in group.offsets.values())
        is_empty = self._deployment.checkpoint.last("offsets") < 0
        return self._deployment.from_committed or not (delivered and is_empty)

    def _supervise(self, membership: Membership, begun: RecordedDecisions, findings: Findings) -> None:
        tries = 0
        while True:
            batches = self._deployment.checkpoint.last("commits")
            try:
                if self._run_query(membership, begun, findings):
                    return
            except PERMANENT:
                raise
            except ReplayfilterError as error:
                self._sim.note(f"the query failed: {error}")
                if self._deployment.checkpoint.last("commits") > batches:
                    tries = 0
                tries += not isinstance(error, BrokerError)
                if tries >= TRIES:
                    raise
                self._sim.sleep(min(30.0, 2.0**tries))

    def _run_query(self, membership: Membership, begun: RecordedDecisions, findings: Findings) -> bool:
        """As Service.start and Service.await_end: True if all is done, False to start the query again."""
        assert self._settings is not None
        deployment, sim = self._deployment, self._sim
        wanted, only_one = begun.settings_for_start(self._settings)
        sim.point("decisions written")
        cluster = Cluster(wanted.bootstrap)
        limit = cluster.max_message_bytes({output.topic for output in wanted.outputs.values()})
        settings = replace(wanted, max_message_bytes=limit)
        settings = as_member(settings, deployment.checkpoint.planned_ends(), membership)
        joined = settings.membership
        query = Query(deployment.checkpoint, settings, deployment.workers, self._note_batch)
        while True:
            all_done = self._is_all_done()
            try:
                ran = query.run_batch()
            except ServiceReplaced:
                membership.ask()
                return False
            except ReplayfilterError:
                membership.check()
                if membership.has_changed(joined):
                    return False
                raise
            membership.check()
            if membership.has_changed(joined) or only_one:
                return False
            if not ran and all_done:
                return True
            if sim.chance.random() < 0.2 and self._topics_changed(cluster, findings):
                return False

    def _topics_changed(self, cluster: Cluster, findings: Findings) -> bool:
        """As the topics poller: whether topics have more partitions, which the settings have then."""
        assert self._settings is not None
        assert findings.identity is not None
        try:
            topics = cluster.topics(findings.topics)
        except BrokerError:
            return False
        changed = with_topics(self._settings, findings.identity.cluster_id, topics)
        changed, self._settings, before = changed, changed, self._settings
        return changed != before

    def _note_batch(self, number: int, end: BatchEnd, settings: PipelineSettings) -> None:
        era = self._deployment.eras[-1]
        assert end.facts is not None
        before = era[number - 1].ends if number else {}
        starts, ends, now_us = dict(end.began) | before, dict(end.ends), int(self._sim.clock * 1e6)
        batch = Batch(starts, ends, end.facts, settings.rules, settings.max_future_us, now_us)
        era.setdefault(number, batch)


class Operator:
    """Starts deployments, starts them again when they end, and does what their errors ask for.

    ``is_all_done``: whether nothing comes any more, so that a service that has nothing to do may end.
    ``gave_up``: why a deployment was left as it is.
    """

    def __init__(self, is_all_done: Callable[[], bool]) -> None:
        self._sim, self._is_all_done = world.running(), is_all_done
        self.deployments: list[Deployment] = []
        self.gave_up: list[str] = []
        self.refusals: list[str] = []

    def add(self, deployment: Deployment) -> None:
        """Run a deployment from now on."""
        self.deployments.append(deployment)
        self.resume(deployment)

    def resume(self, deployment: Deployment) -> None:
        """Run a deployment that has ended."""
        deployment.retired = False
        process = Process(f"operator {deployment.name}")
        self._sim.spawn(process.name, process, lambda: self._keep_running(deployment))

    def _keep_running(self, deployment: Deployment) -> None:
        number = 0
        while True:
            number += 1
            self._sim.wait(
                lambda: self._sim.clock >= deployment.down_until, deployment.down_until - self._sim.clock
            )
            outcome = self._run(deployment, number)
            if outcome is None or self._ends_with(deployment, outcome):
                deployment.retired = True
                return
            self._sim.sleep(self._sim.chance.choice((1.0, 5.0, 60.0)))

    def _run(self, deployment: Deployment, number: int) -> BaseException | None:
        """Run the service once; the error that it ended with."""
        process = Process(f"{deployment.name}{number}", deployment.name)
        deployment.process, outcome = process, list[BaseException | None]()

        def drive() -> None:
            try:
                Driver(deployment, self._is_all_done).run()
                outcome.append(None)
            except (ReplayfilterError, Refused) as error:
                outcome.append(error)

        actor: Actor = self._sim.spawn(process.name, process, drive)
        self._sim.wait(lambda: actor.done)
        process.dead = True
        error = outcome[0] if outcome else ReplayfilterError("killed")
        self._sim.note(f"{process.name} ended: {error}")
        return error

    def _ends_with(self, deployment: Deployment, error: BaseException) -> bool:
        """React to the end of a service; whether it stays down."""
        if isinstance(error, ServiceReplaced):
            return True
        text = " ".join(map(str, error.args))
        if isinstance(error, Refused):
            self.refusals.append(text)
            if "is empty, but according to Kafka" in text and not deployment.from_committed:
                deployment.from_committed = True
            elif "service.shards" in text and "shards" in deployment.changes.get("service", {}):
                del deployment.changes["service"]["shards"]
            elif not any(each in text for each in TRIED_AGAIN):
                self.gave_up.append(text)
                return True
            return False
        if isinstance(error, PERMANENT):
            if any(each in text for each in TRIED_AGAIN):
                return False
            self.gave_up.append(text)
            return True
        return False
