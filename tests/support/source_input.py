"""A topic and planners of the source, called as Spark calls them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from replayfilter.core.rules import Rules
from replayfilter.formats import KeySpec
from replayfilter.spark import worker
from replayfilter.spark.batch_range import BATCH
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.rows import PAYLOAD, Payload
from replayfilter.spark.source import BatchPlanner, SourceSettings, Task, read_task
from tests.support.topics import new_topic

Offsets = dict[int, list[int]]  # the offsets that were read, by partition


class SourceInput:
    """A topic, and planners that read it as Spark would call them."""

    def __init__(self, bootstrap: str, name: str, partitions: int = 1, **config: str) -> None:
        self.bootstrap = bootstrap
        self.topic = new_topic(bootstrap, name, partitions, **config)
        self.settings = PipelineSettings(
            service=self.topic, checkpoint="", bootstrap=bootstrap, topics=(self.topic,), outputs={},
            output_pids={}, keys=KeySpec("raw", (), None, "ms"),
            rules=Rules(replay=False, dedup=False), stamp="none",
            shards=1, lanes=1,
        )  # fmt: skip
        self.end: dict[str, Any] = {}  # of the last batch, as Spark's offset log has it

    def write(self, records: int, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for _ in range(records):
            producer.produce(self.topic, b"v", partition=partition)
        assert producer.flush(20) == 0

    def write_transaction(self, records: int, commits: bool = True) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": self.topic})
        producer.init_transactions(20)
        producer.begin_transaction()
        for _ in range(records):
            producer.produce(self.topic, b"v", partition=0)
        producer.flush(20)
        producer.commit_transaction(20) if commits else producer.abort_transaction(20)

    def delete_before(self, offset: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.delete_records([TopicPartition(self.topic, 0, offset)]).values():
            future.result(20)

    def planner(self, batch_records: int = 1_000, **settings: Any) -> BatchPlanner:
        """A planner as after a start of the service: it knows the last end that was planned."""
        last = json.dumps(self.end) if self.end else None
        return BatchPlanner(
            SourceSettings(replace(self.settings, **settings), batch_records, tasks=2, last_end=last)
        )

    def plan(self, planner: BatchPlanner) -> tuple[dict[str, Any], dict[str, Any]]:
        """Plan the next batch: its start and its end, which went through the log."""
        start, self.end = self.end or planner.initialOffset(), logged_end(planner.latestOffset())
        return start, self.end

    def read(self, planner: BatchPlanner, start: dict[str, Any], end: dict[str, Any]) -> Offsets:
        """The offsets of a batch's records."""
        tasks = [task for task in planner.partitions(start, end) if isinstance(task, Task)]
        times = {task.facts.time_us for task in tasks}
        assert times <= {end.get(BATCH, {}).get("time_us", 0)}
        found: Offsets = {}
        for task in tasks:
            for chunk in read_task(self.settings, task):
                add_offsets(chunk, found)
        return found

    def next_batch(self, planner: BatchPlanner) -> Offsets:
        """Plan and read the next batch; empty if there was nothing new."""
        start, end = self.plan(planner)
        return {} if start == end else self.read(planner, start, end)

    def close(self) -> None:
        worker.drop_reader(self.settings)


def logged_end(end: dict[str, Any]) -> dict[str, Any]:
    """The end of a batch after it was written to Spark's offset log and read again."""
    found: dict[str, Any] = json.loads(json.dumps(end))
    return found


def add_offsets(chunk: pa.RecordBatch, found: Offsets) -> None:
    """Add the offsets of the payloads' records in a batch of rows."""
    for kind, body in zip(chunk.column("kind").to_pylist(), chunk.column("body"), strict=True):
        if kind == PAYLOAD:
            payload = Payload.from_buffer(body.as_buffer())
            offsets = np.split(payload.records.column("offset").to_numpy(), payload.ends[:-1])
            for chunk_id, own in zip(payload.chunks, offsets, strict=True):
                found.setdefault(chunk_id.partition, []).extend(own.tolist())
