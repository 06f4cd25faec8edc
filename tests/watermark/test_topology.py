"""Stages and applications of one server: what each knows of the others."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner, Result

from replayfilter.core.watermark.stages import Lows
from replayfilter.service.cli.main import app as cli
from replayfilter.watermark.client import UpstreamStages, WatermarkClient
from replayfilter.watermark.kafka_store import KafkaStore
from replayfilter.watermark.store import stored_name
from replayfilter.watermark.table import Changes
from tests.support.server_process import ServerProcess, write_config
from tests.support.service_process import wait_for
from tests.support.topics import read_all

HOUR = 3600 * 10**6
STAGES = """
[stages.web]
roster = ["a", "b"]

[stages.join]
upstream = ["web"]
"""


def test_a_stage_that_has_not_reported_a_low_has_none(tmp_path: Path) -> None:
    """Its service may not have read what the stage before it has finished."""
    with ServerProcess(write_config(tmp_path, STAGES)) as server:

        def state() -> tuple[int | None, int | None, str, list[str]]:
            low, held = server.get("/v1/stages/join/low"), server.get("/v1/stages/join")["held"]
            return low["low"], low["input_low"], held["by"], held["names"]

        server.report("web", {"a": HOUR, "b": HOUR})
        assert state() == (None, None, "nothing", ["no report yet"])
        window = server.get("/v1/stages/join/window", end=HOUR)
        assert (window["closed"], window["held"]["names"]) == (False, ["no report yet"])
        server.report("join", partition="t-0", backlog=5)
        assert state() == (None, None, "nothing", ["no low reported yet"]), (
            "a service that does not know it yet"
        )
        server.report("join", low=HOUR - 1, sequence=2)
        assert state() == (HOUR - 1, HOUR - 1, "partitions", [""])
        server.report("join", sequence=3)
        assert state()[0] == HOUR - 1, "a report without a low takes none away"
        server.report("join", low=HOUR + 1, sequence=4)
        assert state() == (HOUR, HOUR, "upstream", ["web"])


APPS = """
[stages.web]
roster = ["a", "b"]

[apps.eu.stages.web]
roster = "hosts.txt"

[apps.eu.stages.join]
upstream = ["web"]

[apps.us.stages.join]
"""


def test_applications_have_stages_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("a\n")
    config = write_config(tmp_path, APPS, max_origins=4)
    with ServerProcess(config) as server:
        assert server.get("/v1/apps") == {"apps": ["default", "eu", "us"]}
        server.report("web", {"a": 5, "b": 5})
        assert (server.low("web"), server.low("web", "eu")) == (5, None)
        client = WatermarkClient([server.url], app="eu")
        client.report("web", origins={"a": 9})
        client.report("join", low=8)
        assert client.close(30)
        assert {stage: lows.output_low for stage, lows in client.lows.items()} == {"web": 9, "join": 8}
        follower = UpstreamStages((server.url,), "", "join", "eu").follow()
        wait_for(lambda: follower.lows == {"web": 9}, 30, "never told")
        follower.stop()
        server.report("join", low=HOUR, app="us")
        assert [server.low("join", app) for app in ("eu", "us")] == [8, HOUR]
        assert [server.get("/v1/low", app=app)["low"] for app in ("default", "eu", "us")] == [5, 8, HOUR]
        names = {app: [each["stage"] for each in server.get("/v1/stages", app=app)["stages"]]
                 for app in ("default", "eu", "us")}  # fmt: skip
        assert names == {"default": ["web"], "eu": ["web", "join"], "us": ["join"]}
        health = server.get("/v1/health", app="us")["stages"]
        assert [(each["stage"], each["output_low"]) for each in health] == [("join", HOUR)]
        changed = server.http.post("/v1/stages/web/roster?app=eu", json={"add": ["c"]}).json()
        assert (changed["origins"], server.get("/v1/stages/web")["origins"]) == (2, 2)
        refused = server.http.post("/v1/stages/web/roster", json={"add": ["c"]})
        assert (refused.status_code, refused.json()["value"]) == (413, "5"), "one limit for all"
        metrics = server.http.get("/metrics").text
        for app, low in (("eu", 8), ("us", HOUR)):
            name = f'replayfilter_watermark_stage_low_timestamp_seconds{{app="{app}",stage="join"}}'
            assert f"{name} {low / 1e6}\n" in metrics

        def run(*arguments: str) -> Result:
            return CliRunner().invoke(cli, ["watermark", *arguments, "--server", server.url])

        assert run("wait", "join", str(HOUR), "--app", "us", "--timeout", "1s").exit_code == 0
        assert run("wait", "join", str(HOUR), "--app", "eu", "--timeout", "0s").exit_code == 3
        shown = run("show", "web", "--app", "eu", "--origin", "a").stdout.splitlines()
        assert shown[0].endswith("held back by origins: c, a"), shown
        assert shown[1].startswith("a: at 1970-01-01T00:00:00Z, ")
        assert "the config declares default, eu, us" in run("show", "web", "--app", "ue").stderr
        server.kill()
    with ServerProcess(config) as server:
        assert [server.low("join", app) for app in ("eu", "us")] == [8, HOUR]
        assert (server.low("web"), server.low("web", "eu")) == (5, 9)
        assert server.get("/v1/stages/web/history", app="eu")["at_us"]


def test_what_was_stored_without_applications_is_of_the_default_one(tmp_path: Path) -> None:
    with ServerProcess(write_config(tmp_path, STAGES)) as server:
        server.report("web", {"a": 5, "b": 6})
    later = STAGES + '[apps.eu.stages.web]\nroster = ["a"]\n'
    with ServerProcess(write_config(tmp_path, later)) as server:
        assert (server.low("web"), server.low("web", "eu")) == (5, None)


def test_a_topic_keeps_applications_apart_and_reads_what_had_none(bootstrap: str) -> None:
    topic, change = f"apps-{time.time_ns()}", Changes(Lows(3, 2), 8, 4)
    with closing(KafkaStore(topic, bootstrap, {})) as one:
        assert one.take_lease(one.lease(), "one")
        with one.transaction():
            one.write({"web": change, stored_name("eu", "web"): replace(change, lows=Lows(9, 9))})
        one.release_lease()
    keys = {message.key() for message in read_all(bootstrap, topic)}
    assert keys == {b'["lease"]', b'["stage","web"]', b'["stage","eu/web"]'}, "as before for the default one"
    with closing(KafkaStore(topic, bootstrap, {})) as two:
        wait_for(lambda: two.lease().owner == "", 30, "it was not released")
        assert two.take_lease(two.lease(), "two")
        found = {app: two.load(stored_name(app, "web")).lows for app in ("default", "eu", "us")}
        assert found == {"default": Lows(3, 2), "eu": Lows(9, 9), "us": Lows()}
