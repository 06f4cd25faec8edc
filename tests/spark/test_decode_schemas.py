"""Decode and schemas that the registry does not know."""

from __future__ import annotations

import pytest

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.rules import Rules
from replayfilter.errors import UnknownSchemas
from replayfilter.formats import AvroSpec, KeySpec
from replayfilter.kafka.chunk_reader import InputChunk
from replayfilter.spark.decode import decode_chunks
from replayfilter.spark.pipeline_settings import PipelineSettings
from tests.support.extractions import confluent
from tests.support.registry_server import FAST_RETRIES, RegistryServer

SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}


def value_of(schema_id: int) -> bytes:
    return confluent(SCHEMA, {"id": "a"}, schema_id)


def chunk_of(partition: int, ids: list[int]) -> InputChunk:
    n = len(ids)
    return InputChunk("t", partition, list(range(n)), [0] * n, [None] * n, list(map(value_of, ids)), None)


def test_one_error_has_the_unknown_ids_of_all_chunks() -> None:
    with RegistryServer() as registry:
        registry.add(1, SCHEMA)
        spec = AvroSpec("confluent", registry.url, tuple(FAST_RETRIES.items()))
        settings = PipelineSettings(
            service="s", checkpoint="c", bootstrap="b:1", topics=("t",), outputs={}, output_pids={}, shards=1,
            lanes=1, keys=KeySpec("avro", ("id",), None, "ms", spec), stamp="none", rules=Rules(replay=False),
        )  # fmt: skip
        chunks = [chunk_of(partition, ids) for partition, ids in enumerate([[7, 1], [9, 7], [8]])]
        for read in ([chunks], [[chunk] for chunk in chunks]):  # read together, and one after the other
            with pytest.raises(UnknownSchemas) as found:
                list(decode_chunks(settings, read, BatchFacts.at(0)))
            assert found.value.ids == {7, 8, 9}
