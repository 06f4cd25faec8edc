"""What decode and deliver do for the low watermark: news of runs, the header that records carry."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from replayfilter.core.clock.expiry import UNKNOWN, Rules
from replayfilter.core.frames import Frame
from replayfilter.core.watermark.watermark_state import WATERMARK_HEADER, Observation, WatermarkRules
from replayfilter.formats import KeySpec
from replayfilter.spark.decode import carried_watermark, decode_batches
from replayfilter.spark.deliver import _with_low
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.rows import FINGERPRINT

NOW_US = 1_700_000_000_000_000
NOW_MS = NOW_US // 1_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

SETTINGS = PipelineSettings(
    service="s", checkpoint="c", bootstrap="b:1", topics=("t",), outputs={}, pids={}, shards=3, lanes=3,
    keys=KeySpec("json", ("id",), "ts", "ms", origin="host", time="ts", time_unit="ms"), stamp="none",
    rules=Rules(replay=False, clock="watermark", watermark=WatermarkRules(("a", "b"))),
)  # fmt: skip


def batch_of(values: list[bytes], headers: list[list[tuple[str, bytes | None]] | None] | None = None) -> Any:
    n = len(values)
    pairs = [
        None if own is None else [{"key": key, "value": value} for key, value in own]
        for own in headers or [None] * n
    ]
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([None] * n, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(pairs, HEADERS),
            "topic": pa.array(["t"] * n),
            "partition": pa.array([0] * n, pa.int32()),
            "offset": pa.array(range(n), pa.int64()),
            "timestamp": pa.array([NOW_US] * n, pa.timestamp("us", "UTC")),
            "batch_time": pa.array([NOW_US] * n, pa.int64()),
        }
    )


def news_of(settings: PipelineSettings, batch: Any) -> list[Observation | None]:
    found = []
    for out in decode_batches(settings, iter([batch])):
        for row in out.to_pylist():
            if row["kind"] == FINGERPRINT:
                found.append(Frame.from_bytes(row["body"]).observation)
    return found


def event(number: int, **more: Any) -> bytes:
    return json.dumps({"id": number, "ts": NOW_MS, **more}).encode()


def test_every_shard_hears_of_every_run_and_only_of_what_counts() -> None:
    values = [
        event(1, host="a", ts=NOW_MS - 50),
        event(2, host="a", ts=NOW_MS - 70),
        event(3, host="b", ts=NOW_MS + 3_600_000),  # its clock is an hour ahead: future
        event(4),  # nobody's
        b"broken",
        event(5, host="c", ts="late"),
        event(6, host=7, ts=NOW_MS),
    ]
    found = news_of(SETTINGS, batch_of(values))
    assert len(found) == 3, "one for each shard, whether or not it has rows"
    for said in found:
        assert said is not None
        assert (said.origins, said.low) == (("a", "7"), UNKNOWN)
        assert said.times.tolist() == [NOW_US - 50_000, NOW_US]


def test_a_run_brings_the_largest_watermark_that_it_carries() -> None:
    keys = replace(SETTINGS.keys, origin=None, time=None)
    settings = replace(SETTINGS, keys=keys, rules=replace(SETTINGS.rules, watermark=WatermarkRules(None)))
    headers: list[list[tuple[str, bytes | None]] | None] = [
        [(WATERMARK_HEADER, b"7"), (WATERMARK_HEADER, b"5")], None, [("x", b"9"), (WATERMARK_HEADER, b"6")],
        [(WATERMARK_HEADER, b"1e9")], [(WATERMARK_HEADER, None)], [(WATERMARK_HEADER, b"9" * 19)],
    ]  # fmt: skip
    batch = batch_of([event(number) for number in range(6)], headers)
    found = news_of(settings, batch)
    assert {said.low for said in found if said is not None} == {6}, "the last header of a record counts"
    assert carried_watermark(pa.array([None, []], HEADERS)) == UNKNOWN


def test_without_a_watermark_frames_say_nothing_of_it() -> None:
    keys = replace(SETTINGS.keys, origin=None, time=None)
    settings = replace(SETTINGS, keys=keys, rules=replace(SETTINGS.rules, clock="tuple", watermark=None))
    assert set(news_of(settings, batch_of([event(1), event(2)]))) == {None}


@pytest.mark.parametrize("low", [UNKNOWN, 5])
def test_the_header_is_replaced_and_never_passed_on(low: int) -> None:
    ours = [] if low == UNKNOWN else [(WATERMARK_HEADER, "5")]
    came = [None, [("x", b"1")], [(WATERMARK_HEADER, b"9"), ("x", b"1")], [(WATERMARK_HEADER, b"9")]]
    expected = [ours or None, [("x", b"1"), *ours], [("x", b"1"), *ours], ours or None]
    assert _with_low(came, low) == expected
