"""Kafka's log of transactions: its records in both layouts, and what is open in a real broker."""

from __future__ import annotations

import struct
import time

import pytest
from confluent_kafka import Producer

from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.transaction_log import Transaction, open_transactions, parse_transaction

KEY = b"\0\0\0\2id"
HEAD = struct.Struct(">hqhib")
OPEN, EMPTY, PREPARE_COMMIT = 1, 0, 2
NEXT_PRODUCER = b"\1\1\x08" + bytes(8)  # one tagged field: number 1, 8 bytes


def value(version: int = 1, status: int = OPEN, partitions: bytes = b"\0", tags: bytes = b"\0") -> bytes:
    return HEAD.pack(version, 7, 2, 60_000, status) + partitions + struct.pack(">qq", 5, 4) + tags


def test_both_layouts_are_read() -> None:
    topics = Transaction("id", "open", (("a", 3), ("a", 300), ("bc", 1)), 4, 60_000)
    numbers = struct.pack(">ii", 3, 300), struct.pack(">i", 1)
    plain = b"\0\0\0\2" + b"\0\1a\0\0\0\2" + numbers[0] + b"\0\2bc\0\0\0\1" + numbers[1]
    assert parse_transaction(KEY, value(0, partitions=plain, tags=b"")) == topics
    compact = b"\3" + b"\2a\3" + numbers[0] + NEXT_PRODUCER + b"\3bc\2" + numbers[1] + b"\0"
    assert parse_transaction(KEY, value(1, partitions=compact, tags=NEXT_PRODUCER)) == topics


def test_a_long_topic_has_a_length_of_two_bytes() -> None:
    partitions = b"\2" + b"\xc9\x01" + b"t" * 200 + b"\2" + struct.pack(">i", 9) + b"\0"
    found = parse_transaction(KEY, value(partitions=partitions))
    assert found is not None
    assert found.partitions == (("t" * 200, 9),)


def test_what_is_not_open_or_not_known_is_left_out() -> None:
    assert parse_transaction(KEY, value(status=EMPTY)) is None
    assert parse_transaction(KEY, value(version=2)) is None
    assert parse_transaction(b"\0\1\0\2id", value()) is None
    assert parse_transaction(b"", value()) is None
    for size in range(len(value()) - 1):  # the last byte is not needed
        assert parse_transaction(KEY, value()[:size]) is None
    committing = parse_transaction(KEY, value(status=PREPARE_COMMIT))
    assert committing is not None
    assert committing.state == "being committed"


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_transaction_is_there_while_it_is_open(bootstrap: str, end: str) -> None:
    cluster, name = Cluster(bootstrap), f"transaction-log-{end}"
    cluster.create({name: 3})
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions()
    began = time.time_ns() // 1_000_000
    producer.begin_transaction()
    for partition in (2, 0):
        producer.produce(name, b"v", partition=partition)
    producer.flush()
    (found,) = (each for each in open_transactions(cluster) if each.id == name)
    assert (found.state, found.partitions) == ("open", ((name, 0), (name, 2)))
    assert began <= found.start_ms <= time.time_ns() // 1_000_000
    assert found.timeout_ms == 60_000  # librdkafka's default
    producer.commit_transaction() if end == "commit" else producer.abort_transaction()
    assert name not in [each.id for each in open_transactions(cluster) if each.state == "open"]
