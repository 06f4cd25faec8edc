"""Records on their way through a lane: those that Kafka refuses, and what must not change on the way."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from replayfilter.errors import DeliveryError
from replayfilter.kafka.chunk import Chunk
from replayfilter.kafka.lanes import Lanes
from tests.support.lane_service import OLD_MS, PARTITIONS, LaneService


@pytest.fixture
def service(bootstrap: str) -> LaneService:
    return LaneService(bootstrap)


def test_a_record_too_large_for_the_topic(bootstrap: str) -> None:
    service = LaneService(bootstrap, **{"max.message.bytes": "20000", "compression.type": "uncompressed"})
    lanes = service.lanes(compression_type="none", batch_size="10000")
    partition = (service.name, 0)
    good = service.chunk(partition, 0, 50)
    values = [*good.values[:37], bytes(30_000), *good.values[38:]]
    sentence = (
        rf"from {service.name}\[0\] offset 37 for {service.outputs[1]}\[0\] \(30003 bytes .*max.message.bytes"
    )
    with pytest.raises(DeliveryError, match=sentence):
        service.deliver_chunk(lanes, good._replace(values=values))
    service.assert_exactly(0)
    service.deliver_chunk(lanes, good)
    assert sum(map(len, service.read().values())) == 50


def test_batches_are_no_larger_than_the_topic_takes(bootstrap: str) -> None:
    service = LaneService(bootstrap, **{"max.message.bytes": "20000"})
    partition, count = (service.name, 0), 200
    chance = random.Random(1)
    chunk = service.chunk(partition, 0, count)
    chunk = chunk._replace(values=[chance.randbytes(1_000) for _ in range(count)])
    name = service.name
    sentence = (
        rf"a batch of up to 1000000 bytes for {name}\..\[0\], with the record from {name}\[0\] offset \d+: "
        r".*set batch.size"
    )
    with pytest.raises(DeliveryError, match=sentence):  # with another limit than the topic has now
        service.deliver_chunk(service.lanes(), chunk)
    service.deliver_chunk(Lanes(bootstrap, service.name, max_message_bytes=20_000), chunk)
    assert sum(map(len, service.read().values())) == count


def test_a_large_header_is_part_of_the_record(bootstrap: str) -> None:
    service = LaneService(bootstrap, **{"max.message.bytes": "20000"})
    chunk = service.chunk((service.name, 0), 0, 1)._replace(headers=[[("large", os.urandom(30_000))]])
    lanes = Lanes(bootstrap, service.name, max_message_bytes=20_000)
    with pytest.raises(DeliveryError, match=r"the record from .* \(30008 bytes .*max.message.bytes"):
        service.deliver_chunk(lanes, chunk)


def test_a_record_too_large_for_the_client(service: LaneService) -> None:
    partition = (service.name, 0)
    chunk = service.chunk(partition, 0, 3)._replace(values=[b"a", bytes(32_000_000), b"c"])
    with pytest.raises(DeliveryError, match=r"offset 1 for .* \(32000002 bytes.*max.request.size"):
        service.deliver_chunk(service.lanes(), chunk)
    service.assert_exactly(0)


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"topics": ["no-such-topic"]}, "create the topic"),
        ({"partitions": [PARTITIONS]}, "counts the topic's partitions"),
    ],
)
def test_a_missing_topic_or_partition(service: LaneService, change: dict[str, Any], remedy: str) -> None:
    partition = (service.name, 0)
    lanes = service.lanes(topic_metadata_propagation_max_ms="500")
    with pytest.raises(DeliveryError, match=rf"offset 0 for .*{remedy}"):
        service.deliver_chunk(lanes, service.chunk(partition, 0, 1)._replace(**change))


def test_records_pass_through_as_they_are(service: LaneService) -> None:
    partition = (service.name, 2)
    keys = [None, b"", b"key", b"\x00\xff", None]
    values = [None, b"", b"v" * 1_100_000, b"x", b"last"]
    times = [OLD_MS, -1, 0, 1, OLD_MS - 5]
    headers: list[Any] = [None, [], [("a", b"1"), ("a", None), ("", b"")], [("b", b"\xff")], None]
    lanes = LaneService(service.bootstrap, **{"max.message.bytes": "2000000"})
    topic = lanes.outputs[0]
    with lanes.lanes().open(0) as delivery:
        delivery.write(Chunk(partition, [5, 7, 8, 9, 12], [topic] * 5, [2] * 5, keys, values, times, headers))
        delivery.commit({partition: 13})
    got = lanes.read()[topic, 2]
    assert [m.key() for m in got] == keys
    assert [m.value() for m in got] == values
    assert [m.timestamp()[1] for m in got] == [OLD_MS, -1, 1, 1, OLD_MS - 5]  # 0 can't be sent
    assert [m.headers() or [] for m in got] == [h or [] for h in headers]


def test_a_full_queue_only_delays(service: LaneService) -> None:
    lanes = service.lanes(queue_buffering_max_messages="50")
    service.deliver(lanes, 0, 0, 2000)
    service.assert_exactly(2000, lanes=(0,))
