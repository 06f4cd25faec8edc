"""The compose file as users run it: fed, checked, killed, upgraded, and on a Spark cluster."""

from __future__ import annotations

import json
import re

import pytest
from stack import ROOT, Stack, docker, get, wait_for

IMAGE = "replayfilter:test"
SMALL = 900 * 10**6
"""Seconds from a container's start to its first batch."""


def test_the_image_is_small_holds_all_it_needs_and_is_nobodys_root(stack: Stack) -> None:
    image = json.loads(docker("image", "inspect", IMAGE))[0]
    print(f"image: {image['Size']:,} bytes")
    assert image["Size"] < SMALL
    assert image["Config"]["User"] == "10001:10001"
    said = docker("run", "--rm", "--network", "none", "--read-only", "--entrypoint", "python", IMAGE,
                  "-m", "replayfilter.jvm.jars")  # fmt: skip
    assert "fetching" not in said
    assert any(line.endswith("spark-sql-kafka-0-10_2.13-4.0.0.jar") for line in said.splitlines())


def test_the_first_batch_comes(stack: Stack) -> None:
    seconds = stack.seconds_to_first_batch("service")
    print(f"start to first batch, with all the others starting beside it: {seconds:.1f} s")


def test_every_record_of_every_topic_is_right(stack: Stack) -> None:
    stack.drain("orders")
    found = stack.check("orders")
    assert all(found.values()), "the stream has records of every route"
    for route in ("unique", "duplicate", "expired", "error", "replay"):
        name = f'replayfilter_records_total{{route="{route}"}}'
        line = next(each for each in get("HTTP_PORT", "/metrics")[1].splitlines() if each.startswith(name))
        assert float(line.split()[-1]) == found[route], "the metrics count what was delivered"
    stack.compose("start", "feeder")


def test_health_says_what_is(stack: Stack) -> None:
    assert get("HTTP_PORT", "/livez")[0] == 200
    assert get("HTTP_PORT", "/readyz")[0] == 200
    status = json.loads(get("HTTP_PORT", "/status")[1])
    assert "orders" in json.dumps(status)
    wait_for(lambda: stack.state("service")["Health"]["Status"] == "healthy", 60, lambda: "not healthy")


def queries() -> list[str]:
    """Every query of the dashboard, with its variables set."""
    text = (ROOT / "deploy/grafana/dashboards/replayfilter.json").read_text()
    found = {target["expr"] for panel in json.loads(text)["panels"] for target in panel.get("targets", ())}
    # A watermark there is none here.
    found = {query for query in found if "watermark" not in query}
    return sorted(re.sub(r"\$\{?instance\}?", "service:8080", each) for each in found)


def test_prometheus_has_the_metrics_the_alerts_and_an_answer_to_the_dashboards_every_query(
    stack: Stack,
) -> None:
    wait_for(
        lambda: bool(stack.prometheus('rate(replayfilter_records_total{instance="service:8080"}[1m]) > 0')),
        60,
        lambda: "no records counted for a minute",
    )
    silent = [query for query in queries() if not stack.prometheus(query.replace("$__rate_interval", "1m"))]
    assert silent == []
    rules = json.loads(get("PROMETHEUS_PORT", "/api/v1/rules")[1])["data"]["groups"]
    assert sum(len(group["rules"]) for group in rules) > 5
    firing = [
        alert["labels"]["alertname"] for alert in stack.prometheus('ALERTS{alertstate="firing"}') if alert
    ]
    assert firing == []


def test_killed_and_started_again_nothing_is_lost_or_twice(stack: Stack) -> None:
    before = stack.metric("replayfilter_batches_total")
    wait_for(lambda: stack.metric("replayfilter_batches_total") > before, 30, lambda: "no batch for 30 s")
    docker("kill", "--signal", "KILL", stack.container("service"))
    wait_for(lambda: stack.state("service")["ExitCode"] == 137, 10, lambda: str(stack.state("service")))
    stack.compose("start", "service")
    stack.await_ready("HTTP_PORT")
    print(f"start to first batch after kill -9: {stack.seconds_to_first_batch('service'):.1f} s")
    stack.drain("orders")
    stack.check("orders")
    stack.compose("start", "feeder")


def test_stopped_it_ends_in_order_and_a_newer_image_goes_on_with_the_state(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = f"FROM {IMAGE}\nUSER root\nRUN sed -i 's/__version__ = .*/__version__ = \"9.9.9\"/' " \
        "$(python -c 'import replayfilter; print(replayfilter.__file__)')\nUSER 10001:10001\n"  # fmt: skip
    docker("build", "-q", "-t", "replayfilter:test-next", "-", stdin=newer)
    stack.compose("stop", "service")
    assert stack.state("service")["ExitCode"] == 0, stack.log("service")[-2000:]
    monkeypatch.setenv("REPLAYFILTER_IMAGE", "replayfilter:test-next")
    stack.compose("up", "--detach", "--no-build", "--no-deps", "service")
    stack.await_ready("HTTP_PORT")
    assert 'version="9.9.9"' in get("HTTP_PORT", "/metrics")[1]
    stack.drain("orders")
    stack.check("orders")


def test_a_cluster_that_loses_a_worker_gives_the_same_results(stack: Stack) -> None:
    """Runs last: the local service of the tests before has handled the same input."""
    stack.drain("orders")
    stack.compose("stop", "service")
    stack.compose("up", "--detach", "--no-build", "service-cluster", profile="cluster")
    victim = stack.container("spark-worker-1")

    def logged(log: str) -> list[str]:
        script = f"ls /var/lib/replayfilter/orders-cluster/*/{log} 2>/dev/null || true"
        names = stack.compose("exec", "-T", "service-cluster", "sh", "-c", script, profile="cluster").split()
        return [name for name in names if name.isdigit()]

    def in_mid_batch() -> bool:
        return len(logged("offsets")) > len(logged("commits")) and executor_at_work(victim)

    wait_for(in_mid_batch, 120, lambda: stack.log("service-cluster")[-3000:])
    docker("kill", "--signal", "KILL", victim)
    assert len(logged("offsets")) > len(logged("commits")), "it was killed in mid-batch"
    stack.drain("orders-cluster", 180)
    stack.check("orders-cluster")
    local, cluster = stack.outputs("orders"), stack.outputs("orders-cluster")
    for route, rows in local.items():
        assert [unsigned(row) for row in rows] == [unsigned(row) for row in cluster[route]], route
    assert stack.state("service-cluster")["Status"] == "running"


def executor_at_work(container: str) -> bool:
    """Whether a worker's container runs Python workers, and so tasks."""
    return "pyspark.worker" in docker("top", container, "-eo", "pid,args")


def unsigned(row: object) -> object:
    """A record without what tells who wrote it and when: the service's pid, the batch's time in a message."""
    partition, key, value, timestamp, headers = row  # type: ignore[misc]
    return partition, key[8:], value, timestamp, [pair for pair in headers if pair[0] != "rf-message"]
