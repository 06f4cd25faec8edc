"""The metrics of the watermark server: what is exposed, and what the documentation says."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from replayfilter.watermark.server_metrics import HELD_BY, LABELS, METRICS, PREFIX
from tests.support.paths import ROOT
from tests.support.server_process import ServerProcess, write_config

PAGE = ROOT / "docs/reference/metrics.md"
ROW = re.compile(r"^\| `(replayfilter_\w+)` \| (\w+) \| ([^|]+) \| ([^|]*) \| ([^|]+) \|$", re.MULTILINE)
HOUR = 3600 * 10**6
STAGES = """
[stages.web]
roster = ["a", "b", "c"]
completeness = "0.6"          # one of three may lag

[stages.join]
upstream = ["web"]

[stages.counted]
"""

Samples = dict[tuple[str, frozenset[str]], float]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(write_config(tmp_path, STAGES)) as started:
        yield started


def scrape(server: ServerProcess) -> Samples:
    """Every sample by its name without the prefix, and the values of its labels."""
    text = server.http.get("/metrics").text
    return {
        (sample.name.removeprefix(PREFIX), frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(samples: Samples, name: str, *labels: str) -> float | None:
    app = {"default"} if name.startswith("stage_") else set()
    return samples.get((name, frozenset(labels) | app))


def test_the_docs_list_every_metric_with_its_type_unit_and_labels() -> None:
    _, _, section = PAGE.read_text().partition("\n## Watermark server\n")
    documented = {
        name: (kind, unit.strip(), set(re.findall(r"`(\w+)`", labels)))
        for name, kind, unit, labels, _ in ROW.findall(section)
    }
    suffix = {"counter": "_total", "gauge": ""}
    real = {
        PREFIX + each.name + suffix[each.kind]: (each.kind, each.unit, set(each.labels)) for each in METRICS
    }
    assert documented == real
    assert {label for each in METRICS for label in each.labels} == LABELS.keys()


def test_a_stage_with_a_roster(server: ServerProcess) -> None:
    before = time.time()
    server.report("web", {"a": 10 * HOUR, "b": 12 * HOUR})
    server.report("web", partition="orders-0", backlog=7, sequence=2)
    server.report("web", partition="orders-1", backlog=5, sequence=3)
    found = scrape(server)
    assert of(found, "stage_low_timestamp_seconds", "web") == 36_000
    assert of(found, "stage_front_timestamp_seconds", "web") == 43_200
    assert of(found, "stage_behind_seconds", "web") == 7_200
    age = of(found, "stage_age_seconds", "web")
    assert age is not None
    assert before <= 36_000 + age <= time.time()
    counts = {name: of(found, "stage_origins", "web", name) for name in LABELS["origins"] or ()}
    assert counts == {"expected": 3, "heard": 2, "idle": 0, "lagging": 2}
    assert of(found, "stage_may_lag", "web") == 1
    assert of(found, "stage_partitions", "web") == 2
    assert of(found, "stage_backlog_records", "web") == 12
    server.http.post("/v1/stages/web/roster", json={"idle": ["c"]})
    server.report("web", {"zz": 1}, sequence=4)
    found = scrape(server)
    assert of(found, "stage_origins", "web", "idle") == 1
    assert of(found, "stage_errors", "web") == 1, "zz is in no roster"
    assert of(found, "stage_errors", "join") == 0


def test_what_holds_a_stage_back_and_for_how_long(server: ServerProcess) -> None:
    server.report("web", {"a": 10, "b": 12})
    time.sleep(0.3)
    assert of(scrape(server), "stage_held_by", "join", "nothing") == 1, "it has not reported"
    server.report("join", low=20)
    found = scrape(server)
    for stage, reason in (("web", "origins"), ("join", "upstream"), ("counted", "nothing")):
        held = [by for by in HELD_BY if of(found, "stage_held_by", stage, by)]
        assert held == [reason], stage
    unmoved = {stage: of(found, "stage_unmoved_seconds", stage) or 0.0 for stage in ("web", "counted")}
    assert unmoved["web"] >= 0.3
    assert unmoved["counted"] > unmoved["web"], "without a watermark: since the server is active"
    before = time.time()
    server.report("web", {"a": 20, "b": 22}, sequence=2)
    moved = of(scrape(server), "stage_unmoved_seconds", "web")
    assert moved is not None
    assert moved <= time.time() - before


def test_a_stage_whose_client_counts_the_origins(server: ServerProcess) -> None:
    assert of(scrape(server), "stage_low_timestamp_seconds", "counted") is None
    laggards = {"lagging": 12, "may_lag": 10, "slowest": {"x": None}, "front": 50 * 10**6}
    server.report("counted", low=20 * 10**6, laggards=laggards)
    found = scrape(server)
    assert of(found, "stage_origins", "counted", "lagging") == 12
    assert of(found, "stage_origins", "counted", "expected") is None, "only the client knows it"
    assert of(found, "stage_may_lag", "counted") == 10
    assert of(found, "stage_behind_seconds", "counted") == 30
    assert of(found, "stage_partitions", "counted") == 0, "the report was of the whole stage"
    assert of(found, "stage_held_by", "counted", "origins") == 1


def test_requests_are_counted_by_path_and_status(server: ServerProcess) -> None:
    def count(path: str, code: int) -> float:
        return of(scrape(server), "server_requests_total", path, str(code)) or 0.0

    before = count("/v1/stages/{stage}/low", 200)
    server.low("web")
    server.http.get("/v1/stages/nobody/low")
    assert count("/v1/stages/{stage}/low", 200) == before + 1
    assert count("/v1/stages/{stage}/low", 404) == 1


def test_a_standby_has_metrics_of_itself_only_and_those_need_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_THE_TEST", "hush")
    one, two = (
        write_config(tmp_path, STAGES, name, token="${TOKEN_OF_THE_TEST}")
        for name in ("one.toml", "two.toml")
    )
    with ServerProcess(one, token="hush") as first, ServerProcess(two, standby=True) as second:
        active, standby = scrape(first), scrape(second)
        assert (of(active, "server_active"), of(standby, "server_active")) == (1, 0)
        assert of(active, "server_epoch") == 1
        assert of(standby, "server_errors") == 0
        assert not [name for name, _ in standby if name.startswith("stage_")]
        first.kill()
        second.wait_for_role("active")
        taken_over = scrape(second)
        assert (of(taken_over, "server_active"), of(taken_over, "server_epoch")) == (1, 2)
        assert of(taken_over, "stage_may_lag", "web") == 1
