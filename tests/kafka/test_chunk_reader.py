"""The service's reader on a real broker: records come as Kafka has them, in chunks of bounded size."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Producer

from replayfilter.core.input_partition import InputPartition
from replayfilter.kafka import chunk_reader
from replayfilter.kafka.chunk_reader import NO_TIMESTAMP, ChunkReader
from tests.support.raw_headers import write_header
from tests.support.topics import new_topic


def test_records_come_as_kafka_has_them(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "chunks", message_timestamp_after_max_ms=str(2**63 - 1))
    producer = Producer({"bootstrap.servers": bootstrap})
    sent: list[Any] = [
        (None, None, None, -1),
        (b"", b"", [("h", None), ("h", b""), ("", b"\xff")], 2**63 - 1),
        (b"k", b"\x00\xff", [], -(2**40)),
    ]
    for key, value, headers, timestamp in sent:
        producer.produce(topic, value, key, 0, timestamp=timestamp, headers=headers)
    assert producer.flush(20) == 0
    write_header(bootstrap, topic, b"bad", b"\xff")  # a name that the client can't read
    write_header(bootstrap, topic, b"good", b"n")
    reader = ChunkReader(bootstrap, "records", {"max.poll.records": "1"})
    ((chunk,),) = reader.read_chunks({(topic, 0): (0, 5)})
    reader.close()
    assert (chunk.topic, chunk.partition, chunk.offsets) == (topic, 0, [0, 1, 2, 3, 4])
    assert chunk.timestamps_ms[:3] == [NO_TIMESTAMP, 2**63 - 1, -(2**40)]
    assert chunk.keys == [None, b"", b"k", None, None]
    assert chunk.values == [None, b"", b"\x00\xff", b"bad", b"good"]
    assert chunk.headers == [None, sent[1][2], None, None, [("n", b"x")]]
    assert chunk.unreadable == [3]


def test_chunks_are_bounded_by_records_and_by_bytes(bootstrap: str, monkeypatch: Any) -> None:
    topic, other = new_topic(bootstrap, "chunks", 2), new_topic(bootstrap, "chunks", 2)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(4_000):
        producer.produce((topic, other)[number // 2 % 2], b"v" * 100, partition=number % 2)
    assert producer.flush(20) == 0
    monkeypatch.setattr(chunk_reader, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr("replayfilter.kafka.reader.MESSAGES_PER_POLL", 50)
    reader = ChunkReader(bootstrap, "records", {})
    ranges = {(topic, 0): (10, 1_000), (topic, 1): (0, 900), (other, 1): (0, 1_000), (other, 0): (0, 1)}
    found: dict[InputPartition, list[int]] = {partition: [] for partition in ranges}
    for chunks in reader.read_chunks(ranges):
        assert sum(len(chunk.offsets) for chunk in chunks) <= 150
        for chunk in chunks:
            found[chunk.topic, chunk.partition] += chunk.offsets
    reader.close()
    assert found == {partition: list(range(start, end)) for partition, (start, end) in ranges.items()}
