"""Ids of shards and lanes: each gets a Spark partition of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from replayfilter.spark.partitioning import assigned_index, partition_ids, spark_hash
from tests.support.pipelines import Pipeline


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_partition_ids_are_sparks(bootstrap: str, tmp_path: Path, count: int) -> None:
    spark = Pipeline(bootstrap, tmp_path, "hashed").session()
    ids = partition_ids(count)
    values = ", ".join(f"({id})" for id in ids)
    rows = spark.sql(f"SELECT id, hash(id), pmod(hash(id), {count}) FROM VALUES {values} AS t(id)").collect()
    assert [tuple(row) for row in rows] == [(id, spark_hash(id), part) for part, id in enumerate(ids)]


def test_the_partitions_of_a_topic_are_spread_evenly() -> None:
    for count in (2, 3, 5):
        indexes = [assigned_index("orders", partition, count) for partition in range(count * 2)]
        assert sorted(indexes) == sorted([*range(count)] * 2)
