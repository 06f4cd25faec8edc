"""When the source plans the next batch: after an interval, at once for a backlog, and never late to stop."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka import Producer

from replayfilter.core.input_partition import InputPartition
from replayfilter.core.rules import Rules
from replayfilter.formats import KeySpec
from replayfilter.kafka.admin import Cluster
from replayfilter.spark.batch_range import BatchEnd
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.source import LONGEST_WAIT_S, BatchPlanner, SourceSettings
from tests.support.topics import new_topic

pytestmark = pytest.mark.spark

SLACK_S = 0.5  # for a busy machine


class Source:
    """A topic of one partition and the planner that reads it, which has planned an empty first batch."""

    def __init__(self, bootstrap: str, interval_s: float, **more: Any) -> None:
        self.bootstrap, self.topic = bootstrap, new_topic(bootstrap, "interval", 1)
        settings = PipelineSettings(
            service=self.topic, checkpoint="", bootstrap=bootstrap, topics=(self.topic,), outputs={},
            keys=KeySpec("raw", (), None, "ms"), rules=Rules(replay=False, dedup=False), stamp="none",
            output_pids={}, shards=1, lanes=1, interval_us=round(interval_s * 1e6),
        )  # fmt: skip
        if "stop_at" in more:
            more["stop_at"] = {(self.topic, 0): more["stop_at"]}
        self.planner = BatchPlanner(SourceSettings(settings, batch_records=10, tasks=1, **more))
        self.planned_at = time.monotonic()
        assert self.plan()[0] == 0

    def write(self, records: int) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for _ in range(records):
            producer.produce(self.topic, b"v")
        assert producer.flush(20) == 0

    def plan(self) -> tuple[int, float]:
        """Plan once: the offset at which the batch ends, and the seconds since the batch before it."""
        end = BatchEnd.from_json(self.planner.latestOffset()).ends[self.topic, 0]
        before, self.planned_at = self.planned_at, time.monotonic()
        return end, self.planned_at - before


def test_a_batch_waits_for_the_interval_and_takes_what_came_meanwhile(bootstrap: str) -> None:
    source = Source(bootstrap, 0.8)
    source.write(3)
    source.write(4)
    end, seconds = source.plan()
    assert end == 7
    assert 0.8 <= seconds + 0.01 < 0.8 + SLACK_S


def test_without_an_interval_a_batch_starts_at_once(bootstrap: str) -> None:
    source = Source(bootstrap, 0)
    source.write(3)
    started = time.monotonic()
    assert source.plan()[0] == 3
    assert time.monotonic() - started < SLACK_S


def test_a_backlog_does_not_wait(bootstrap: str) -> None:
    source = Source(bootstrap, 0.8)
    source.write(25)
    source.plan()
    for expected in (20, 25):
        end, seconds = source.plan()
        assert end == expected
        assert seconds < SLACK_S
    source.write(1)
    end, seconds = source.plan()
    assert end == 26
    assert seconds + 0.01 >= 0.8, "what came after the backlog waits again"


def test_what_is_there_now_is_read_without_waiting(bootstrap: str) -> None:
    source = Source(bootstrap, 60, stop_at=3)
    source.write(3)
    started = time.monotonic()
    assert source.plan()[0] == 3
    assert time.monotonic() - started < SLACK_S


@pytest.mark.parametrize("interval_s", [0, 60])
@pytest.mark.parametrize("records", [0, 3])
def test_the_planner_answers_soon_so_that_the_service_can_stop(
    bootstrap: str, interval_s: float, records: int
) -> None:
    source = Source(bootstrap, interval_s)
    source.write(records)
    for _ in range(2):
        started = time.monotonic()
        end, _ = source.plan()
        assert time.monotonic() - started < LONGEST_WAIT_S + SLACK_S
        assert end == (0 if interval_s else records)


def test_an_idle_planner_asks_seldom_but_soon_after_a_batch(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[float] = []
    ask = Cluster.end_offsets

    def counted(cluster: Cluster, partitions: Iterable[InputPartition]) -> dict[InputPartition, int]:
        requests.append(time.monotonic())
        return ask(cluster, partitions)

    monkeypatch.setattr(Cluster, "end_offsets", counted)
    source = Source(bootstrap, 1)
    for _ in range(2):  # the interval, and a second in which it asks less and less often
        source.plan()
    requests.clear()
    source.plan()
    assert len(requests) <= LONGEST_WAIT_S / 0.2 + 2
    source.write(1)
    assert source.plan()[0] == 1
    time.sleep(1)
    requests.clear()
    source.plan()
    assert requests[1] - requests[0] < 0.2, "records often follow each other"
