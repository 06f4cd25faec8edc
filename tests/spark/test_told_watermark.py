"""Watermarks that a server tells: for which batch they count, and what the planner keeps of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from replayfilter.core.rules import Rules
from replayfilter.formats import KeySpec
from replayfilter.spark.batch_range import BatchEnd
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.rows import FRAME
from replayfilter.spark.source import QUIET_US, BatchPlanner, SourceSettings, Task, read_task
from replayfilter.watermark.client import UpstreamStages
from tests.support.server_process import ServerProcess, write_config
from tests.support.service_process import wait_for
from tests.support.topics import new_topic

pytestmark = pytest.mark.spark

STAGES = """
[stages.before]
[stages.after]
upstream = ["before"]
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(write_config(tmp_path, STAGES)) as started:
        yield started


class ToldInput:
    """A topic with two partitions, and a planner that asks a server, as Spark would call it."""

    def __init__(self, bootstrap: str, server: ServerProcess) -> None:
        self.server, self.sequence = server, 0
        self.topic = new_topic(bootstrap, "told_input", 2)
        self.producer = Producer({"bootstrap.servers": bootstrap})
        self.settings = PipelineSettings(
            service="after", checkpoint="", bootstrap=bootstrap, topics=(self.topic,), outputs={},
            output_pids={}, keys=KeySpec("raw", (), None, "ms"), stamp="none", shards=3, lanes=1,
            rules=Rules(replay=False, dedup=False), upstream=UpstreamStages((server.url,), "", "after"),
        )  # fmt: skip
        self.end: dict[str, Any] = {}
        self.planner = self.new_planner()

    def new_planner(self, **settings: Any) -> BatchPlanner:
        last = json.dumps(self.end) if self.end else None
        return BatchPlanner(SourceSettings(replace(self.settings, **settings), 20, 2, last_end=last))

    def write(self, records: int) -> None:
        for _ in range(records):
            self.producer.produce(self.topic, b"v", partition=0)
        assert self.producer.flush(20) == 0

    def tell(self, low: int) -> None:
        """Report the low of the stage before, and wait until the planner has heard it."""
        self.sequence += 1
        self.server.report("before", low=low, sequence=self.sequence)

        def heard() -> bool:
            upstream = self.planner._upstream
            return upstream is not None and upstream.lows == {"before": low}

        wait_for(heard, 30, "the planner has not heard it")

    def has_batch(self, planner: BatchPlanner | None = None) -> bool:
        """Ask for the next batch once; whether there is one."""
        before = self.end
        self.end = json.loads(json.dumps((planner or self.planner).latestOffset()))
        return self.end != before

    def next_upstream(self) -> Mapping[str, int]:
        """What the next batch has, which may come only after a time of silence."""
        wait_for(self.has_batch, 30, "there was no batch")
        return BatchEnd.from_json(self.end).upstream


@pytest.fixture
def told(bootstrap: str, server: ServerProcess) -> Iterator[ToldInput]:
    made = ToldInput(bootstrap, server)
    yield made
    made.planner.stop()


def test_without_records_it_makes_a_batch_that_tells_every_shard(told: ToldInput) -> None:
    assert told.next_upstream() == {}, "the first batch only says where the input begins"
    told.tell(5)
    start = told.end
    assert told.next_upstream() == {"before": 5}
    (task,) = told.planner.partitions(start, told.end)
    assert isinstance(task, Task)
    assert (task.ranges, task.facts.upstream) == ({}, (("before", 5),))
    (rows,) = read_task(told.settings, task)
    assert rows.column("kind").to_pylist() == [FRAME] * 3
    assert len(set(rows.column("shard").to_pylist())) == 3
    assert not told.has_batch(), "it is not new any more"
    assert not told.has_batch(told.new_planner()), "nor after a restart"


def test_it_waits_for_records_that_cannot_be_read_yet(told: ToldInput) -> None:
    told.next_upstream()
    told.tell(5)
    assert told.next_upstream() == {"before": 5}
    producer = Producer({"bootstrap.servers": told.settings.bootstrap, "transactional.id": told.topic})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(told.topic, b"written before 9", partition=1)
    producer.flush(20)
    told.tell(9)
    told.write(1)
    assert told.next_upstream() == {"before": 5}
    deadline = time.monotonic() + 2 * QUIET_US / 1e6
    while time.monotonic() < deadline:
        assert not told.has_batch()
    producer.commit_transaction(20)
    assert told.next_upstream() == {"before": 9}


def test_it_waits_until_a_backlog_is_read(told: ToldInput) -> None:
    told.next_upstream()
    told.tell(12)
    told.write(30)  # a batch takes 20
    assert [told.next_upstream(), told.next_upstream()] == [{}, {"before": 12}]


def test_it_is_not_believed_if_it_is_from_the_future(told: ToldInput) -> None:
    told.next_upstream()
    told.tell(10**17)
    told.write(1)
    assert told.next_upstream() == {}


def test_it_stays_while_the_server_is_down_and_goes_with_the_config(told: ToldInput) -> None:
    told.next_upstream()
    told.tell(5)
    assert told.next_upstream() == {"before": 5}
    told.server.kill()
    told.write(1)
    assert told.next_upstream() == {"before": 5}
    told.write(1)
    assert told.has_batch(told.new_planner(upstream=None))
    assert not BatchEnd.from_json(told.end).upstream


def test_stages_that_have_not_reported_themselves_are_not_known(tmp_path: Path) -> None:
    stages = '[stages.a]\n[stages.b]\nupstream = ["a"]\n[stages.c]\nupstream = ["a", "b"]'
    with ServerProcess(write_config(tmp_path, stages)) as server:
        follower = UpstreamStages((server.url,), "", "c").follow()
        server.report("a", low=7)
        assert server.low("b") is None
        assert server.get("/v1/stages/c/upstream") == {"stage": "c", "lows": {"a": 7, "b": None}}
        assert follower.lows is None
        server.report("b", low=6)
        assert server.low("b") == 6
        wait_for(lambda: follower.lows == {"a": 7, "b": 6}, 30, "never told")
        follower.stop()
