"""The server over HTTP: responses, errors, and what it still knows after kill -9."""

from __future__ import annotations

import json
import random
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from replayfilter.watermark import api
from replayfilter.watermark.routes import ROUTES
from tests.support.server_process import ServerProcess, write_config

STAGES = """
[stages.web]
roster = ["a", "b", "c"]
completeness = "0.6"          # one of three may lag

[stages.join]
upstream = ["web"]

[stages.chained]
partitions = 2

[stages.bare]
"""
HOUR = 3600 * 10**6


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(write_config(tmp_path, STAGES)) as started:
        yield started


def test_reports_move_the_watermark_of_a_stage_and_of_those_downstream(server: ServerProcess) -> None:
    assert server.low("web") is None
    response = server.report("web", {"a": 10, "b": 20, "c": 30, "zz": 99})
    assert response == {
        "stages": {"web": {"input_low": 20, "output_low": 20, "upstream_low": None}},
        "unknown": ["zz"],
        "unknown_count": 1,
        "stale": 0,
    }
    server.report("join", low=100)
    assert (server.low("web"), server.low("join")) == (20, 20)
    assert server.get("/v1/low")["low"] is None, "chained has no watermark yet"
    response = server.report("join", partition="p", oldest=15)
    assert response["stages"]["join"] == {"input_low": 20, "output_low": 20, "upstream_low": 20}, (
        "it never goes back"
    )
    server.report("web", {"a": 100, "b": 100}, sequence=2)
    assert server.get("/v1/stages/join/low") == {"stage": "join", "low": 20, "input_low": 100}
    held = server.get("/v1/stages/join")["held"]
    assert (held["by"], held["names"], held["behind_us"]) == ("work", ["p"], 80)
    server.report("join", partition="p", sequence=3)
    assert server.low("join") == 100


def test_a_stage_that_counts_partitions_laggards_for_each(server: ServerProcess) -> None:
    server.report("chained", partition="0", low=50)
    assert server.get("/v1/stages/chained")["held"]["names"] == ["1 without a report yet"]
    server.report("chained", partition="1", low=70, sequence=2)
    assert server.low("chained") == 50
    server.report("chained", partition="0", low=40, sequence=3)
    server.report("chained", partition="0", low=60, sequence=4)
    assert server.low("chained") == 60
    assert server.get("/v1/stages/chained")["held"] | {"since_us": 0} == {
        "by": "partitions", "names": ["0"], "count": 1, "since_us": 0, "behind_us": 10,
    }  # fmt: skip
    forgotten = server.http.delete("/v1/stages/chained/partitions/0")
    assert [each["partition"] for each in forgotten.json()["partitions"]] == ["1"]
    assert server.http.delete("/v1/stages/chained/partitions/0").status_code == 404


def test_late_and_repeated_reports_only_raise_times(server: ServerProcess) -> None:
    server.report("web", {"b": 50, "c": 50}, partition="0", oldest=30, session=2, sequence=7)
    assert server.low("web") == 30
    response = server.report("web", {"b": 60, "c": 60}, partition="0", session=2, sequence=6)
    assert response["stale"] == 1
    assert server.low("web") == 30, "the later report says that the work is unfinished"
    assert server.report("web", partition="0", session=1, sequence=99)["stale"] == 1, "from an older client"
    assert server.low("web") == 30
    assert server.report("web", partition="0", session=3, sequence=0)["stale"] == 0, "from a newer client"
    assert server.low("web") == 60
    assert server.report("web", {"b": 1}, partition="0", session=3, sequence=0)["stale"] == 0
    assert server.low("web") == 60


def test_a_window_says_whether_it_is_closed_and_which_origins_are_missing(server: ServerProcess) -> None:
    server.report("web", {"a": HOUR - 1, "b": HOUR - 2})
    server.report("join", low=HOUR)
    window = server.get("/v1/stages/web/window", end="1970-01-01T01:00:00Z")
    assert (window["closed"], window["missing"], window["behind"]) == (False, 2, 3)
    assert window["names"] == ["c", "b", "a"], "the slowest first"
    joined = server.get("/v1/stages/join/window", end=HOUR)
    assert (joined["held"]["by"], joined["names"]) == ("upstream", ["web: c", "web: b", "web: a"])
    server.report("web", {"a": HOUR, "b": HOUR + 5}, sequence=2)
    window = server.get("/v1/stages/web/window", end=HOUR)
    assert (window["closed"], window["missing"], window["behind"]) == (True, 0, 1)


def test_waiting_ends_when_the_window_closes_or_the_time_is_over(server: ServerProcess) -> None:
    server.report("join", low=5)
    started = time.monotonic()
    assert not server.get("/v1/stages/join/wait", end=5, seconds=1)["closed"]
    assert 0.9 < time.monotonic() - started < 5
    timer = threading.Timer(0.5, server.report, ["web", {"a": 5, "b": 6}])
    timer.start()
    started = time.monotonic()
    assert server.get("/v1/stages/join/wait", end=5, seconds=20)["closed"]
    assert 0.3 < time.monotonic() - started < 5
    timer.join()


def test_health_says_what_holds_a_stage_back_since_when_and_by_how_much(server: ServerProcess) -> None:
    before = time.time_ns() // 1000
    server.report("web", {"a": 10, "b": 20, "c": 90})
    (web,) = (stage for stage in server.get("/v1/health")["stages"] if stage["stage"] == "web")
    assert (web["held"]["by"], web["held"]["names"], web["held"]["behind_us"]) == ("origins", ["a", "b"], 70)
    assert before <= web["held"]["since_us"] <= time.time_ns() // 1000
    first = web["slowest"][0]
    assert (first["origin"], first["progress"], first["behind_us"]) == ("a", 10, 80)
    assert before <= first["since_us"] <= time.time_ns() // 1000


def test_a_stage_without_a_roster_names_the_laggards_that_its_client_reports(server: ServerProcess) -> None:
    laggards = {"lagging": 30, "may_lag": 10, "slowest": {"x": None}}
    server.report("bare", partition="", laggards=laggards)
    held = server.get("/v1/stages/bare")["held"]
    assert (held["by"], held["names"], held["count"]) == ("origins", ["x"], 30), "no low is known yet"
    before = time.time_ns() // 1000
    laggards = {"lagging": 12, "may_lag": 10, "slowest": {"x": 10, "y": 15, "z": 20}, "front": 90}
    server.report("bare", partition="", low=20, laggards=laggards, sequence=2)
    server.report("bare", partition="p", backlog=7, sequence=3)
    first = server.get("/v1/health")
    server.report(
        "bare", partition="", low=20, laggards=laggards | {"slowest": {"x": 10, "y": 16}}, sequence=4
    )
    stages = [
        {each["stage"]: each for each in at["stages"]}["bare"] for at in (first, server.get("/v1/health"))
    ]
    held = stages[1]["held"]
    assert (held["by"], held["names"], held["count"], held["behind_us"]) == ("origins", ["x", "y"], 12, 70)
    found = [{each["origin"]: each for each in stage["slowest"]} for stage in stages]
    assert found[1]["x"]["since_us"] == found[0]["x"]["since_us"] >= before
    assert found[1]["y"]["since_us"] > found[0]["y"]["since_us"], "it advanced in between"
    assert (found[1]["x"]["progress"], found[1]["x"]["behind_us"]) == (10, 80)
    window = server.get("/v1/stages/bare/window", end=16)
    assert (window["closed"], window["missing"]) == (True, 0)
    window = server.get("/v1/stages/bare/window", end=21)
    assert (window["closed"], window["missing"], window["behind"]) == (False, 2, 12)
    assert window["names"] == ["x", "y"]
    names = [each["partition"] for each in server.get("/v1/stages/bare")["partitions"]]
    assert names == ["", "p"]
    server.report("bare", partition="p", low=19, sequence=5)
    assert server.low("bare") == 20
    assert server.get("/v1/stages/bare")["held"]["names"] == ["p"], "the other report is ahead of it"


def test_a_request_changes_the_roster_but_not_what_the_config_declares(server: ServerProcess) -> None:
    server.report("web", {"a": 10, "b": 20, "c": 30})
    change = {"add": ["d", "e", "a"], "idle": ["a", "nobody"]}
    response = server.http.post("/v1/stages/web/roster", json=change).json()
    assert response == {"stage": "web", "added": 2, "removed": 0, "origins": 5, "absent": ["nobody"]}
    server.report("web", {"b": 90, "c": 90}, sequence=2)
    assert server.low("web") == 20, "the new origins hold it back"
    slowest = server.get("/v1/stages/web/origins", limit=2)["slowest"]
    assert [(each["origin"], each["progress"], each["counted"]) for each in slowest] == [
        ("d", None, True), ("e", None, True),
    ]  # fmt: skip
    refused = server.http.post("/v1/stages/web/roster", json={"remove": ["d", "a"]})
    assert refused.status_code == 409
    assert refused.json()["value"] == "a"
    assert server.get("/v1/stages/web")["origins"] == 5, "all or nothing"
    assert server.http.post("/v1/stages/web/roster", json={"remove": ["d", "e"]}).json()["removed"] == 2
    assert server.low("web") == 90
    assert server.http.post("/v1/stages/join/roster", json={"add": ["x"]}).status_code == 409


def body_with(report: dict[str, Any]) -> dict[str, Any]:
    return {"session": 1, "sequence": 1, "reports": [report]}


ERRORS: list[tuple[str, str, Any, int, dict[str, str]]] = [
    ("POST", "/v1/report", b"{", 400, {"error": "not JSON", "where": "body"}),
    ("POST", "/v1/report", body_with({"stage": "web", "low": "x"}), 400,
     {"where": "$.reports[0].low", "value": '"x"'}),
    ("POST", "/v1/report", body_with({"stage": "web", "lows": 1}), 400,
     {"where": "$.reports[0]"}),
    ("POST", "/v1/report", body_with({"stage": "web", "origins": {"a": 2**63}}), 400,
     {"where": "$.reports[0].origins[...]"}),
    ("POST", "/v1/report", body_with({"stage": "wep"}), 404,
     {"error": "no such stage", "where": "$.reports[0].stage", "value": "wep"}),
    ("GET", "/v1/stages/wep", None, 404,
     {"value": "wep", "remedy": "the config declares bare, chained, join, web"}),
    ("GET", "/v1/stages/web/window", None, 400, {"error": "a parameter is missing", "value": "end"}),
    ("GET", "/v1/stages/web/window?end=noon", None, 400, {"where": "query end", "value": "noon"}),
    ("GET", "/v1/stages/web/wait?end=1&seconds=99", None, 400,
     {"remedy": "must be a whole number from 0 to 30"}),
    ("GET", "/v1/stages/web?app=ue", None, 404,
     {"error": "no such application", "where": "query app", "remedy": "the config declares default"}),
    ("POST", "/v1/report", {"session": 1, "sequence": 1, "reports": [], "app": "ue"}, 404,
     {"error": "no such application", "where": "$.app", "value": "ue"}),
    ("GET", "/v1/low?stage=web", None, 400, {"error": "no such parameter", "value": "stage"}),
    ("GET", "/v2/low", None, 404, {"value": "/v2/low"}),
    ("PUT", "/v1/low", None, 405, {"error": "method not allowed"}),
    ("POST", "/v1/stages/web/roster", {"add": ["\n"]}, 400, {"where": "$.add[0]"}),
]  # fmt: skip


def test_errors_say_what_where_which_value_and_what_to_do(server: ServerProcess) -> None:
    for method, path, body, status, expected in ERRORS:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = server.http.request(method, path, content=content)
        assert response.status_code == status, (path, response.text)
        error = response.json()
        assert error.keys() == {"error", "where", "value", "remedy"}
        assert all(error.values())
        assert error | expected == error, path
    assert server.get("/v1/health")["faults"] == [], "none of the requests harmed the server"


def test_limits_on_bodies_and_origins(tmp_path: Path) -> None:
    config = write_config(tmp_path, STAGES, max_body=2_000, max_origins=4)
    with ServerProcess(config) as server:
        long = {"session": 1, "sequence": 1, "reports": [{"stage": "web", "origins": {"x" * 200: 1}}] * 10}
        assert server.http.post("/v1/report", json=long).status_code == 413

        def parts() -> Iterator[bytes]:
            for _ in range(100):
                yield b" " * 100

        assert server.http.post("/v1/report", content=parts()).status_code == 413, "without a content length"
        assert server.http.post("/v1/stages/web/roster", json={"add": ["d"]}).status_code == 200
        refused = server.http.post("/v1/stages/web/roster", json={"add": ["e"]})
        assert (refused.status_code, refused.json()["value"]) == (413, "5")
        assert server.get("/v1/stages/web")["origins"] == 4


def test_requests_need_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_THE_TEST", "hush")
    config = write_config(tmp_path, STAGES, token="${TOKEN_OF_THE_TEST}")
    with ServerProcess(config, token="hush") as server:
        assert server.low("web") is None
        for headers in ({}, {"Authorization": "Bearer hus"}, {"Authorization": "hush"}):
            for route in ROUTES:
                path = re.sub(r"{\w+}", "web", route.path)
                response = server.http.request(route.method, path, headers={"Authorization": "", **headers})
                assert response.status_code == (200 if route.open else 401), path
        assert (
            server.http.get("/v1/low", headers={"Authorization": ""}).headers["WWW-Authenticate"] == "Bearer"
        )
        for path in ("/", "/page.js", "/openapi.json", "/health"):
            assert server.http.get(path, headers={"Authorization": ""}).status_code == 200
        assert "hush" not in server.log.read_text()


def test_the_openapi_document_describes_every_route_and_its_response(server: ServerProcess) -> None:
    document = server.get("/openapi.json")
    assert document["openapi"].startswith("3.1")
    served = {(route.method.lower(), route.path) for route in ROUTES}
    described = {(method, path) for path, each in document["paths"].items() for method in each}
    assert described == served
    ids = [operation["operationId"] for each in document["paths"].values() for operation in each.values()]
    assert len(set(ids)) == len(ids)
    server.report("web", {"a": 10, "b": 20})
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        named = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", route.path))
        if route.method != "GET":
            assert {"200", "503"} < operation["responses"].keys()
            continue
        query = {name: "5" for name, each in route.query.items() if each.required}
        response = server.get(route.path.replace("{stage}", "web"), **query)
        reference = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
        schema = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
        assert response.keys() == schema["properties"].keys() == set(schema["required"])
        msgspec.convert(response, route.response)
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert references <= document["components"]["schemas"].keys()


def test_the_roster_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    roster = tmp_path / "hosts.txt"
    roster.write_text("# hosts\na\nb\n\n")
    with ServerProcess(write_config(tmp_path, '[stages.web]\nroster = "hosts.txt"')) as server:
        server.report("web", {"a": 10, "b": 20})
        assert server.low("web") == 10
        server.http.post("/v1/stages/web/roster", json={"add": ["added"]})

        def wait_for(origins: int, errors: int) -> Any:
            deadline = time.monotonic() + 10
            while True:
                state = server.get("/v1/stages/web")
                if (state["origins"], len(state["faults"])) == (origins, errors):
                    return state
                assert time.monotonic() < deadline, state
                time.sleep(0.05)

        roster.write_text("b\nc\nd\n")
        wait_for(4, 0)
        server.report("web", {"b": 50, "c": 50, "added": 50}, sequence=2)
        assert server.low("web") == 10, "d is new and holds it back; a was removed"
        for text, expected in (
            ("", "names no origin"),
            ("b\n" + "x" * 300, "2: 'xxx"),
            ("b\nc\n\xff\x00d\n", "name"),
        ):
            roster.write_text(text)
            state = wait_for(4, 1)
            deadline = time.monotonic() + 5
            while expected not in state["faults"][0]:
                assert time.monotonic() < deadline, state["faults"]
                state = server.get("/v1/stages/web")
        roster.unlink()
        wait_for(4, 1)
        roster.write_text("b\nc\n")
        wait_for(3, 0)
        assert server.low("web") == 50


def test_kill_9_loses_no_acknowledged_report_and_nothing_goes_back(tmp_path: Path) -> None:
    hosts = [f"host-{number}" for number in range(200)]
    stages = f'[stages.web]\nroster = {json.dumps(hosts)}\ncompleteness = "0.9"\n'
    stages += '[stages.next]\nupstream = ["web"]\n'
    config, rng = write_config(tmp_path, stages), random.Random(5)
    acknowledged: dict[str, int] = {}
    seen = -1  # the largest watermark in a response
    for life in range(4):
        with ServerProcess(config) as server:
            if life == 0:
                server.report("next", low=10**9)  # its watermark is that of web, after each start too
            low = server.low("next")
            assert seen <= (-1 if low is None else low)
            kept = {
                each["origin"]: each["progress"]
                for each in server.get("/v1/stages/web/origins", limit=500)["slowest"]
            }
            assert all((kept[host] or -1) >= progress for host, progress in acknowledged.items())
            killer = threading.Timer(rng.uniform(0, 0.05), server.kill)
            sequence, last = 0, rng.randint(10, 40)
            while True:
                sequence += 1
                if sequence == last:
                    killer.start()
                chosen = {
                    host: life * 1_000 + sequence + rng.randint(0, 50) for host in rng.sample(hosts, 150)
                }
                try:
                    response = server.report("web", chosen, session=life, sequence=sequence)
                    for host, progress in chosen.items():
                        acknowledged[host] = max(progress, acknowledged.get(host, -1))
                    seen = max(seen, response["stages"]["web"]["output_low"] or -1, server.low("next") or -1)
                except httpx.TransportError:
                    break
            killer.join()
            assert server.process.poll() == -signal.SIGKILL
            assert sequence >= last
    assert seen > 0


def test_reports_are_on_disk_before_the_response(server: ServerProcess, tmp_path: Path) -> None:
    for sequence in range(20):
        server.report("web", {"a": sequence, "b": sequence}, sequence=sequence)
        with sqlite3.connect(tmp_path / "watermark.db") as reader:
            assert reader.execute("SELECT output_low FROM stage WHERE name = 'web'").fetchone() == (sequence,)


def test_small_responses_do_not_wait_for_an_acknowledgement(server: ServerProcess) -> None:
    took = []
    for _ in range(50):
        started = time.monotonic()
        server.low("web")
        took.append(time.monotonic() - started)
    assert sorted(took)[10] < 0.03, "with Nagle's algorithm each one takes 40 ms"


def test_the_structs_check_their_limits() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"stage": "", "partition": ""}, api.Report)
    report = msgspec.convert({"stage": "s", "low": 2**63 - 1}, api.Report)
    assert report.low == 2**63 - 1
