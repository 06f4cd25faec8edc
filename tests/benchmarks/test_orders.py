"""The benchmark's stream: its truth is right, and a backlog is the same every time it is read."""

from __future__ import annotations

import copy
import json

from benchmarks.orders import ID, LATE_MS, SENT_US, SPAN_MS, Backlog, Orders

RECORDS = 5_000


def test_the_stream_knows_how_many_of_its_orders_are_unique() -> None:
    orders = Orders(4)
    made = [orders.next(1_700_000_000_000) for _ in range(RECORDS)]
    ids = [order.value[ID] for order in made]
    assert orders.records == RECORDS
    assert orders.unique == len(set(ids))
    assert 0.12 < 1 - len(set(ids)) / RECORDS < 0.16
    events = [json.loads(order.value) for order in made]
    assert [event["event_id"].encode() for event in events] == ids
    assert [event["sent"] for event in events] == [int(order.value[SENT_US]) for order in made]
    assert {len(order.value) for order in made} == {200}


def test_a_second_copy_has_the_partition_and_the_time_of_the_first() -> None:
    orders = Orders(200)
    events = [
        (order.partition, json.loads(order.value))
        for order in map(orders.next, range(10**12, 10**12 + RECORDS))
    ]
    assert len({(partition, event["event_id"], event["ts"]) for partition, event in events}) == orders.unique


def test_stamps_rise_without_gaps() -> None:
    orders = Orders(3)
    keys = [order.key for order in map(orders.next, [10**12] * 300)]
    assert len(set(keys)) == 300
    last = {key[8:12]: int.from_bytes(key[12:]) for key in keys}
    assert sum(last.values()) + len(last) == 300


def test_a_backlog_is_read_twice_and_the_live_stream_goes_on_after_it() -> None:
    backlog = Backlog(RECORDS, 4)
    first = list(backlog)
    assert list(backlog) == first
    assert len(first) == backlog.orders.records == RECORDS
    times = [json.loads(order.value)["ts"] for order in first]
    assert max(times) - min(times) < SPAN_MS + LATE_MS
    live = copy.deepcopy(backlog.orders)
    following = [live.next(10**12) for _ in range(100)]
    assert not {order.key for order in first} & {order.key for order in following}
    assert len({order.value[ID] for order in [*first, *following]}) == live.unique
    assert backlog.orders.records == RECORDS
