"""Test vectors: by the plain functions, by the vectorised core, and by the reference model."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pytest
import xxhash

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock.clocks import Clock
from replayfilter.core.clock.expiry import aged, latest_points
from replayfilter.core.columns import pack
from replayfilter.core.frames import Frame
from replayfilter.core.replay.marks import ReplayFilter
from replayfilter.core.routing import Route
from replayfilter.core.rules import Match, Rules
from replayfilter.core.stamp import Stamp, Stamps, murmur2_64a, parse_stamps, producer_id, stamp_keys
from replayfilter.kafka.admin import Topic
from replayfilter.spark.partitioning import output_pid
from tests.support.core_run import CoreRun
from tests.support.paths import ROOT
from tests.support.reference import Model, Position, Record, Source
from tests.support.streams import Batch

VECTORS = ROOT / "tests" / "vectors"
SQE_SEED = 0xE17A1465
SOURCE = Source(7, 3)
PERIODLESS = Rules(clock=Clock.NONE)


def vectors(name: str, key: str) -> Any:
    loaded = json.loads((VECTORS / f"{name}.json").read_text())[key]
    assert loaded, f"{name}.json has no {key}"
    return loaded


STAMPS = vectors("stamps", "stamps")
NOT_STAMPS = vectors("stamps", "not_stamps")


@pytest.mark.parametrize("vector", STAMPS, ids=lambda v: v["hex"])
def test_stamp(vector: dict[str, Any]) -> None:
    stamp = Stamp(vector["pid"], vector["partition"], vector["offset"])
    assert stamp.to_bytes().hex() == vector["hex"]
    assert Stamp.from_bytes(bytes.fromhex(vector["hex"])) == stamp


@pytest.mark.parametrize("text", NOT_STAMPS, ids=lambda t: t or "empty")
def test_not_a_stamp(text: str) -> None:
    assert Stamp.from_bytes(bytes.fromhex(text)) is None


def test_stamps_at_once() -> None:
    good = [bytes.fromhex(vector["hex"]) for vector in STAMPS]
    bad = [None, *(bytes.fromhex(text) for text in NOT_STAMPS)]
    blobs = [blob for pair in zip(bad, good, strict=False) for blob in pair] + bad[len(good) :]
    parsed = parse_stamps(blobs)
    assert parsed.valid.tolist() == [blob in good for blob in blobs]
    rows = zip(*(column[parsed.valid].tolist() for column in parsed[:3]), strict=True)
    assert list(rows) == [(v["pid"], v["partition"], v["offset"]) for v in STAMPS]
    for vector in STAMPS:
        assert stamp_keys(vector["pid"], vector["partition"], [vector["offset"]]).tolist() == [
            bytes.fromhex(vector["hex"])
        ]


@pytest.mark.parametrize("vector", vectors("pids", "sqe"), ids=lambda v: "".join(v["parts"]))
def test_pid_of_sqe(vector: dict[str, Any]) -> None:
    unsigned = int(vector["hash"], 16)
    assert murmur2_64a("".join(vector["parts"]).encode(), SQE_SEED) == unsigned
    assert producer_id(*vector["parts"], scheme="sqe") % 2**64 == unsigned
    assert -(2**63) <= producer_id(*vector["parts"], scheme="sqe") < 2**63


@pytest.mark.parametrize("vector", vectors("pids", "xxh3"), ids=lambda v: "-".join(v["parts"]))
def test_pid(vector: dict[str, Any]) -> None:
    """With another pid, the replays of every job would pass once."""
    assert producer_id(*vector["parts"]) == vector["pid"]
    digest = xxhash.xxh3_64_digest(bytes.fromhex(vector["hashed"]))
    assert int.from_bytes(digest, "big", signed=True) == vector["pid"]


@pytest.mark.parametrize("vector", vectors("pids", "output"), ids=lambda v: str(v["pid"]))
def test_pid_of_an_output(vector: dict[str, Any]) -> None:
    output = Topic(vector["output_topic_id"], vector["output_partitions"])
    found = output_pid(vector["cluster_id"], vector["input_topic_id"], vector["service"], output)
    assert found == vector["pid"]


@pytest.mark.parametrize("case", vectors("replay", "cases"), ids=lambda c: str(c["offsets"]))
def test_replays(case: dict[str, Any]) -> None:
    offsets, keep = case["offsets"], case["keep"]
    n = len(offsets)
    single = ReplayFilter()
    assert [i for i in range(n) if single.accept(Stamp(*SOURCE, offsets[i]))] == keep

    source = (np.full(n, SOURCE.pid), np.full(n, SOURCE.partition, np.int32))
    stamps = Stamps(*source, np.array(offsets), np.ones(n, np.bool_))
    assert np.flatnonzero(ReplayFilter().accept_many(stamps)).tolist() == keep

    records = [Record(Position("t", 0, i), SOURCE, offsets[i], key=i, expiry=0) for i in range(n)]
    for batches in cuts(records):
        assert positions(decide_by_model(PERIODLESS, batches), Route.UNIQUE) == keep
        assert positions(decide_by_core(PERIODLESS, batches), Route.UNIQUE) == keep


@pytest.mark.parametrize("case", vectors("expiry", "cases"), ids=lambda c: str(c["keys"]))
@pytest.mark.parametrize("match", Match)
def test_expired(case: dict[str, Any], match: Match) -> None:
    keys, period = np.array(case["keys"]), case["period"]
    before, ends = np.array([-(2**63)]), np.array([len(keys)])
    points, (latest,) = latest_points(before, keys, np.ones(len(keys), np.bool_), ends)
    assert np.flatnonzero(aged(points, keys, period)).tolist() == case["expired"]
    assert latest == keys.max()

    rules = Rules(period=period, span=max(1, period // 12), match=match)
    records = [
        Record(Position("t", 0, i), None, None, key=i, expiry=expiry) for i, expiry in enumerate(case["keys"])
    ]
    for batches in cuts(records):
        assert positions(decide_by_model(rules, batches), Route.EXPIRED) == case["expired"]
        assert positions(decide_by_core(rules, batches), Route.EXPIRED) == case["expired"]


def cuts(records: list[Record]) -> list[list[list[Record]]]:
    """All records in one batch, each in a batch of its own, and two batches cut at every position."""
    halves = [[records[:at], records[at:]] for at in range(1, len(records))]
    return [[records], [[record] for record in records], *halves]


def decide_by_model(rules: Rules, batches: list[list[Record]]) -> dict[Position, Route]:
    model = Model(rules)
    decided = [model.decide(records, BatchFacts.at(0)) for records in batches]
    return {at: decision.route for part in decided for at, decision in part.items()}


def decide_by_core(rules: Rules, batches: list[list[Record]]) -> dict[Position, Route]:
    core, random = CoreRun(rules, None, shards=3, digest_kind="honest"), Random(0)
    decided = [core.decide(Batch(BatchFacts.at(0), tuple(records)), random) for records in batches]
    return {at: route for part in decided for at, route in part.items()}


def positions(routes: dict[Position, Route], route: Route) -> list[int]:
    return sorted(at.offset for at, found in routes.items() if found == route)


def test_other_column_blocks_are_no_frames() -> None:
    with pytest.raises(ValueError, match=r"not a frame: .* no chunks, row_ends, own_ends, source_ends, pids"):
        Frame.from_bytes(pack({"row": np.zeros(1, np.uint32)}))
