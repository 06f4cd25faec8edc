"""A batch that was delivered before a kill is finished as it was begun, whatever has changed since."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from replayfilter.core.routing import Route
from replayfilter.errors import RegistryError
from replayfilter.formats import AvroSpec, KeySpec
from replayfilter.kafka.admin import Cluster
from tests.support.extractions import confluent
from tests.support.pipelines import Pipeline, order, record
from tests.support.registry_server import FAST_RETRIES, RegistryServer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

HOUR = 3_600_000
NOW = 1_000 * HOUR  # event time: long ago, so that no record is in the future
LATE = order(2, NOW - HOUR)  # expired with a period of one hour, unique with two
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "ts", "type": "long"}],
}


def test_a_longer_period_does_not_change_what_was_delivered_as_expired(
    bootstrap: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(bootstrap, tmp_path, "longer", stamp="none")
    pipeline.publish([record(order(1, NOW))])
    pipeline.run_once()
    pipeline.publish([record(LATE)])
    pipeline.run_once()
    assert pipeline.values(Route.EXPIRED) == [LATE]

    pipeline.uncommit(1)
    pipeline.settings = replace(pipeline.settings, rules=replace(pipeline.settings.rules, period=2 * HOUR))
    pipeline.publish([record(LATE), record(LATE)])
    pipeline.run_once()
    found = {route.name: pipeline.values(route).count(LATE) for route in (Route.UNIQUE, Route.DUPLICATE)}
    assert found == {"UNIQUE": 1, "DUPLICATE": 1}, "the expired record must not be remembered as unique"
    assert pipeline.values(Route.EXPIRED) == [LATE]
    assert pipeline.log == ["finishing batch 1 with the settings it was begun with"]


def avro(name: str, id_: int) -> bytes:
    return confluent(SCHEMA, {"id": name, "ts": NOW}, id_)


def test_an_unknown_schema_is_recorded_before_its_batch_is_delivered(bootstrap: str, tmp_path: Path) -> None:
    with RegistryServer() as registry:
        registry.add(1, SCHEMA)
        spec = AvroSpec("confluent", registry.url, tuple(FAST_RETRIES.items()))
        keys = KeySpec("avro", ("id",), "ts", "ms", spec)
        pipeline = Pipeline(bootstrap, tmp_path, "pinned", stamp="none", output_stamp="none", keys=keys)
        pipeline.publish([record(avro("a", 1)), record(avro("b", 7), partition=1)])

        service = pipeline.service()
        service.start(once=True)
        service.await_end()
        assert service.restart_requested
        assert Cluster(bootstrap).committed("pinned", [("pinned", 0), ("pinned", 1)]) == {}
        assert pipeline.log == ["the schema registry does not know the ids 7; their records are errors"]

        service.start(once=True)
        service.await_end()
        assert not service.restart_requested
        assert pipeline.values(Route.UNIQUE) == [avro("a", 1)]
        assert pipeline.values(Route.ERROR) == [avro("b", 7)]

        # It is killed before Spark commits the batch, and somebody registers the schema.
        pipeline.uncommit(0)
        registry.add(7, SCHEMA)
        restart_workers(pipeline, registry)
        pipeline.publish([record(avro("b", 7), partition=1), record(avro("b", 7), partition=1)])
        pipeline.run_once()
        found = {
            route.name: pipeline.values(route).count(avro("b", 7))
            for route in (Route.UNIQUE, Route.DUPLICATE)
        }
        assert found == {"UNIQUE": 1, "DUPLICATE": 1}, "the error must not be remembered as unique"
        assert pipeline.values(Route.ERROR) == [avro("b", 7)]
        assert pipeline.log[1:] == ["finishing batch 0 with the settings it was begun with"]

        # It is killed again, and the registry loses the schema of records that are delivered.
        pipeline.uncommit(1)
        del registry.schemas[7]
        restart_workers(pipeline, registry)
        with pytest.raises(RegistryError, match="no longer knows the ids 7, which it knew when batch 1 was"):
            pipeline.run_once()


def restart_workers(pipeline: Pipeline, registry: RegistryServer) -> None:
    """Let the workers forget what the registry answered: other options make a new extractor."""
    spec = pipeline.settings.keys.avro
    assert spec is not None
    options = dict(FAST_RETRIES) | {"timeout": str(5 + len(registry.requests))}
    spec = replace(spec, options=tuple(options.items()))
    pipeline.settings = replace(pipeline.settings, keys=replace(pipeline.settings.keys, avro=spec))
