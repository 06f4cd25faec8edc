"""Stages and applications of one server: what each knows of the others."""

from __future__ import annotations

from pathlib import Path

from tests.support.server_process import ServerProcess, write_config

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
