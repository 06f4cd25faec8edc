"""A batch that was delivered before a kill is finished as it was begun, whatever has changed since."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message_factory import GetMessages

from replayfilter.core.routing import Route
from replayfilter.errors import RegistryError
from replayfilter.formats import AvroSpec, KeySpec, ProtobufSpec
from replayfilter.kafka.admin import Cluster
from tests.support.extractions import confluent
from tests.support.paths import ROOT
from tests.support.pipelines import Pipeline, order, record
from tests.support.registry_server import FAST_RETRIES, RegistryServer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

HOUR = 3_600_000
NOW = 1_000 * HOUR  # event time: long ago, so that no record is in the future
LATE = order(2, NOW - HOUR)  # expired with a period of one hour, unique with two
FILES = FileDescriptorSet.FromString((ROOT / "tests" / "vectors" / "order.desc").read_bytes()).file
MESSAGES: dict[str, Any] = GetMessages(FILES)
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


def protobuf(name: str, id_: int) -> bytes:
    """An order of tests/vectors/order.proto, the second type of its file."""
    message = MESSAGES["shop.Order"](id=name, ts=NOW)
    return b"\0" + id_.to_bytes(4, "big") + b"\2\2" + bytes(message.SerializeToString())


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_an_unknown_schema_is_recorded_before_its_batch_is_delivered(
    bootstrap: str, tmp_path: Path, form: str
) -> None:
    with RegistryServer() as registry:
        value, add = avro, partial(registry.add, schema=SCHEMA)
        options = tuple(FAST_RETRIES.items())
        keys = KeySpec("avro", ("id",), "ts", "ms", AvroSpec("confluent", registry.url, options))
        if form == "protobuf":
            value, add = protobuf, partial(registry.add_protobuf, file=FILES[-1])
            spec = ProtobufSpec("confluent", registry=registry.url, options=options)
            keys = replace(keys, format=form, avro=None, protobuf=spec)
        add(1)
        name = f"pinned-{form}"
        pipeline = Pipeline(bootstrap, tmp_path, name, stamp="none", output_stamp="none", keys=keys)
        pipeline.publish([record(value("a", 1)), record(value("b", 7), partition=1)])

        service = pipeline.service()
        service.start(once=True)
        service.await_end()
        assert service.restart_requested
        assert Cluster(bootstrap).committed(name, [(name, 0), (name, 1)]) == {}
        assert pipeline.log == ["the schema registry does not know the ids 7; their records are errors"]

        service.start(once=True)
        service.await_end()
        assert not service.restart_requested
        assert pipeline.values(Route.UNIQUE) == [value("a", 1)]
        assert pipeline.values(Route.ERROR) == [value("b", 7)]

        # It is killed before Spark commits the batch, and somebody registers the schema.
        pipeline.uncommit(0)
        add(7)
        restart_workers(pipeline, registry)
        pipeline.publish([record(value("b", 7), partition=1), record(value("b", 7), partition=1)])
        pipeline.run_once()
        found = {
            route.name: pipeline.values(route).count(value("b", 7))
            for route in (Route.UNIQUE, Route.DUPLICATE)
        }
        assert found == {"UNIQUE": 1, "DUPLICATE": 1}, "the error must not be remembered as unique"
        assert pipeline.values(Route.ERROR) == [value("b", 7)]
        assert pipeline.log[1:] == ["finishing batch 0 with the settings it was begun with"]

        # It is killed again, and the registry loses the schema of records that are delivered.
        pipeline.uncommit(1)
        del registry.schemas[7]
        restart_workers(pipeline, registry)
        with pytest.raises(RegistryError, match="no longer knows the ids 7, which it knew when batch 1 was"):
            pipeline.run_once()


def restart_workers(pipeline: Pipeline, registry: RegistryServer) -> None:
    """Let the workers forget what the registry answered: other options make a new extractor."""
    keys = pipeline.settings.keys
    assert keys.schemas is not None
    options = dict(FAST_RETRIES) | {"timeout": str(5 + len(registry.requests))}
    schemas = replace(keys.schemas, options=tuple(options.items()))
    pipeline.settings = replace(pipeline.settings, keys=keys.with_schemas(schemas))
