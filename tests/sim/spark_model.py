"""A model of Spark: one streaming query with its logs, its state by version, and tasks that are tried again.

What it takes from Spark, because the proof rests on it: a batch's end is in the offset log before the batch
runs; batch N starts from the state that batch N - 1 left; a batch is finished, in the commit log, after all
of its tasks have succeeded. An exchange brings rows in any order. The tasks run the real decode, route and
deliver.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
from confluent_kafka import KafkaException

from replayfilter.core.input_partition import InputPartition
from replayfilter.errors import BrokerError, ReplayfilterError
from replayfilter.kafka.chunk_reader import InputChunk
from replayfilter.spark.batch_range import BatchEnd, last_line
from replayfilter.spark.decode import decode_chunks
from replayfilter.spark.deliver import deliver_batches
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.router import Router
from replayfilter.spark.rows import COLUMNS, FRAME
from replayfilter.spark.source import BatchPlanner, SourceSettings, Task
from tests.sim import world
from tests.sim.broker import Log
from tests.sim.clients import request
from tests.sim.scheduler import Process

TRIES = 4  # spark.task.maxFailures
LOST_S = (2.0, 30.0, 400.0, 400.0)  # after which an executor that says nothing is given up
_batch: list[int] = []

Shard = tuple[bytes | None, dict[bytes, bytes]]  # the state's value, and its runs


class TaskContext:
    """What route asks for the number of the batch."""

    @staticmethod
    def get() -> Any:
        return SimpleNamespace(getLocalProperty=lambda name: str(_batch[-1]))


class Reader:
    """Reads ranges, and cuts them into chunks anywhere."""

    def __init__(self, settings: PipelineSettings) -> None:
        pass

    def read_chunks(self, ranges: Mapping[InputPartition, tuple[int, int]]) -> Iterator[list[InputChunk]]:
        """The records in the ranges; some partitions together, each in its order."""
        sim = world.running()
        left = {}
        for at, (start, end) in ranges.items():
            log = _log(at)
            if start < log.start or end > log.stable_end():
                raise BrokerError(f"{at}: offsets {start} to {end} can't be read")
            left[at] = list(log.committed(start, end))
        while left:
            together = []
            for at in sim.chance.sample(sorted(left), sim.chance.randint(1, len(left))):
                size = sim.chance.choice((1, 2, 3, 8, 100))
                found, left[at] = left[at][:size], left[at][size:]
                if not left[at]:
                    del left[at]
                if found:
                    together.append(_chunk(at, found))
            if together:
                yield together


def _log(at: InputPartition) -> Log:
    try:
        return request("read", lambda broker: broker.log(at))
    except KafkaException as error:
        raise BrokerError(f"no Kafka broker answered: {at}: {error}") from error


def _chunk(at: InputPartition, found: list[tuple[int, Any]]) -> InputChunk:
    columns = [(offset, each.timestamp_ms, each.key, each.value, each.headers) for offset, each in found]
    return InputChunk(*at, *(list(column) for column in zip(*columns, strict=True)))


class RangeReader:
    """Reads the first records of ranges, for the checks before a start."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def read(self, ranges: Mapping[InputPartition, tuple[int, int]], **options: Any) -> Iterator[Any]:
        for at, (start, end) in ranges.items():
            log = _log(at)
            if any(True for _ in log.committed(start, end)):
                yield SimpleNamespace(topic=lambda at=at: at[0], partition=lambda at=at: at[1])


@dataclass(eq=False)
class SparkCheckpoint:
    """Spark's part of a checkpoint: ``folder`` with its logs, and the state by shard and version."""

    folder: Path
    state: dict[tuple[int, int], Shard] = field(default_factory=dict)

    def last(self, log: str) -> int:
        """The last entry of a log, -1 for none."""
        return max((int(path.name) for path in (self.folder / log).glob("*")), default=-1)

    def end_of(self, batch: int) -> str:
        """The end of a batch, as the source wrote it."""
        return last_line((self.folder / "offsets" / str(batch)).read_bytes())

    def write(self, log: str, batch: int, content: str) -> None:
        """Write an entry, with a point before and after."""
        sim = world.running()
        sim.point(f"{log}: before")
        (self.folder / log).mkdir(parents=True, exist_ok=True)
        (self.folder / log / str(batch)).write_text(content)
        sim.point(f"{log}: after")

    def planned_ends(self) -> Mapping[InputPartition, int]:
        """As :func:`replayfilter.spark.source.last_planned_ends`."""
        last = self.last("offsets")
        return BatchEnd.from_json(json.loads(self.end_of(last))).ends if last >= 0 else {}


class _Handle:
    """The state of a shard, as a task has it open."""

    def __init__(self, value: bytes | None, runs: dict[bytes, bytes]) -> None:
        self.value, self.runs = value, dict(runs)

    def getValueState(self, name: str, schema: str) -> Any:  # noqa: N802
        def update(row: tuple[bytes]) -> None:
            self.value = row[0]

        return SimpleNamespace(get=lambda: None if self.value is None else (self.value,), update=update)

    def getMapState(self, name: str, key: str, value: str) -> Any:  # noqa: N802
        def get(at: tuple[bytes]) -> tuple[bytes] | None:
            return (self.runs[at[0]],) if at[0] in self.runs else None

        def put(at: tuple[bytes], row: tuple[bytes]) -> None:
            self.runs[at[0]] = row[0]

        return SimpleNamespace(getValue=get, updateValue=put, removeKey=lambda at: self.runs.pop(at[0], None))


Row = tuple[Any, ...]  # by rows.COLUMNS


class Query:
    """One query, from its start to its end, in the driver's process.

    ``workers``: the processes of the deployment that run tasks. ``delivers``: called with a batch's number
    and end before any of it is delivered.
    """

    def __init__(
        self,
        checkpoint: SparkCheckpoint,
        settings: PipelineSettings,
        workers: list[Process],
        delivers: Callable[[int, BatchEnd, PipelineSettings], None],
    ) -> None:
        self.sim = world.running()
        self._checkpoint, self._settings, self._workers, self._delivers = (
            checkpoint,
            settings,
            workers,
            delivers,
        )
        last = checkpoint.last("offsets")
        tasks, last_end = self.sim.chance.randint(1, 3), checkpoint.end_of(last) if last >= 0 else None
        self._planner = BatchPlanner(
            SourceSettings(settings, settings.batch_records, tasks, last_end=last_end)
        )

    def run_batch(self) -> bool:
        """Run the next batch, or the one that is begun; whether there was one."""
        log, batch = self._checkpoint, self._checkpoint.last("offsets")
        if batch == log.last("commits"):
            before = json.loads(log.end_of(batch)) if batch >= 0 else None
            end = self._planner.latestOffset()
            if end == before or not end:
                return False
            batch += 1
            log.write("offsets", batch, f"v1\n{{}}\n{json.dumps(end)}")
        end = json.loads(log.end_of(batch))
        start = json.loads(log.end_of(batch - 1)) if batch else {}
        decoded = self._decode(self._planner.partitions(start, end))
        rows = self._route(batch, decoded) + [row for row in decoded if row[0] != FRAME]
        self._delivers(batch, BatchEnd.from_json(end), self._settings)
        self._deliver(rows)
        log.write("commits", batch, "v1\n{}")
        self._planner.commit(end)
        return True

    def _decode(self, tasks: list[Any]) -> list[Row]:
        return [row for task in tasks for row in self._attempts(lambda task=task: self._decode_task(task))]  # type: ignore[misc]

    def _decode_task(self, task: Task) -> list[Row]:
        rows: list[Row] = []
        read = Reader(self._settings).read_chunks(task.ranges)
        for batch in decode_chunks(self._settings, read, task.facts):
            rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        self.sim.point("decoded")
        return rows

    def _route(self, batch: int, decoded: list[Row]) -> list[Row]:
        """The rows of routes. An attempt's routes may be used with the state of another one."""
        frames: dict[int, list[Row]] = {}
        for row in decoded:
            if row[0] == FRAME:
                frames.setdefault(row[1], []).append(row)
        known = {shard for shard, _ in self._checkpoint.state} | frames.keys()
        routed: list[Row] = []
        for shard in self.sim.chance.sample(sorted(known), len(known)):
            before = self._checkpoint.state.get((shard, batch), (None, {}))
            if shard not in frames:
                self._checkpoint.state[shard, batch + 1] = before
                continue
            own = frames[shard]
            found = [self._attempts(lambda: self._route_task(batch, shard, own, before))]  # noqa: B023
            if self.sim.chance.random() < 0.15:  # its worker was given up
                found.append(self._attempts(lambda: self._route_task(batch, shard, own, before)))  # noqa: B023
            routed += self.sim.chance.choice(found)
        return routed

    def _route_task(self, batch: int, shard: int, frames: list[Row], before: Shard) -> list[Row]:
        self.sim.chance.shuffle(frames)
        _batch.append(batch)
        handle, router = _Handle(*before), Router(self._settings)
        router.init(handle)  # type: ignore[arg-type]
        found = list(router.handleInputRows((shard,), iter([pd.DataFrame(frames, columns=COLUMNS)]), None))  # type: ignore[arg-type]
        _batch.pop()
        self.sim.point("state: before")
        self._checkpoint.state[shard, batch + 1] = handle.value, handle.runs
        changelog = self._checkpoint.folder / "state" / "0" / str(shard) / f"{batch + 1}_sim.changelog"
        changelog.parent.mkdir(parents=True, exist_ok=True)
        changelog.touch()
        self.sim.point("state: after")
        return [row for part in found for row in part.itertuples(index=False, name=None)]

    def _attempts(self, task: Callable[[], list[Row]]) -> list[Row]:
        """Try a task of the driver's own process."""
        for _ in range(TRIES - 1):
            try:
                return task()
            except ReplayfilterError as error:
                self.sim.note(f"a task failed: {error}")
        return task()

    def _deliver(self, rows: list[Row]) -> None:
        by_lane: dict[int, list[Row]] = {}
        self.sim.chance.shuffle(rows)
        for row in sorted(rows, key=lambda row: (row[0], row[3])):
            by_lane.setdefault(row[2], []).append(row)
        attempts = [_LaneAttempts(self, lane, own) for lane, own in by_lane.items()]
        for each in attempts:
            each.start()
        while not all(each.done for each in attempts):
            self.sim.point("waiting for lanes")
            limit = self.sim.chance.choice(LOST_S)
            self.sim.wait(lambda: all(each.may_go_on for each in attempts), limit)
            for each in attempts:
                each.try_again()

    def free_worker(self) -> Process:
        """A worker without a task; one may be new."""
        self._workers[:] = [each for each in self._workers if not each.dead]
        free = [each for each in self._workers if not each.memory.get("busy")]
        if not free or self.sim.chance.random() < 0.1:
            free = [Process(f"worker {len(self.sim.history)}", self.sim.process.service)]
            self._workers += free
        return self.sim.chance.choice(free)

    @property
    def settings(self) -> PipelineSettings:
        """The settings of its tasks."""
        return self._settings


class _LaneAttempts:
    """The attempts at one lane's task of a batch; earlier ones may still run."""

    def __init__(self, query: Query, lane: int, rows: list[Row]) -> None:
        self._query, self._lane, self._rows = query, lane, rows
        self._failed = 0
        self._ended: list[BaseException | None] = []  # None for success
        self._started = 0

    @property
    def done(self) -> bool:
        return None in self._ended

    @property
    def may_go_on(self) -> bool:
        """Whether the driver need not wait for it."""
        return self.done or len(self._ended) == self._started

    def start(self) -> None:
        self._started += 1
        sim, worker = self._query.sim, self._query.free_worker()
        worker.memory["busy"] = {1: 1}
        name = f"{worker.service}.lane {self._lane}.{self._started}"

        def run() -> None:
            outcome: BaseException | None = ReplayfilterError("the worker was killed")
            try:
                self._run_task()
                outcome = None
            except ReplayfilterError as error:
                sim.note(f"failed: {error}")
                outcome = error
            finally:
                worker.memory["busy"] = {}
                self._ended.append(outcome)

        sim.spawn(name, worker, run)

    def _run_task(self) -> None:
        columns = list(zip(*self._rows, strict=True))
        table = dict(zip(COLUMNS, columns, strict=True))
        kinds, lanes = pa.array(table["kind"], pa.int32()), pa.array(table["lane"], pa.int32())
        bodies = pa.array(table["body"], pa.binary())
        given = pa.RecordBatch.from_arrays([kinds, lanes, bodies], ["kind", "lane", "body"])
        for _ in deliver_batches(self._query.settings, iter([given])):
            self._query.sim.point("lane counted")

    def try_again(self) -> None:
        """Start another attempt unless one has succeeded; raises the last error of too many."""
        if self.done:
            return
        failures = [error for error in self._ended if error is not None]
        if len(failures) >= TRIES:
            raise failures[-1]
        if self._started < TRIES + 2:
            self._query.sim.note(f"lane {self._lane}: another attempt")
            self.start()
