"""A service as the checks before a start find it: topics, committed offsets and a checkpoint."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from replayfilter.kafka.admin import Cluster
from replayfilter.service.config.loader import config_from
from replayfilter.service.runtime.checkpoint import Identity
from replayfilter.service.runtime.preflight import Findings, inspect
from replayfilter.spark.checkpoint_folder import LocalFolder
from tests.support.service_process import wait_for

ROUTES = ("unique", "duplicate", "expired", "error")
numbers = itertools.count()


class Deployment:
    """A service on the shared broker, with topic names that no other test uses and a checkpoint folder."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap, self.folder = bootstrap, folder / "checkpoint"
        self.name = f"preflight-{next(numbers)}"
        self.cluster = Cluster(bootstrap)
        self.files = LocalFolder(self.folder)

    def data(self, **sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
        data: dict[str, dict[str, Any]] = {
            "service": {"name": self.name, "checkpoint": str(self.folder), "master": "local[2]"},
            "kafka": {"bootstrap": self.bootstrap},
            "input": {"topics": [self.name]},
            "dedup": {"key": ["id"], "expiry_key": "ts", "period": "1h"},
            "output": {route: f"{self.name}.{route}" for route in ROUTES},
        }
        for section, keys in sections.items():
            data.setdefault(section, {}).update(keys)
        return data

    def inspect(
        self, from_committed: bool = False, uncommitted: str | None = None, **sections: dict[str, Any]
    ) -> Findings:
        return inspect(config_from(self.data(**sections)), from_committed, uncommitted)

    def create(self, inputs: int = 2, outputs: int | None = None) -> None:
        counts = {f"{self.name}.{route}": inputs if outputs is None else outputs for route in ROUTES}
        self.cluster.create({self.name: inputs, **counts})

    def write(self, records: int, partition: int, abort: bool = False) -> None:
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "transactional.id": self.name, "log_level": 0}
        )
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(records):
            producer.produce(self.name, b"v", partition=partition)
        producer.flush()
        if abort:
            producer.abort_transaction()
        else:
            producer.commit_transaction()

    def commit(self, offsets: dict[int, int], metadata: str = "") -> None:
        at = [TopicPartition(self.name, partition, offset, metadata) for partition, offset in offsets.items()]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})

        def is_done() -> bool:  # a broker that does not know a new topic yet refuses its partitions
            asked = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(self.name, at)])
            return all(found.error is None for found in asked[self.name].result(30).topic_partitions)

        wait_for(is_done, 30, "the offsets were not committed")

    def delete_before(self, offsets: dict[tuple[str, int], int]) -> None:
        """Delete the records before these offsets, as retention does."""
        at = [TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.delete_records(at).values():
            future.result(30)

    def started(self, end: dict[int, int], finished: bool = True) -> Identity:
        """Write the checkpoint of a service whose first batch ended at ``end``, as Spark 4.0 writes it."""
        identity = self.inspect().identity
        assert identity is not None
        self.files.write("replayfilter.json", identity.to_bytes())

        def offsets(of: dict[int, int]) -> str:
            return json.dumps({self.name: {str(partition): offset for partition, offset in of.items()}})

        spark = self.folder / "spark"
        for folder in ("offsets", "commits", "sources/0"):
            (spark / folder).mkdir(parents=True)
        (spark / "offsets/0").write_text('v1\n{"batchWatermarkMs":0}\n' + offsets(end))
        (spark / "offsets/.0.crc").write_bytes(b"crc")
        (spark / "sources/0/0").write_bytes(b"\0v1\n" + offsets(dict.fromkeys(end, 0)).encode())
        if finished:
            (spark / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":0}')
        return identity
