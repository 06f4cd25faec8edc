"""The profile watermark: a service that counts origins, the next one that reads its output, a server."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import httpx
import pytest

from tests.compose.stack import Stack, dashboard_queries, wait_for
from tests.support.paths import ROOT

TOKEN = "demonstration"
COUNTED, CHAINED = "orders-counted", "orders-chained"


@pytest.fixture(scope="module")
def chain(stack: Stack) -> Stack:
    """The stack with the profile: both services of the chain have finished a batch."""
    stack.compose("stop", "service", "service-cluster", profile="*")
    stack.compose("up", "--detach", "--no-build", "watermark", "service-counted", "service-chained",
                  profile="watermark")  # fmt: skip
    stack.compose("start", "feeder")
    for port in ("COUNTED_HTTP_PORT", "CHAINED_HTTP_PORT"):
        stack.await_ready(port)
    return stack


def stages() -> dict[str, Any]:
    """Return the server's stages by name."""
    url = f"http://127.0.0.1:{os.environ['WATERMARK_PORT']}/v1/stages"
    response = httpx.get(url, headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False)
    assert response.status_code == 200, response.text
    return {stage["stage"]: stage for stage in response.json()["stages"]}


def wait(stage: str, time_us: int, timeout: str) -> subprocess.CompletedProcess[str]:
    """Run `replayfilter watermark wait` on this machine."""
    server = f"http://127.0.0.1:{os.environ['WATERMARK_PORT']}"
    command = [sys.executable, "-m", "replayfilter", "watermark", "wait", stage, str(time_us)]
    command += ["--timeout", timeout, "--server", server, "--token", TOKEN]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)


def test_the_second_service_takes_the_watermark_of_the_first_from_its_input(chain: Stack) -> None:
    wait_for(
        lambda: stages()[COUNTED]["output_low"] is not None, 120, lambda: chain.log("service-counted")[-3000:]
    )
    first = stages()[COUNTED]
    assert first["held"]["by"] == "origins", "the service counts them and reports who holds it back"
    assert (first["held"]["behind_us"] or 0) < 3600 * 10**6
    ended = wait(CHAINED, first["output_low"], "120s")
    assert (ended.returncode, ended.stdout[: len(CHAINED)]) == (0, CHAINED), ended.stderr
    second = stages()[CHAINED]
    assert second["output_low"] >= first["output_low"]
    assert stages()[COUNTED]["output_low"] >= second["output_low"], "never ahead of the service before it"
    ended = wait(CHAINED, 10**6 * 4_000_000_000, "1s")
    assert ended.returncode == 3, "it has not come that far"
    assert "held back by" in ended.stderr


def test_prometheus_answers_every_query_about_watermarks_and_no_alert_fires(chain: Stack) -> None:
    mine = [query for query in dashboard_queries("service-counted:8080") if "watermark" in query]

    def unanswered() -> list[str]:
        return [query for query in mine if not chain.prometheus(query)]

    wait_for(lambda: not unanswered(), 90, lambda: f"no answer to {unanswered()}")
    firing = [alert["metric"]["alertname"] for alert in chain.prometheus('ALERTS{alertstate="firing"}')]
    assert [name for name in firing if "Watermark" in name] == []


def test_after_the_last_record_the_second_service_comes_as_far_as_the_first(chain: Stack) -> None:
    """Must run last: it stops the feeder."""
    chain.finish_input(COUNTED)

    def has_reported() -> bool:
        last = chain.metric("replayfilter_watermark_timestamp_seconds", "COUNTED_HTTP_PORT")
        return bool(stages()[COUNTED]["output_low"] == round(last * 1e6))

    wait_for(has_reported, 30, lambda: str(stages()[COUNTED]))
    ended = wait(CHAINED, stages()[COUNTED]["output_low"], "60s")
    assert ended.returncode == 0, ended.stderr
