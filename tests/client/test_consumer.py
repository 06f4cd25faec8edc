"""The filtering consumer on a real broker: marks and offsets stay together, whoever has the partition."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import weakref
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from replayfilter import FilteringConsumer, Stamp, StampingProducer
from replayfilter.errors import ConfigError, StampError
from tests.support.topics import new_topic, read_all

PID = 99


def settings(bootstrap: str, group: str) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "group.id": group, "session.timeout.ms": 6_000}


def publish(bootstrap: str, topic: str, offsets: list[int], partition: int = 0) -> None:
    """Write records with these source offsets; those that go back are replays."""
    with StampingProducer({"bootstrap.servers": bootstrap}, topic, PID) as producer:
        for offset in offsets:
            producer.begin_replay()
            producer.produce(partition, offset, str(offset))


def read_values(consumer: FilteringConsumer, expected: int, seconds: float = 20) -> list[int]:
    """The values returned: as many as expected, and any that arrive in the second after them."""
    found: list[int] = []
    deadline = time.monotonic() + seconds
    while len(found) < expected and time.monotonic() < deadline:
        found += [int(m.value() or b"-1") for m in consumer.consume(expected - len(found), 0.5)]
    return found + [int(m.value() or b"-1") for m in consumer.consume(10, 1.0)]


def test_replays_are_left_out_and_marks_survive_a_restart(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "filtered")
    publish(bootstrap, topic, [0, 1, 2, 1, 2, 3])
    with FilteringConsumer(settings(bootstrap, topic)) as consumer:
        consumer.subscribe([topic])
        assert read_values(consumer, 4) == [0, 1, 2, 3]
        assert consumer.counts == {"passed": 4, "replays": 2, "unstamped": 0, "gaps": 0}
        assert consumer.marks() == {(PID, 0): 3}
        consumer.commit()
    publish(bootstrap, topic, [2, 3, 4, 6])
    with FilteringConsumer(settings(bootstrap, topic)) as consumer:
        consumer.subscribe([topic])
        assert read_values(consumer, 2) == [4, 6]
        assert consumer.counts == {"passed": 2, "replays": 2, "unstamped": 0, "gaps": 1}


def test_uncommitted_records_are_returned_again_with_the_earlier_marks(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "uncommitted")
    publish(bootstrap, topic, [0, 1, 2, 3])
    with pytest.raises(ZeroDivisionError), FilteringConsumer(settings(bootstrap, topic)) as consumer:  # noqa: PT012
        consumer.subscribe([topic])
        assert [m.value() for m in consumer.consume(2, 10)] == [b"0", b"1"]
        consumer.commit()
        assert consumer.poll(10).value() == b"2"  # type: ignore[union-attr]
        raise ZeroDivisionError  # in handling record 2
    with FilteringConsumer(settings(bootstrap, topic)) as consumer:
        consumer.subscribe([topic])
        assert read_values(consumer, 2) == [2, 3]


def test_header_stamps_and_records_without_one(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "headers")
    stamp = Stamp(PID, 0, 5).to_bytes()
    producer = Producer({"bootstrap.servers": bootstrap})
    sha1 = b"\x80" * 20
    for value in (stamp, stamp, b"short"):
        producer.produce(topic, b"7", sha1, headers=[("rf-stamp", value)])
    producer.produce(topic, b"7", sha1)
    producer.flush()
    with FilteringConsumer(settings(bootstrap, topic), stamp="header") as consumer:
        consumer.subscribe([topic])
        assert read_values(consumer, 3) == [7, 7, 7]
        assert consumer.counts == {"passed": 3, "replays": 1, "unstamped": 2, "gaps": 0}


def test_offsets_and_marks_in_a_transaction_are_exactly_once(bootstrap: str) -> None:
    source, target = new_topic(bootstrap, "exact-in"), new_topic(bootstrap, "exact-out")
    publish(bootstrap, source, [0, 1, 0, 1, 2])
    for _ in range(2):  # the second time there is nothing left to do
        producer = StampingProducer(
            {"bootstrap.servers": bootstrap}, target, 1, transactional_id=f"{target}-job"
        )
        with FilteringConsumer(settings(bootstrap, source)) as consumer:
            consumer.subscribe([source], before_revoke=lambda: None)
            offsets: list[TopicPartition] = []
            with producer.transaction(offsets, consumer.consumer_group_metadata()):
                for message in consumer.consume(10, 6):
                    producer.produce(0, message.offset() or 0, message.value())
                offsets += consumer.offsets()
            consumer.committed()
        publish(bootstrap, source, [1, 2])
    assert [m.value() for m in read_all(bootstrap, target)] == [b"0", b"1", b"2"]


def test_marks_that_get_too_long_raise_before_the_record_that_causes_it(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "crowded")
    with StampingProducer({"bootstrap.servers": bootstrap}, topic, PID) as producer:
        for source in range(60):
            producer.produce(source, 1 << 40, b"1")
    with FilteringConsumer(settings(bootstrap, topic), metadata_limit=400) as consumer:
        consumer.subscribe([topic])
        returned = 0
        too_long = r"characters of offset metadata, the limit is 400; give .*store"
        with pytest.raises(StampError, match=too_long):  # noqa: PT012
            while consumer.poll(20):
                returned += 1
        consumer.commit()  # the records before it fit
        assert 30 < returned < 60
        with pytest.raises(StampError):
            consumer.poll(5)
    plain = Consumer(settings(bootstrap, topic))
    kept = plain.committed([TopicPartition(topic, 0)], timeout=10)[0]
    plain.close()
    assert kept.offset == returned
    assert len(kept.metadata or "") <= 400


class MemoryStore:
    """Offsets and marks in a dict."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int], tuple[int, str]] = {}

    def load(self, topic: str, partition: int) -> tuple[int, str] | None:
        return self.kept.get((topic, partition))

    def save(self, entries: Mapping[tuple[str, int], tuple[int, str]]) -> None:
        self.kept.update(entries)


def test_a_store_of_your_own_has_no_limit(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "stored")
    with StampingProducer({"bootstrap.servers": bootstrap}, topic, PID) as producer:
        for source in range(900):
            producer.produce(source, 1 << 40, b"1")
        producer.begin_replay()
        for source in range(900):
            producer.produce(source, (1 << 40) + source % 2, b"2")
    store = MemoryStore()
    with FilteringConsumer(settings(bootstrap, topic), store=store) as consumer:
        consumer.subscribe([topic])
        assert read_values(consumer, 1350) == [1] * 900 + [2] * 450
        consumer.commit()
    assert store.kept[topic, 0][0] == 1800
    with FilteringConsumer(settings(bootstrap, topic + "-other"), store=store) as consumer:
        consumer.subscribe([topic])
        assert read_values(consumer, 1, seconds=6) == []
        assert len(consumer.marks()) == 900


def test_a_group_that_gets_a_store_keeps_its_marks(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "switched", 2)
    publish(bootstrap, topic, [0, 1, 2])
    publish(bootstrap, topic, [5], partition=1)
    with FilteringConsumer(settings(bootstrap, topic)) as consumer:
        consumer.subscribe([topic])
        assert sorted(read_values(consumer, 4)) == [0, 1, 2, 5]
        consumer.commit()
    publish(bootstrap, topic, [1, 2, 3])
    store = MemoryStore()
    with FilteringConsumer(settings(bootstrap, topic), store=store) as consumer:
        consumer.subscribe([topic])
        assert read_values(consumer, 1) == [3]
        consumer.commit()
    assert {key: offset for key, (offset, _) in store.kept.items()} == {(topic, 0): 6, (topic, 1): 1}
    publish(bootstrap, topic, [2, 3, 4])
    publish(bootstrap, topic, [5, 6], partition=1)
    with FilteringConsumer(settings(bootstrap, topic), store=store) as consumer:
        consumer.subscribe([topic])
        assert sorted(read_values(consumer, 2)) == [4, 6]


def test_idle_marks_are_forgotten_at_a_commit(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic(bootstrap, "idle")
    publish(bootstrap, topic, [5])
    hour = 490_000
    monkeypatch.setattr("replayfilter.client.consumer._hour", lambda: hour)
    with FilteringConsumer(settings(bootstrap, topic)) as consumer:
        consumer.subscribe([topic])
        assert read_values(consumer, 1) == [5]
        consumer.commit()
        publish(bootstrap, topic, [9], partition=1)
        hour += 49
        assert read_values(consumer, 1) == [9]
        consumer.commit()
        assert consumer.marks() == {(PID, 0): 5, (PID, 1): 9}, "there may be more to read"
        publish(bootstrap, topic, [10], partition=1)
        assert read_values(consumer, 1) == [10]
        consumer.commit()
        assert consumer.marks() == {(PID, 1): 10}


def test_a_source_that_is_still_to_be_read_after_a_downtime_is_not_idle(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(bootstrap, "downtime")
    publish(bootstrap, topic, [5])
    publish(bootstrap, topic, [7, 8, 9], partition=1)
    hour = 490_000
    monkeypatch.setattr("replayfilter.client.consumer._hour", lambda: hour)
    with FilteringConsumer(settings(bootstrap, topic)) as consumer:
        consumer.subscribe([topic])
        assert read_values(consumer, 4) == [5, 7, 8, 9]
        consumer.commit()
    hour += 49
    publish(bootstrap, topic, [6, 7])
    publish(bootstrap, topic, [8, 9, 10], partition=1)
    with FilteringConsumer(settings(bootstrap, topic)) as consumer:
        consumer.subscribe([topic])
        for expected in (6, 7, 10):
            message = consumer.poll(20)
            assert message is not None
            assert int(message.value() or b"") == expected
            consumer.commit()


def test_settings_that_would_separate_offsets_from_marks_are_refused(bootstrap: str) -> None:
    with pytest.raises(ConfigError, match=r"enable\.auto\.commit"):
        FilteringConsumer({"group.id": "x", "enable.auto.commit": True})
    with pytest.raises(ConfigError, match="stamp = 'value'"):
        FilteringConsumer({"group.id": "x"}, stamp="value")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        FilteringConsumer({"group.id": "x", "no.such": 1})


def test_metadata_of_another_program_is_refused(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "foreign")
    plain = Consumer(settings(bootstrap, topic))
    plain.commit(offsets=[TopicPartition(topic, 0, 0, "hello")], asynchronous=False)
    plain.close()
    with FilteringConsumer(settings(bootstrap, topic)) as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 20
        with pytest.raises(StampError, match="'hello' is not by a filtering consumer"):  # noqa: PT012
            while time.monotonic() < deadline:
                consumer.poll(0.2)
        with pytest.raises(StampError, match="'hello' is not by a filtering consumer"):
            consumer.poll(0)  # and not None, as if there were no records


def test_an_error_in_before_revoke_is_raised_by_close(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "revoked")
    publish(bootstrap, topic, [1])

    def fail() -> None:
        raise ZeroDivisionError

    consumer = FilteringConsumer(settings(bootstrap, topic))
    consumer.subscribe([topic], before_revoke=fail)
    assert read_values(consumer, 1) == [1]
    with pytest.raises(ZeroDivisionError):
        consumer.close()


def test_a_consumer_that_was_never_closed_is_freed_with_its_last_reference(bootstrap: str) -> None:
    """Left to the garbage collector it could live until the interpreter ends."""
    topic = new_topic(bootstrap, "dropped")
    publish(bootstrap, topic, [1])
    consumer = FilteringConsumer(settings(bootstrap, topic))
    consumer.subscribe([topic])
    assert read_values(consumer, 1) == [1]
    gone = weakref.ref(consumer)
    del consumer
    assert gone() is None


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_three_consumers_killed_and_restarted_at_random(
    bootstrap: str, tmp_path: Path, strategy: str
) -> None:
    """Nothing is lost and no replay passes: each stamp is handled at one input offset only."""
    seed = int(time.time())
    rng = random.Random(seed)
    topic, sources, last = new_topic(bootstrap, f"rolling-{strategy}", 6), 6, 600
    log = tmp_path / "handled"
    command = [
        sys.executable,
        "-m",
        "tests.support.consumer_process",
        bootstrap,
        topic,
        topic,
        str(log),
        strategy,
    ]
    members = [subprocess.Popen(command) for _ in range(3)]
    position = [0] * sources
    try:
        with StampingProducer({"bootstrap.servers": bootstrap}, topic, PID) as producer:
            next_kill = time.monotonic() + 6
            kills = 0
            while min(position) < last or kills < 6:
                for source in range(sources):
                    if rng.random() < 0.02:  # an upstream job that goes back to its checkpoint
                        position[source] = max(0, position[source] - rng.randrange(60))
                        producer.begin_replay(source)
                    if position[source] < last * 20:
                        producer.produce(source, position[source], b"x")
                        position[source] += 1
                time.sleep(0.02)
                if time.monotonic() > next_kill and kills < 6:
                    victim = rng.randrange(3)
                    members[victim].send_signal(rng.choice((9, 9, 15)))
                    members[victim].wait(20)
                    time.sleep(rng.uniform(0, 1))
                    members[victim] = subprocess.Popen(command)
                    next_kill, kills = time.monotonic() + rng.uniform(1, 4), kills + 1
        written = {
            (s.partition, s.offset) for m in read_all(bootstrap, topic) if (s := Stamp.from_bytes(m.key()))
        }
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            handled = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
            if written <= {(source, offset) for _, _, source, offset in handled}:
                break
            time.sleep(0.5)
        assert all(member.poll() is None for member in members), "a consumer ended on its own"
    finally:
        for member in members:
            member.kill()
            member.wait()
    handled_at = defaultdict(set)
    for partition, offset, source, source_offset in handled:
        handled_at[source, source_offset].add((partition, offset))
    assert handled_at.keys() == written, f"seed {seed}: lost {sorted(written - handled_at.keys())[:5]}"
    twice = {stamp: found for stamp, found in handled_at.items() if len(found) > 1}
    assert not twice, f"seed {seed}: replays passed: {list(twice.items())[:3]}"
    assert len(read_all(bootstrap, topic)) > len(written) + 100, (
        "there were too few replays to prove anything"
    )
