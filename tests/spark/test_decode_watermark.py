"""What decode sends on for the low watermark: observations of origins, and the carried watermark."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock.clocks import Clock
from replayfilter.core.frames import Frame
from replayfilter.core.rules import Rules
from replayfilter.core.watermark.carried import SERVICE_HEADER, UNNAMED, WATERMARK_HEADER
from replayfilter.core.watermark.watermark_state import Observation, WatermarkRules
from replayfilter.formats import KeySpec
from replayfilter.kafka.chunk_reader import InputChunk, RecordHeaders
from replayfilter.spark.decode import decode_chunks
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.rows import FRAME

NOW_US = 1_700_000_000_000_000
NOW_MS = NOW_US // 1_000

SETTINGS = PipelineSettings(
    service="s", checkpoint="c", bootstrap="b:1", topics=("t",), outputs={}, output_pids={},
    shards=3, lanes=3,
    keys=KeySpec("json", ("id",), "ts", "ms", origin="host", time="ts", time_unit="ms"), stamp="none",
    rules=Rules(replay=False, clock=Clock.WATERMARK, watermark=WatermarkRules(("a", "b"))),
)  # fmt: skip


CARRYING = replace(
    SETTINGS,
    keys=replace(SETTINGS.keys, origin=None, time=None),
    rules=replace(SETTINGS.rules, watermark=WatermarkRules(None)),
)


def chunk_of(values: list[bytes], headers: list[RecordHeaders | None] | None = None) -> InputChunk:
    n = len(values)
    return InputChunk("t", 0, list(range(n)), [NOW_MS] * n, [None] * n, list(values), headers)


def observations_of(settings: PipelineSettings, chunk: InputChunk) -> list[Observation | None]:
    """What each frame of the decoded chunk observed."""
    return [
        Frame.from_bytes(row["body"]).observations.get(0)
        for out in decode_chunks(settings, [[chunk]], BatchFacts.at(NOW_US))
        for row in out.to_pylist()
        if row["kind"] == FRAME
    ]


def event(number: int, **more: Any) -> bytes:
    return json.dumps({"id": number, "ts": NOW_MS, **more}).encode()


def test_every_shard_gets_the_observation_of_every_chunk() -> None:
    values = [
        event(1, host="a", ts=NOW_MS - 50),
        event(2, host="a", ts=NOW_MS - 70),
        event(3, host="b", ts=NOW_MS + 3_600_000),  # its clock is an hour ahead: future
        event(4),  # without an origin
        b"broken",
        event(5, host="c", ts="late"),
        event(6, host=7, ts=NOW_MS),
    ]
    found = observations_of(SETTINGS, chunk_of(values))
    assert len(found) == 3, "one for each shard, whether or not it has rows"
    for observation in found:
        assert observation is not None
        assert (observation.origins, observation.carried) == (("a", "7"), ())
        assert observation.times.tolist() == [NOW_US - 50_000, NOW_US]


def test_a_chunk_brings_the_watermarks_that_its_records_carry() -> None:
    latest = b"%d" % (NOW_US + CARRYING.max_future_us)
    too_late = b"%d" % (NOW_US + CARRYING.max_future_us + 1)
    headers: list[RecordHeaders | None] = [
        [(WATERMARK_HEADER, b"7"), (WATERMARK_HEADER, b"5")], None, [("x", b"9"), (WATERMARK_HEADER, b"6")],
        [(WATERMARK_HEADER, b"1e9")], [(WATERMARK_HEADER, None)], [(WATERMARK_HEADER, b"9" * 19)],
        [(WATERMARK_HEADER, too_late)], [(WATERMARK_HEADER, b"8")], [(WATERMARK_HEADER, b"-" + b"9" * 19)],
        [(WATERMARK_HEADER, b"3"), (SERVICE_HEADER, b"a")],
        [(WATERMARK_HEADER, b"4"), (SERVICE_HEADER, b"a")],
        [(WATERMARK_HEADER, latest), (SERVICE_HEADER, b"b.c_d-1")], [(SERVICE_HEADER, b"without")],
        [(WATERMARK_HEADER, b"9"), (SERVICE_HEADER, b"a b")],
        [(WATERMARK_HEADER, b"9"), (SERVICE_HEADER, b"")],
    ]  # fmt: skip
    values = [event(number) for number in range(len(headers))]
    values[7] = b"an error"
    found = observations_of(CARRYING, chunk_of(values, headers))
    carried = {each.carried for each in found if each is not None}
    assert carried == {
        ((0, UNNAMED, 5), (2, UNNAMED, 6), (9, "a", 3), (10, "a", 4), (11, "b.c_d-1", int(latest)))
    }, "the last header of a record counts"
    nothing = observations_of(CARRYING, chunk_of([event(1)]))
    assert {each.carried for each in nothing if each is not None} == {()}


def test_rows_that_repeat_a_watermark_are_left_out() -> None:
    headers: list[RecordHeaders | None] = [
        [(WATERMARK_HEADER, b"%d" % (number // 50))] for number in range(200)
    ]
    found = observations_of(CARRYING, chunk_of([event(number) for number in range(200)], headers))
    rows = [49, 99, 149, 199]
    assert {each.carried for each in found if each is not None} == {
        tuple((row, UNNAMED, row // 50) for row in rows)
    }


def test_without_a_watermark_frames_have_no_observation() -> None:
    keys = replace(SETTINGS.keys, origin=None, time=None)
    settings = replace(SETTINGS, keys=keys, rules=replace(SETTINGS.rules, clock=Clock.TUPLE, watermark=None))
    assert set(observations_of(settings, chunk_of([event(1), event(2)]))) == {None}


def test_there_are_no_more_lanes_than_shards() -> None:
    with pytest.raises(ValueError, match="lanes = 4: more than shards = 3"):
        replace(SETTINGS, lanes=4)
