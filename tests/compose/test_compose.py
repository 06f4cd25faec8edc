"""The compose file as users run it: fed, checked, killed, upgraded, and on a Spark cluster."""

from __future__ import annotations

import json

import pytest

from replayfilter.demo.check import ConsumerRecord
from tests.compose.stack import Stack, dashboard_queries, docker, get, wait_for

IMAGE = "replayfilter:test"
IMAGE_LIMIT = 900 * 10**6  # bytes


def test_the_image_is_small_complete_and_does_not_run_as_root(stack: Stack) -> None:
    image = json.loads(docker("image", "inspect", IMAGE))[0]
    print(f"image: {image['Size']:,} bytes")
    assert image["Size"] < IMAGE_LIMIT
    assert image["Config"]["User"] == "10001:10001"
    output = docker("run", "--rm", "--network", "none", "--read-only", "--entrypoint", "python", IMAGE,
                    "-m", "replayfilter.jvm.jars")  # fmt: skip
    assert "fetching" not in output
    assert any(line.endswith("kafka_2.13-4.1.1.jar") for line in output.splitlines())


def test_there_is_a_first_batch(stack: Stack) -> None:
    seconds = stack.seconds_to_first_batch("service")
    print(f"start to first batch, while all other containers start too: {seconds:.1f} s")


def test_every_record_of_every_topic_is_right(stack: Stack) -> None:
    stack.finish_input("orders")
    found = stack.check("orders")
    assert all(found.values()), "the stream has records of every route"
    for route in ("unique", "duplicate", "expired", "error", "replay"):
        name = f'replayfilter_records_total{{route="{route}"}}'
        line = next(each for each in get("HTTP_PORT", "/metrics")[1].splitlines() if each.startswith(name))
        assert float(line.split()[-1]) == found[route], "the metrics count what was delivered"
    stack.compose("start", "feeder")


def test_health_endpoints_answer(stack: Stack) -> None:
    assert get("HTTP_PORT", "/livez")[0] == 200
    assert get("HTTP_PORT", "/readyz")[0] == 200
    status = json.loads(get("HTTP_PORT", "/status")[1])
    assert "orders" in json.dumps(status)
    wait_for(lambda: stack.state("service")["Health"]["Status"] == "healthy", 60, lambda: "not healthy")


def test_prometheus_has_the_metrics_and_alerts_and_answers_every_query_of_the_dashboard(
    stack: Stack,
) -> None:
    wait_for(
        lambda: bool(stack.prometheus('rate(replayfilter_records_total{instance="service:8080"}[1m]) > 0')),
        60,
        lambda: "no records counted for a minute",
    )
    # This service has no watermark.
    mine = [query for query in dashboard_queries("service:8080") if "watermark" not in query]
    assert [query for query in mine if not stack.prometheus(query)] == []
    rules = json.loads(get("PROMETHEUS_PORT", "/api/v1/rules")[1])["data"]["groups"]
    assert sum(len(group["rules"]) for group in rules) > 5
    firing = [alert["metric"]["alertname"] for alert in stack.prometheus('ALERTS{alertstate="firing"}')]
    assert firing == []


def test_after_a_kill_nothing_is_lost_or_delivered_twice(stack: Stack) -> None:
    before = stack.metric("replayfilter_batches_total")
    wait_for(lambda: stack.metric("replayfilter_batches_total") > before, 30, lambda: "no batch for 30 s")
    docker("kill", "--signal", "KILL", stack.container("service"))
    wait_for(lambda: stack.state("service")["ExitCode"] == 137, 10, lambda: str(stack.state("service")))
    stack.compose("start", "service")
    stack.await_ready("HTTP_PORT")
    print(f"start to first batch after kill -9: {stack.seconds_to_first_batch('service'):.1f} s")
    stack.finish_input("orders")
    stack.check("orders")
    stack.compose("start", "feeder")


def test_it_stops_cleanly_and_a_newer_image_continues_with_the_state(
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
    stack.finish_input("orders")
    stack.check("orders")


def test_a_cluster_that_loses_a_worker_gives_the_same_results(stack: Stack) -> None:
    """Must run last: the tests before it let the local service handle the same input."""
    stack.finish_input("orders")
    stack.compose("stop", "service")
    stack.compose("up", "--detach", "--no-build", "service-cluster", profile="cluster")
    victim = stack.container("spark-worker-1")

    def logged(log: str) -> list[str]:
        script = f"ls /var/lib/replayfilter/orders-cluster/*/{log} 2>/dev/null || true"
        names = stack.compose("exec", "-T", "service-cluster", "sh", "-c", script, profile="cluster").split()
        return [name for name in names if name.isdigit()]

    def is_in_a_batch() -> bool:
        return len(logged("offsets")) > len(logged("commits")) and executor_at_work(victim)

    wait_for(is_in_a_batch, 120, lambda: stack.log("service-cluster")[-3000:])
    docker("kill", "--signal", "KILL", victim)
    assert len(logged("offsets")) > len(logged("commits")), "the worker was killed during a batch"
    stack.finish_input("orders-cluster", 180)
    stack.check("orders-cluster")
    local, cluster = stack.outputs("orders"), stack.outputs("orders-cluster")
    for route, rows in local.items():
        assert list(map(without_writer, rows)) == list(map(without_writer, cluster[route])), route
    assert stack.state("service-cluster")["Status"] == "running"


def executor_at_work(container: str) -> bool:
    """Whether a worker's container runs Python workers, which means that it runs tasks."""
    return "pyspark.worker" in docker("top", container, "-eo", "pid,args")


def without_writer(row: ConsumerRecord) -> ConsumerRecord:
    """Return a record without the service's pid, and without what depends on how records fell into batches.

    Messages contain the batch time, and lateness is measured against the latest point before the batch.
    """
    of_batch = {"rf-message", "__connect.errors.exception.message", "rf-late-by"}
    key = row.key and row.key[8:]
    return row._replace(key=key, headers=[pair for pair in row.headers if pair[0] not in of_batch])
