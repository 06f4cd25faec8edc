"""Avro through the real plan: schemas that change within a stream, and a registry that goes down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from replayfilter.core.routing import Route
from replayfilter.demo.stream import Headers
from replayfilter.errors import RegistryError
from replayfilter.formats import AvroSpec, KeySpec
from replayfilter.kafka.admin import Cluster
from tests.support.extractions import confluent
from tests.support.pipelines import Pipeline, record
from tests.support.registry_server import FAST_RETRIES, RegistryServer, guid_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

NOW = 3_600_000_000  # ms: long ago, so that nothing is future
LONG = {"name": "ts", "type": "long"}
MILLIS = {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}}
MICROS = {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}}


def schema(ts: dict[str, Any], *before: dict[str, Any]) -> dict[str, Any]:
    user = {"type": "record", "name": "User", "fields": [{"name": "id", "type": ["null", "string"]}]}
    return {"type": "record", "name": "Order", "fields": [*before, {"name": "user", "type": user}, ts]}


FIRST, SECOND, THIRD = schema(LONG), schema(MICROS, {"name": "note", "type": "string"}), schema(MILLIS)


def order(id_: int, user: str | None, ts: int) -> bytes:
    layout = {1: FIRST, 2: SECOND, 3: THIRD, 99: FIRST}[id_]
    plain = {
        **layout,
        "fields": [{**f, "type": "long"} if f["name"] == "ts" else f for f in layout["fields"]],
    }
    return confluent(plain, {"note": "n", "user": {"id": user}, "ts": ts * (1_000 if id_ == 2 else 1)}, id_)


def test_schemas_evolve_and_a_registry_that_is_down_loses_nothing(bootstrap: str, tmp_path: Path) -> None:
    with RegistryServer() as registry:
        registry.add(1, FIRST)
        registry.add(2, SECOND)
        spec = AvroSpec("confluent", registry.url, tuple((FAST_RETRIES | {"max.retries": "1"}).items()))
        keys = KeySpec("avro", ("user.id",), "ts", "ms", spec)
        pipeline = Pipeline(bootstrap, tmp_path, "avro", stamp="none", output_stamp="none", keys=keys)
        first = [
            order(1, "a", NOW),
            order(2, "b", NOW + 1),
            order(2, "a", NOW + 2),  # the same user in another schema
            order(2, "c", NOW - 3_600_000),
            order(1, None, NOW),
            order(99, "d", NOW),
            order(1, "d", NOW)[:-1],
            b'{"user": {"id": "d"}}',
            None,
        ]
        bare = order(2, "b", NOW + 2)[5:]  # its schema is in a header
        header: Headers = [("__value_schema_id", b"\1" + guid_of(2).bytes)]
        pipeline.publish([record(bare, headers=header), *map(record, first)])
        pipeline.run_once()
        assert pipeline.values(Route.UNIQUE) == [bare, first[0]]
        assert pipeline.values(Route.DUPLICATE) == first[1:3]
        assert pipeline.values(Route.EXPIRED) == first[3:4]
        errors = pipeline.read(Route.ERROR)
        assert [row.value for row in errors] == first[4:]
        reasons = [dict(row.headers)["rf-reason"] for row in errors]
        assert reasons == [b"key", b"avro_schema", b"avro", b"avro_prefix", b"empty"]
        assert pipeline.counts("error_avro_schema") == [1]

        # The registry is down when a record with a new schema comes.
        registry.fail_with = [503] * 1_000
        registry.add(3, THIRD)
        second = [order(3, "b", NOW + 3), order(3, "e", NOW + 4)]
        pipeline.publish(record(value) for value in second)
        with pytest.raises(RegistryError, match=r"avro\.registry = http://127.0.0.1.*HTTP 503"):
            pipeline.run_once()
        assert registry.requests.count("/schemas/ids/3") >= 4, "Spark tries a task again"
        assert Cluster(bootstrap).committed("avro", [("avro", 0)]) == {("avro", 0): len(first) + 1}
        assert pipeline.values(Route.ERROR) == first[4:]

        registry.fail_with = []
        pipeline.run_once()
        assert pipeline.values(Route.UNIQUE) == [bare, first[0], second[1]]
        assert pipeline.values(Route.DUPLICATE) == [*first[1:3], second[0]]
        assert pipeline.values(Route.ERROR) == first[4:]
        assert Cluster(bootstrap).committed("avro", [("avro", 0)]) == {
            ("avro", 0): 1 + len(first) + len(second)
        }
