"""The source without Spark: what it plans and reads on a real broker, and what it refuses to go on with."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # not in its stubs
from hypothesis import given
from hypothesis import strategies as st

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.errors import BrokerError, CheckpointError
from replayfilter.kafka.admin import Cluster
from replayfilter.spark import source
from replayfilter.spark.batch_range import BatchEnd
from replayfilter.spark.rows import PAYLOAD, Payload
from replayfilter.spark.source import TASK_RECORDS, BatchPlanner, SourceSettings, Task, read_task, spread
from tests.support.raw_headers import write_header
from tests.support.service_process import wait_for
from tests.support.source_input import Offsets, SourceInput, add_offsets

pytestmark = pytest.mark.spark


@pytest.fixture
def make_input(bootstrap: str, request: pytest.FixtureRequest) -> Callable[..., SourceInput]:
    def make(*arguments: Any, **settings: Any) -> SourceInput:
        made = SourceInput(bootstrap, "source", *arguments, **settings)
        request.addfinalizer(made.close)
        return made

    return make


MakeInput = Callable[..., SourceInput]


# ---- batches -----------------------------------------------------------------------------------------


def test_batches_take_all_records_in_order_and_share_a_backlog(make_input: MakeInput) -> None:
    topic = make_input(2)
    topic.write(300, 0)
    topic.write(100, 1)
    planner = topic.planner(batch_records=40)
    found: Offsets = {0: [], 1: []}
    sizes = []
    while batch := topic.next_batch(planner):
        sizes.append({partition: len(offsets) for partition, offsets in batch.items()})
        for partition, offsets in batch.items():
            found[partition] += offsets
    assert sizes[0] == {0: 30, 1: 10}
    assert found == {0: list(range(300)), 1: list(range(100))}
    end = BatchEnd.from_json(topic.end)
    assert end.began == {(topic.topic, 0): 0, (topic.topic, 1): 0}
    assert not end.behind


def test_nothing_new_is_the_same_end_again(make_input: MakeInput) -> None:
    topic = make_input()
    planner = topic.planner()
    first = planner.latestOffset()
    assert BatchEnd.from_json(first).ends == {(topic.topic, 0): 0}, "an empty batch says where it begins"
    assert planner.latestOffset() == first
    assert planner.partitions({}, first) == []
    topic.write(3)
    assert topic.next_batch(planner) == {0: [0, 1, 2]}


def test_the_end_of_a_batch_says_what_waits_behind_it(make_input: MakeInput) -> None:
    topic = make_input(2)
    topic.write(100, 1)
    planner = topic.planner(batch_records=70)
    _, end = topic.plan(planner)
    found = BatchEnd.from_json(end)
    assert found.behind == {(topic.topic, 1): 30}
    assert found.facts is not None
    assert not found.facts.caught_up
    last = BatchEnd.from_json(topic.plan(planner)[1]).facts
    assert last is not None
    assert last.caught_up


def test_a_pending_batch_is_the_same_after_a_restart(make_input: MakeInput) -> None:
    topic = make_input(2)
    topic.write(50, 0)
    start, end = topic.plan(topic.planner(batch_records=20))
    topic.write(50, 1)  # not part of the batch, although there is room
    again = topic.planner()
    assert topic.read(again, start, end) == {0: list(range(20))}
    assert topic.next_batch(again) == {0: list(range(20, 50)), 1: list(range(50))}


def test_a_batch_that_sparks_connector_planned_goes_on_with_its_time_and_offsets(
    make_input: MakeInput,
) -> None:
    topic = make_input()
    topic.write(10)
    planner = BatchPlanner(
        SourceSettings(topic.settings, 1_000, 2, last_end=json.dumps({topic.topic: {"0": 7}}), last_time_us=5,
                       first_offsets=json.dumps({topic.topic: {"0": 4}}))
    )  # fmt: skip
    (task,) = planner.partitions(planner.initialOffset(), {topic.topic: {"0": 7}})
    assert task == Task({(topic.topic, 0): (4, 7)}, BatchFacts(5, 5, caught_up=False))
    topic.end = {topic.topic: {"0": 7}}
    assert topic.next_batch(planner) == {0: [7, 8, 9]}


def test_it_begins_where_the_config_says(make_input: MakeInput) -> None:
    topic = make_input(2)
    topic.write(10, 0)
    topic.write(10, 1)
    given = topic.planner(starting={topic.topic: {1: 7}})
    assert topic.next_batch(given) == {0: list(range(10)), 1: [7, 8, 9]}
    topic.end = {}
    latest = topic.planner(starting="latest")
    assert topic.next_batch(latest) == {}
    topic.write(1, 1)
    assert topic.next_batch(topic.planner(starting="latest")) == {1: [10]}, "an empty batch has pinned it"


def test_it_stops_at_given_offsets(make_input: MakeInput) -> None:
    topic = make_input(2)
    topic.write(10, 0)
    stop_at = {(topic.topic, 0): 10, (topic.topic, 1): 0}
    planner = BatchPlanner(SourceSettings(topic.settings, 6, 1, stop_at=stop_at))
    topic.write(5, 0)
    topic.write(5, 1)
    found = [topic.next_batch(planner) for _ in range(3)]
    assert found == [{0: list(range(6))}, {0: list(range(6, 10))}, {}]


# ---- what Kafka may do to a topic --------------------------------------------------------------------


def test_aborted_records_and_markers_take_offsets_but_are_not_read(make_input: MakeInput) -> None:
    topic = make_input()
    planner = topic.planner()
    topic.write_transaction(3)  # offsets 0 to 2, marker 3
    topic.write_transaction(2, commits=False)  # 4, 5, marker 6
    assert topic.next_batch(planner) == {0: [0, 1, 2]}
    assert BatchEnd.from_json(topic.end).ends == {(topic.topic, 0): 7}
    topic.write_transaction(2, commits=False)  # 7, 8, marker 9
    assert topic.next_batch(planner) == {}, "a batch without records"
    topic.write(2)
    assert topic.next_batch(planner) == {0: [10, 11]}
    # A range that ends at a marker or among aborted records, with more behind it.
    for end, wanted in ((4, [0, 1, 2]), (5, [0, 1, 2]), (11, [0, 1, 2, 10])):
        logged = BatchEnd({(topic.topic, 0): end}, 1, began={(topic.topic, 0): 0}).to_json()
        assert topic.read(planner, {}, logged) == {0: wanted}


def test_records_of_an_open_transaction_wait(make_input: MakeInput) -> None:
    topic = make_input()
    topic.write(2)
    producer = Producer({"bootstrap.servers": topic.bootstrap, "transactional.id": topic.topic})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic.topic, b"pending", partition=0)
    producer.flush(20)
    topic.write(3)
    planner = topic.planner()
    assert topic.next_batch(planner) == {0: [0, 1]}
    producer.commit_transaction(20)
    assert topic.next_batch(planner) == {0: [2, 3, 4, 5]}


def test_records_that_retention_has_deleted_are_an_error_that_names_them(make_input: MakeInput) -> None:
    topic = make_input()
    topic.write(10)
    planner = topic.planner(batch_records=4)
    assert topic.next_batch(planner) == {0: [0, 1, 2, 3]}
    topic.delete_before(4)
    assert topic.next_batch(planner) == {0: [4, 5, 6, 7]}, "they have been read"
    topic.delete_before(9)
    start, end = topic.plan(planner)
    for each in (planner, topic.planner()):
        with pytest.raises(
            CheckpointError, match=rf"{topic.topic}-0: offsets 8 to 8 have not been read, .*reten"
        ):
            each.partitions(start, end)


def test_records_that_have_just_come_are_checked_when_they_are_read(
    make_input: MakeInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_input()
    topic.write(2)
    planner = topic.planner()
    assert topic.next_batch(planner) == {0: [0, 1]}
    topic.write(3)
    start, end = topic.plan(planner)
    topic.delete_before(4)
    (task,) = planner.partitions(start, end)
    with pytest.raises(BrokerError, match=f"{topic.topic}-0 can't be read"):
        list(planner.read(task))
    with pytest.raises(CheckpointError, match="offsets 2 to 3 have not been read"):
        topic.planner().partitions(start, end)  # as after the restart that follows
    monkeypatch.setattr(source, "RETENTION_S", 0.0)
    topic.write(1)
    start, end = topic.plan(planner)
    topic.delete_before(6)
    with pytest.raises(CheckpointError, match="offsets 5 to 5 have not been read"):
        planner.partitions(start, end)


def test_records_deleted_while_a_task_reads_are_not_left_out(make_input: MakeInput) -> None:
    topic = make_input()
    topic.write(10)
    topic.delete_before(5)
    with pytest.raises(BrokerError, match=f"{topic.topic}-0 can't be read"):
        list(read_task(topic.settings, Task({(topic.topic, 0): (2, 10)}, BatchFacts.at(1))))
    assert list(read_task(topic.settings, Task({(topic.topic, 0): (5, 10)}, BatchFacts.at(1))))


def test_a_partition_that_ends_too_early_is_waited_for(
    make_input: MakeInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a change of leader, the new one may not know at first how far the records are committed."""
    topic = make_input()
    topic.write(5)
    monkeypatch.setattr("replayfilter.kafka.chunk_reader.SILENCE_LIMIT_S", 1.0)
    with pytest.raises(BrokerError, match=f"nothing arrived from {topic.topic}-0"):
        list(read_task(topic.settings, Task({(topic.topic, 0): (0, 6)}, BatchFacts.at(1))))
    chunks = read_task(topic.settings, Task({(topic.topic, 0): (0, 6)}, BatchFacts.at(1)))
    monkeypatch.setattr("replayfilter.kafka.chunk_reader.SILENCE_LIMIT_S", 20.0)
    topic.write(1)
    found: Offsets = {}
    for chunk in chunks:
        add_offsets(chunk, found)
    assert found == {0: list(range(6))}


def test_a_topic_made_again_is_an_error(make_input: MakeInput, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = make_input()
    topic.write(5)
    planner = topic.planner()
    ids = {topic.topic: Cluster(topic.bootstrap).topics([topic.topic])[topic.topic].id}
    assert topic.next_batch(planner) == {0: [0, 1, 2, 3, 4]}
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    admin.delete_topics([topic.topic])[topic.topic].result(20)
    wait_for(lambda: not Cluster(topic.bootstrap).topics([topic.topic]), 20, "the topic is still there")
    with pytest.raises(BrokerError, match="there is no topic"):
        topic.planner().latestOffset()
    Cluster(topic.bootstrap).create({topic.topic: 1})
    topic.write(2)
    with pytest.raises(CheckpointError, match=r"-0 ends at offset 2, but the service has read up to 5"):
        topic.planner().latestOffset()
    topic.write(5)  # now it is longer than what was read
    monkeypatch.setattr(source, "PARTITIONS_CHECK_S", 0.0)
    for each in (planner, topic.planner(topic_ids=ids)):
        with pytest.raises(CheckpointError, match="was deleted and created again"):
            each.latestOffset()


def test_a_pending_batch_beyond_the_end_is_an_error(make_input: MakeInput) -> None:
    topic = make_input()
    topic.write(5)
    planner = topic.planner()
    with pytest.raises(CheckpointError, match="ends at offset 5, but the service has read up to 8"):
        planner.partitions({topic.topic: {"0": 2}}, BatchEnd({(topic.topic, 0): 8}, 1).to_json())


def test_partitions_added_while_it_runs_are_read_from_their_beginning(
    make_input: MakeInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_input()
    topic.write(3)
    planner = topic.planner(starting="latest")
    assert topic.next_batch(planner) == {}
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    admin.create_partitions([NewPartitions(topic.topic, 3)])[topic.topic].result(20)
    topic.write(4, 2)
    topic.write(1, 0)
    monkeypatch.setattr(source, "PARTITIONS_CHECK_S", 0.0)
    assert topic.next_batch(planner) == {0: [3], 2: [0, 1, 2, 3]}
    assert BatchEnd.from_json(topic.end).began == {
        (topic.topic, 0): 3, (topic.topic, 1): 0, (topic.topic, 2): 0,
    }  # fmt: skip
    topic.write(1, 1)
    assert topic.next_batch(topic.planner()) == {1: [0]}


def test_a_broker_that_is_away_is_asked_by_a_new_client(make_input: MakeInput) -> None:
    topic = make_input()
    planner = topic.planner(bootstrap="127.0.0.1:1")
    planner._cluster = first = Cluster("127.0.0.1:1", limit=1.0)
    with pytest.raises(BrokerError, match="no Kafka broker answered"):
        planner.latestOffset()
    assert planner._cluster is not first


# ---- records and tasks -------------------------------------------------------------------------------


def test_headers_that_cannot_be_read_are_an_error_of_their_record_only(make_input: MakeInput) -> None:
    topic = make_input()
    topic.write(2)
    write_header(topic.bootstrap, topic.topic, b"bad", b"\xff\xfe")
    write_header(topic.bootstrap, topic.topic, b"good", "\u00fc".encode())
    write_header(topic.bootstrap, topic.topic, b"bad", b"\xff")
    rows = [
        row
        for batch in read_task(topic.settings, Task({(topic.topic, 0): (0, 5)}, BatchFacts.at(1)))
        for kind, body in zip(batch.column("kind").to_pylist(), batch.column("body"), strict=True)
        if kind == PAYLOAD
        for row in Payload.from_buffer(body.as_buffer()).records.to_pylist()
    ]
    assert [row["reason"] for row in rows] == [None, None, "headers", None, "headers"]
    assert [row["value"] for row in rows] == [b"v", b"v", b"bad", b"good", b"bad"]
    assert [row["headers"] for row in rows] == [[], [], [], [{"key": "\u00fc", "value": b"x"}], []]


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("ab"), st.integers(0, 99)),
        st.tuples(st.integers(0, 999), st.integers(1_000, 9_999)),
    ),
    st.integers(1, 9),
)
def test_ranges_are_spread_over_tasks_of_similar_size(
    ranges: dict[tuple[str, int], tuple[int, int]], tasks: int
) -> None:
    found = spread(ranges, tasks)
    needed = -(-sum(end - start for start, end in ranges.values()) // TASK_RECORDS)
    assert len(found) == min(tasks, needed, len(ranges))
    assert {partition: given for task in found for partition, given in task.items()} == ranges
    assert sum(map(len, found)) == len(ranges)
    sizes = [sum(end - start for start, end in task.values()) for task in found]
    largest = max((end - start for start, end in ranges.values()), default=0)
    assert max(sizes, default=0) - min(sizes, default=0) <= largest
