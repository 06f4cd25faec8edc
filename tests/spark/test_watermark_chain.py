"""The low watermark through the real pipeline: the clock, the header, and two services in a chain."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from replayfilter.core.clock.clocks import Clock
from replayfilter.core.routing import Route
from replayfilter.core.rules import Rules
from replayfilter.core.watermark.carried import SERVICE_HEADER, WATERMARK_HEADER
from replayfilter.core.watermark.watermark_state import WatermarkRules
from replayfilter.demo.kafka_io import publish
from replayfilter.formats import KeySpec
from replayfilter.service.monitor.batch import read_batch
from replayfilter.watermark.client import UpstreamStages
from tests.support.pipelines import Pipeline, record
from tests.support.server_process import ServerProcess, write_config
from tests.support.service_process import wait_for

pytestmark = pytest.mark.spark

HOUR_MS, START_MS = 3_600_000, 1_700_000_000_000


def event(number: int, host: str, hours: float) -> bytes:
    return json.dumps({"id": number, "host": host, "ts": START_MS + int(hours * HOUR_MS)}).encode()


def lows(pipeline: Pipeline, route: Route) -> dict[int, int | None]:
    """By id, the watermark that each record of a route carries, in hours after the start."""
    found = {}
    for each in pipeline.read(route):
        carried = [value for name, value in each.headers if name == WATERMARK_HEADER]
        assert len(carried) <= 1, "the one that it came with is replaced"
        assert each.value is not None
        low = (int(carried[0] or b"") // 1_000 - START_MS) // HOUR_MS if carried else None
        found[json.loads(each.value)["id"]] = low
    return found


def test_the_clock_the_header_and_the_next_service(bootstrap: str, tmp_path: Path) -> None:
    watermark = WatermarkRules(("a", "b", "c"), "0.6")  # one of three may lag
    rules = Rules(clock=Clock.WATERMARK, period=HOUR_MS, span=HOUR_MS // 12, watermark=watermark)
    keys = KeySpec("json", ("id",), "ts", "ms", origin="host", time="ts", time_unit="ms")
    first = Pipeline(bootstrap, tmp_path, "marked", rules=rules, keys=keys)
    first.publish([record(event(1, "a", 5)), record(event(2, "b", 3), partition=1)])
    first.run_once()
    # With clock ``tuple`` the latest point would be 50 hours, and the record of hour 10 expired.
    foreign: list[tuple[str, bytes | None]] = [(WATERMARK_HEADER, b"1")]
    second = [
        record(event(3, "a", 50), headers=foreign),
        record(event(4, "b", 10), partition=1),
        record(event(5, "c", 1.9), partition=1),
        record(b"broken", partition=1),
    ]
    first.publish(second)
    first.run_once()
    first.publish([record(event(6, "b", 20)), record(event(7, "a", 40), partition=1)])
    first.run_once()
    assert lows(first, Route.UNIQUE) == {1: None, 2: None, 3: 3, 4: 3, 6: 10, 7: 10}
    assert lows(first, Route.EXPIRED) == {5: 3}, "3 - 1.9 >= 1"
    assert (WATERMARK_HEADER, str((START_MS + 3 * HOUR_MS) * 1_000).encode()) in first.read(Route.ERROR)[
        0
    ].headers
    after = [(micros // 1_000 - START_MS) // HOUR_MS for micros in first.counts("watermark_us")]
    assert after == [3, 10, 20]
    batches = [read_batch(progress, 0.0) for progress in first.progress]
    held = [batch.laggards for batch in batches if batch.laggards is not None]
    assert [(each.heard, each.lagging, each.may_lag) for each in held] == [(2, 2, 1), (3, 2, 1), (3, 2, 1)]
    assert [[name for name, _ in each.slowest] for each in held] == [["c", "b"], ["c", "b"], ["c", "b"]]
    assert [(each.low or 0) // 1_000 for each in held] == [START_MS + hours * HOUR_MS for hours in after]
    assert [sum(batch.backlog[first.name].values()) for batch in batches] == [0, 0, 0]

    topic = first.topic_of(Route.UNIQUE)
    chained = Pipeline(
        bootstrap, tmp_path, "marked2", topics=(topic,),
        rules=Rules(
            period=100 * HOUR_MS, span=HOUR_MS, watermark=WatermarkRules(None, partitions={topic: 2})
        ),
    )  # fmt: skip
    chained.run_once()
    (laggards,) = (read_batch(progress, 0.0).laggards for progress in chained.progress)
    assert laggards is not None
    hours = {part: (time // 1_000 - START_MS) // HOUR_MS for _, part, time in laggards.lows}
    assert hours == {0: 10, 1: 10}
    low = (chained.counts("watermark_us")[-1] // 1_000 - START_MS) // HOUR_MS
    assert low == 10, "that of the first service, as the last record of each partition carries it"
    names = [dict(each.headers).get(SERVICE_HEADER) for each in first.read(Route.UNIQUE)]
    assert sorted(name or b"" for name in names) == [b"", b"", *[b"marked"] * 4]
    wrong: list[tuple[str, bytes | None]] = [(WATERMARK_HEADER, b"%d" % 10**17), (SERVICE_HEADER, b"marked")]
    publish(bootstrap, topic, [record(event(10, "a", 5), partition=n, headers=wrong) for n in range(2)])
    first.publish([record(event(8, "b", 30)), record(event(9, "c", 25), partition=1)])
    first.run_once()
    chained.run_once()
    unstamped = dict.fromkeys((1, 2, 3, 4, 6, 7), None)
    assert lows(chained, Route.UNIQUE) == {**unstamped, 8: 10, 9: 10, 10: 10}
    assert (chained.counts("watermark_us")[-1] // 1_000 - START_MS) // HOUR_MS == 20


def test_a_server_tells_the_watermark_of_an_input_that_brings_no_more_records(
    bootstrap: str, tmp_path: Path
) -> None:
    def micros(hours: float) -> int:
        return (START_MS + int(hours * HOUR_MS)) * 1_000

    def after_last_batch() -> int:
        return told.counts("watermark_us")[-1] if told.progress else 0

    headers: list[tuple[str, bytes | None]] = [
        (WATERMARK_HEADER, b"%d" % micros(2)), (SERVICE_HEADER, b"before")
    ]  # fmt: skip
    stages = '[stages.before]\n[stages.told]\nupstream = ["before"]'
    with ServerProcess(write_config(tmp_path, stages)) as server:
        watermark = WatermarkRules(None, partitions={"told": 2})
        told = Pipeline(
            bootstrap, tmp_path, "told", upstream=UpstreamStages((server.url,), "", "told"),
            rules=Rules(period=100 * HOUR_MS, span=HOUR_MS, watermark=watermark),
        )  # fmt: skip
        told.publish([record(event(1, "a", 3), headers=headers)])
        service = told.service()
        service.start()
        ended = threading.Thread(target=service.await_end)
        ended.start()
        wait_for(lambda: bool(told.progress), 60, "no batch")
        assert after_last_batch() == 0, "partition 1 has brought none"
        server.report("before", low=micros(5))
        wait_for(lambda: after_last_batch() == micros(5), 60, "the server's watermark never came")
        assert told.counts("unique")[-1] == 0, "a batch without records"
        told.publish([record(event(2, "a", 6), headers=headers)])
        wait_for(lambda: sum(told.counts("unique")) == 2, 60, "no batch")
        service.stop_after_batch()
        ended.join(60)
        assert not ended.is_alive()
        server.report("before", low=micros(8), sequence=2)
        told.uncommit(int(told.progress[-1]["batchId"]))
        told.run_once()
    assert after_last_batch() == micros(5), "a batch that is tried again has what it had"
    told.publish([record(event(3, "a", 7), headers=headers)])
    told.run_once()
    assert lows(told, Route.UNIQUE) == {1: None, 2: 5, 3: 5}
