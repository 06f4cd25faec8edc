"""What is read back from output and input topics for a rebuild; without Spark and without Kafka."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.digest import digest_contents, digest_keys, partition_salt
from replayfilter.core.key_run import INDEX, OFFSET
from replayfilter.core.rebuilt_state import Delivered
from replayfilter.core.stamp import Stamp
from replayfilter.kafka.chunk_reader import InputChunk
from replayfilter.spark import recall
from replayfilter.spark.partitioning import assigned_index, partition_ids
from replayfilter.spark.recall import RecallSettings, recall_chunks
from tests.support.example_plan import settings_with

INPUTS = tuple(("orders", number) for number in range(5))
OWN = 77  # a pid of the service
SHARDS = 3


def settings(**sections: dict[str, Any]) -> RecallSettings:
    dedup = {"key": ["id"], "expiry_key": "ts", "period": "1h"} | sections.pop("dedup", {})
    pipeline = settings_with(dedup=dedup, **sections)
    return RecallSettings(pipeline, 0, INPUTS, {OWN: "orders"})


def chunk(
    topic: str,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Any = None,
    unreadable: Sequence[int] = (),
) -> InputChunk:
    offsets = list(range(len(values)))
    given: list[bytes | None] = list(keys if keys is not None else map(own, offsets))
    return InputChunk(topic, 1, offsets, [0] * len(values), given, list(values), headers, unreadable)


def own(offset: int, partition: int = 1, pid: int = OWN) -> bytes:
    return Stamp(pid, partition, offset).to_bytes()


def order(number: int, ts: int) -> bytes:
    return b'{"id": %d, "ts": %d}' % (number, ts)


def found_in(settings: RecallSettings, *chunks: InputChunk) -> tuple[list[list[Delivered]], Counter[str]]:
    """What each shard gets, and what is counted."""
    shards: dict[int, list[Delivered]] = {number: [] for number in partition_ids(SHARDS)}
    counts: Counter[str] = Counter()
    for batch in recall_chunks(settings, [chunks]):
        rows = batch.to_pydict()
        for shard, body in zip(rows["shard"], rows["body"], strict=True):
            shards[shard].append(Delivered.from_bytes(body))
            counts.update(shards[shard][-1].counts)
    return list(shards.values()), counts


def keys_of(shards: list[list[Delivered]]) -> dict[tuple[int, int], int]:
    """Digest -> expiry key, of all shards."""
    keys = [part.keys for parts in shards for part in parts]
    return {
        (hi, lo): at
        for each in keys
        for hi, lo, at in zip(each.hi.tolist(), each.lo.tolist(), each.expiry.tolist(), strict=True)
    }


def digest_of(*values: object) -> list[tuple[int, int]]:
    return [(int(hi), int(lo)) for hi, lo in digest_keys([list(values)]).tolist()]


def test_unique_records_give_keys_and_with_duplicates_the_latest_point() -> None:
    shards, counts = found_in(
        settings(),
        chunk("orders.unique", [order(1, 500), order(2, 900)]),
        chunk("orders.duplicate", [order(1, 950)]),
    )
    assert keys_of(shards) == dict(zip(digest_of(1, 2), (500, 900), strict=True))
    assert {part.latest for parts in shards for part in parts} == {950}
    assert counts == Counter({"outputs": 3, "remembered": 2})
    for number, parts in enumerate(shards):
        assert all(lo % SHARDS == number for part in parts for lo in part.keys.lo.tolist())


def test_keys_go_to_the_shards_in_parts(monkeypatch: Any) -> None:
    monkeypatch.setattr(recall, "ROW_KEYS", 1)
    shards, _ = found_in(settings(), chunk("orders.unique", [order(1, 500)]))
    assert [len(parts) for parts in shards] == [2, 2, 2]
    assert [part.latest for part in shards[0]] == [UNKNOWN, 500]


def test_records_of_others_and_records_without_a_key_are_counted() -> None:
    values = [order(1, 500), order(2, 900), b"{}", order(4, 901), order(5, 902)]
    keys = [own(0), None, own(2), own(3, pid=5), own(4, partition=99)]
    shards, counts = found_in(settings(), chunk("orders.unique", values, keys))
    assert keys_of(shards) == {digest_of(1)[0]: 500}
    assert {part.latest for parts in shards for part in parts} == {500}
    assert counts == Counter({"outputs": 5, "remembered": 1, "foreign": 3, "unreadable": 1})

    everything = replace(settings(), foreign=True)
    shards, counts = found_in(everything, chunk("orders.unique", values, keys))
    assert keys_of(shards) == dict(zip(digest_of(1, 2, 4, 5), (500, 900, 901, 902), strict=True))
    assert counts == Counter({"outputs": 5, "remembered": 4, "foreign": 3, "unreadable": 1})


def test_own_stamps_in_headers() -> None:
    headers = [[("rf-stamp", own(7, partition=2))], None]
    given = settings(output={"stamp": "header"}, dedup={"remember_first": True})
    shards, counts = found_in(
        given, chunk("orders.unique", [order(1, 5), order(2, 6)], [b"k", b"k"], headers)
    )
    (keys,) = [part.keys for parts in shards for part in parts if len(part.keys.hi)]
    assert (INPUTS[keys.kept[INDEX][0]], keys.kept[OFFSET].tolist()) == (("orders", 2), [7])
    assert counts["foreign"] == 1


def test_own_stamps_are_found_wherever_they_were_written() -> None:
    """And the key that one has replaced isn't known."""
    given = settings(input={"stamp": "header"}, output={"stamp": "header"}, dedup={"key": ["@key"]})
    headers = [[("rf-stamp", own(0))], None]
    shards, counts = found_in(
        given, chunk("orders.unique", [order(1, 5), order(2, 6)], [b"k", own(1)], headers)
    )
    assert keys_of(shards) == {digest_of(b"k")[0]: 5}
    assert counts == Counter({"outputs": 2, "remembered": 1, "unreadable": 1})


def test_without_own_stamps_all_records_count() -> None:
    given = settings(output={"stamp": "none"})
    shards, counts = found_in(given, chunk("orders.unique", [order(1, 5)], [b"k"]))
    assert keys_of(shards) == {digest_of(1)[0]: 5}
    assert counts == Counter({"outputs": 1, "remembered": 1})


def test_with_refresh_duplicates_give_keys_with_the_record_that_they_repeat() -> None:
    given = settings(dedup={"refresh": True, "remember_first": True})
    headers = [[("rf-first", b"from upstream"), ("rf-first", b"orders/3/44")], None]
    duplicates = chunk("orders.duplicate", [order(1, 700), order(2, 600)], headers=headers)
    shards, counts = found_in(given, duplicates)
    assert keys_of(shards) == dict(zip(digest_of(1, 2), (700, 600), strict=True))
    assert counts == Counter({"outputs": 2, "remembered": 2})
    firsts = {
        lo: (index, offset)
        for parts in shards
        for keys in [part.keys for part in parts if len(part.keys.hi)]
        for lo, index, offset in zip(
            keys.lo.tolist(), keys.kept[INDEX].tolist(), keys.kept[OFFSET].tolist(), strict=True
        )
    }
    assert firsts == dict(zip([lo for _, lo in digest_of(1, 2)], [(3, 44), (1, 1)], strict=True))


def test_the_content_by_which_conflicts_are_found() -> None:
    """A duplicate without the header has the same content as the record that it repeats."""
    given = settings(dedup={"conflict": "header", "refresh": True})
    name = given.pipeline.rules.content
    headers = [None, [("rf-conflict", b"@value")]]
    chunks = [
        chunk("orders.unique", [order(1, 5)]),
        chunk("orders.duplicate", [order(2, 6), order(3, 7)], headers=headers),
    ]
    shards, _ = found_in(given, *chunks)
    contents = {
        number: content
        for parts in shards
        for keys in [part.keys for part in parts if len(part.keys.hi)]
        for number, content in zip(keys.expiry.tolist(), keys.kept[name].tolist(), strict=True)
    }
    expected = digest_contents([[order(1, 5), order(2, 6)]]).tolist()
    assert contents == {5: expected[0], 6: expected[1], 7: 0}


def test_conflicts_in_a_topic_of_their_own() -> None:
    given = settings(dedup={"conflict": "topic", "refresh": True}, output={"conflict": "orders.conflict"})
    shards, counts = found_in(given, chunk("orders.conflict", [order(1, 5)]))
    assert keys_of(shards) == {digest_of(1)[0]: 5}
    (keys,) = [part.keys for parts in shards for part in parts if len(part.keys.hi)]
    assert keys.kept[given.pipeline.rules.content].tolist() == [0]
    assert counts == Counter({"outputs": 1, "remembered": 1})


def test_keys_within_input_partitions() -> None:
    """Of another topic's partition count: the own stamp says where the record was in the input."""
    given = settings(dedup={"scope": "partition"})
    shards, _ = found_in(given, chunk("orders.unique", [order(1, 5)], [own(0, partition=4)]))
    (hi, lo), salt = digest_of(1)[0], partition_salt("orders", 4)
    assert keys_of(shards) == {(hi ^ salt[0], lo ^ salt[1]): 5}
    assert len(shards[assigned_index("orders", 4, SHARDS)][0].keys.hi) == 1


def test_the_input_gives_marks_of_all_but_unreadable_records() -> None:
    stamps = [Stamp(1, 0, 5), Stamp(1, 0, 9), Stamp(1, 0, 7), Stamp(2, 3, 4), Stamp(3, 0, 1)]
    values = [order(1, 1), b"broken", order(1, 1), order(1, 1), order(1, 1)]
    keys = [*(stamp.to_bytes() for stamp in stamps), b"no stamp"]
    shards, counts = found_in(settings(), chunk("orders", [*values, order(1, 1)], keys, unreadable=[4]))
    for parts in shards:
        assert parts[-1].marks.as_dict() == {(1, 0): 7, (2, 3): 4}
    assert counts == Counter({"input": 6})
    assert keys_of(shards) == {}


def test_null_values_are_as_old_as_what_came_before_them() -> None:
    given = settings(input={"on_null": "key", "stamp": "header"}, output={"stamp": "header"})
    values = [None, order(1, 500), None, order(2, 400)]
    headers = [[("rf-stamp", own(offset))] for offset in range(4)]
    keys = [b"a", b"k", b"b", b"k"]
    shards, counts = found_in(given, chunk("orders.unique", values, keys, headers))
    nulls = [(hi ^ 2**64 - 1, lo ^ 2**64 - 1) for hi, lo in digest_of(b"a", b"b")]
    assert keys_of(shards) == dict(
        zip([nulls[0], *digest_of(1, 2), nulls[1]], (UNKNOWN, 500, 400, 500), strict=True)
    )
    assert (counts["null_ages"], counts["unreadable"]) == (2, 0)


def test_keys_of_null_values_are_not_in_outputs_whose_key_is_the_stamp() -> None:
    given = settings(input={"on_null": "key", "stamp": "header"})
    shards, counts = found_in(given, chunk("orders.unique", [None, order(1, 5)]))
    assert keys_of(shards) == {digest_of(1)[0]: 5}
    assert counts["unreadable"] == 1


def test_null_values_that_are_passed_on_have_no_key() -> None:
    shards, counts = found_in(
        settings(input={"on_null": "unique"}), chunk("orders.unique", [None, order(1, 5)])
    )
    assert keys_of(shards) == {digest_of(1)[0]: 5}
    assert counts == Counter({"outputs": 2, "remembered": 1})


def test_a_clock_that_records_do_not_move() -> None:
    given = settings(dedup={"clock": "system"})
    shards, _ = found_in(given, chunk("orders.unique", [order(1, 5)]))
    assert keys_of(shards) == {digest_of(1)[0]: 5}
    spec = replace(given, pipeline=replace(given.pipeline, rules=replace(given.pipeline.rules, dedup=False)))
    assert found_in(spec)[0][0][-1].keys.hi.tolist() == []
