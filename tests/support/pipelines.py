"""A pipeline between its own topics on the test run's broker."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from replayfilter.core.routing import Route
from replayfilter.core.rules import Rules
from replayfilter.demo.check import ConsumerRecord
from replayfilter.demo.kafka_io import publish, read_topic
from replayfilter.demo.stream import Headers, Record
from replayfilter.formats import KeySpec
from replayfilter.kafka.admin import Cluster
from replayfilter.service.runtime.checkpoint import SPARK
from replayfilter.service.runtime.decisions import RecordedDecisions
from replayfilter.spark.checkpoint_folder import LocalFolder
from replayfilter.spark.partitioning import output_pids
from replayfilter.spark.pipeline_settings import Output, PipelineSettings
from replayfilter.spark.query import Service
from replayfilter.spark.session import start_session

OUTPUTS = (Route.UNIQUE, Route.DUPLICATE, Route.EXPIRED, Route.ERROR)


class Pipeline:
    """Topics ``<name>`` and ``<name>.<route>``, and a service between them that may start several times."""

    def __init__(self, bootstrap: str, folder: Path, name: str, partitions: int = 2, **settings: Any) -> None:
        self.bootstrap, self.name = bootstrap, name
        cluster = Cluster(bootstrap)
        output_topics = [self.topic_of(route) for route in (*OUTPUTS, Route.REPLAY)]
        cluster.create(dict.fromkeys((name, *output_topics), partitions))
        topics = settings.get("topics", (name,))
        input_ids = {topic: found.id for topic, found in cluster.topics(topics).items()}
        found = cluster.topics(output_topics)
        defaults: dict[str, Any] = {
            "service": name,
            "checkpoint": str(folder / name / SPARK),
            "bootstrap": bootstrap,
            "topics": (name,),
            "keys": KeySpec("json", ("id",), "ts", "ms"),
            "rules": Rules(period=3_600_000, span=300_000),
            "outputs": {
                route: Output(topic := self.topic_of(route), found[topic].partitions) for route in OUTPUTS
            },
            "output_pids": output_pids(cluster.id, name, input_ids, found),
            "shards": 2,
            "lanes": 2,
            "master": "local[2]",
            "log_level": os.environ.get("SPARK_LOG", "off"),
        }
        self.settings = PipelineSettings(**defaults | settings)
        self.progress: list[dict[str, Any]] = []
        self.log: list[str] = []
        self.checkpoint = folder / name

    def topic_of(self, route: Route) -> str:
        """The output topic of a route."""
        return f"{self.name}.{route.name.lower()}"

    def publish(self, records: Iterable[Record]) -> None:
        """Write records to the input topic."""
        publish(self.bootstrap, self.name, records)

    def service(self) -> Service:
        """A service that has not been started."""
        begun = RecordedDecisions(LocalFolder(self.checkpoint), self.log.append)
        return Service(self.settings, [lambda progress: self.progress.append(dict(progress))], begun=begun)

    def session(self) -> SparkSession:
        """The test run's Spark session."""
        return start_session(self.settings)

    def run_once(self) -> Service:
        """Start a service that processes all that is there now; the service, when it has ended."""
        service = self.service()
        service.restart_requested = True
        while service.restart_requested:
            service.start(once=True)
            service.await_end()
        return service

    def uncommit(self, batch: int) -> None:
        """Remove Spark's commit of the last batch, as if all was killed when its records were delivered."""
        commit = Path(self.settings.checkpoint, "commits", str(batch))
        commit.unlink()
        commit.with_name(f".{batch}.crc").unlink()

    def counts(self, name: str) -> list[int]:
        """One count of every finished batch."""
        return [progress["observedMetrics"]["counts"][name] for progress in self.progress]

    def read(self, route: Route) -> list[ConsumerRecord]:
        """The committed records of a route's topic, by partition and in order."""
        return sorted(read_topic(self.bootstrap, self.topic_of(route)), key=lambda found: found.partition)

    def values(self, route: Route) -> list[bytes | None]:
        """The values in a route's topic, by partition, in order."""
        return [found.value for found in self.read(route)]


def record(
    value: bytes | None, key: bytes | None = None, partition: int = 0, headers: Headers | None = None
) -> Record:
    """A record to publish, with a fixed timestamp."""
    return Record(partition, -1, key, value, 1_700_000_000_000, headers or [], "")


def order(number: int, ts: int, **more: Any) -> bytes:
    """The JSON of an order."""
    return json.dumps({"id": number, "ts": ts, **more}).encode()
