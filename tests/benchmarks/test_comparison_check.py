"""The comparison's own check: the output of a system must have each order, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from benchmarks.comparison import check
from benchmarks.orders import value_of
from benchmarks.systems import Job
from replayfilter.kafka.admin import Cluster


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ([2, 0, 1], ""),
        ([2, 0, 3], "orders b'order-000000000000' to b'order-000000000003' instead of the first 3"),
    ],
)
def test_the_orders_must_be_the_right_ones(
    numbers: list[int], problem: str, bootstrap: str, tmp_path: Path
) -> None:
    job = Job(bootstrap, f"comparison-check-{numbers[-1]}", 1, 10, tmp_path)
    Cluster(bootstrap).create({job.output: 1})
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce(job.output, value_of(number, 0, 0))
    producer.flush()
    assert check(job, 3, 3) == problem
