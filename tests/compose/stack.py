"""A running compose project: its containers, its HTTP endpoints, and a check of its output topics."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from datetime import datetime
from typing import Any

from replayfilter.demo.check import ConsumerRecord, compare
from replayfilter.demo.feed import PARTITIONS, TOPIC
from replayfilter.demo.kafka_io import read_topic
from replayfilter.demo.stream import OUTPUTS, ROUTES, Record, expected_routes
from replayfilter.kafka.admin import Cluster
from tests.support.paths import ROOT

PORTS = (
    "KAFKA_PORT", "HTTP_PORT", "CLUSTER_HTTP_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT", "WATERMARK_PORT",
    "COUNTED_HTTP_PORT", "CHAINED_HTTP_PORT",
)  # fmt: skip


def engine_missing() -> str:
    """Return why no containers can be run here; empty if they can."""
    if reason := os.environ.get("NO_ENGINE"):
        return f"no container engine: {reason}"
    try:
        subprocess.run(["docker", "info"], capture_output=True, check=True, timeout=30)
        subprocess.run(["docker", "compose", "version"], capture_output=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        return f"no container engine with compose is running ({error}); tests/compose/engine starts one"
    return ""


class Stack:
    """The compose project called ``name``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bootstrap = f"localhost:{os.environ['KAFKA_PORT']}"

    def compose(self, *arguments: str, profile: str = "") -> str:
        """Run `docker compose` and return its output. Raises AssertionError if it fails."""
        profiles = ["--profile", profile] if profile else []
        files = ["-f", str(ROOT / "docker-compose.yml"), "-p", self.name]
        return docker("compose", *files, *profiles, *arguments)

    def container(self, service: str) -> str:
        """Return the id of a service's container, running or not."""
        return self.compose("ps", "--all", "--quiet", service, profile="*").strip()

    def state(self, service: str) -> dict[str, Any]:
        """Return the engine's state of a service's container: Status, ExitCode, StartedAt and so on."""
        state: dict[str, Any] = json.loads(
            docker("inspect", "-f", "{{json .State}}", self.container(service))
        )
        return state

    def log(self, service: str, *options: str) -> str:
        """Return what a service's container wrote to stdout, followed by what it wrote to stderr."""
        command = ["docker", "logs", *options, self.container(service)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return ended.stdout + ended.stderr

    def await_ready(self, port: str, seconds: float = 120) -> None:
        """Wait until the service at a port reports that it is ready."""
        wait_for(
            lambda: get(port, "/readyz")[0] == 200, seconds, lambda: f"not ready: {get(port, '/readyz')}"
        )

    def metric(self, name: str, port: str = "HTTP_PORT") -> float:
        """Return a metric's sum over its labels; 0 if the metric doesn't exist."""
        lines = get(port, "/metrics")[1].splitlines()
        samples = [line.rpartition(" ") for line in lines if line.partition("{")[0].split(" ")[0] == name]
        return sum(float(value) for _, _, value in samples)

    def prometheus(self, query: str) -> list[dict[str, Any]]:
        """Return the result of an instant query."""
        status, body = get("PROMETHEUS_PORT", "/api/v1/query?" + urllib.parse.urlencode({"query": query}))
        assert status == 200, (query, body)
        result: list[dict[str, Any]] = json.loads(body)["data"]["result"]
        return result

    def finish_input(self, group: str, seconds: float = 120) -> None:
        """Stop the feeder, and wait until a service has delivered all of the input."""
        self.compose("stop", "--timeout", "5", "feeder")
        cluster = Cluster(self.bootstrap)
        partitions = [(TOPIC, partition) for partition in range(PARTITIONS)]
        ends = cluster.end_offsets(partitions)

        def done() -> bool:
            return cluster.committed(group, partitions) == ends

        wait_for(done, seconds, lambda: f"{cluster.committed(group, partitions)} of {ends} after {seconds} s")

    def outputs(self, service: str) -> dict[str, list[ConsumerRecord]]:
        """Return all records that a service has written, by route."""
        return {route: read_topic(self.bootstrap, f"{service}.{route}") for route in OUTPUTS}

    def check(self, service: str) -> dict[str, int]:
        """Compare each record of a service's topics with the input; return the found records by route.

        Raises AssertionError with the first problems of each route.
        """
        found = read_topic(self.bootstrap, TOPIC)
        # Within a partition, records come in offset order; timestamps give the order between partitions.
        next_offset: dict[int, int] = {}
        stream = []
        for row in found:
            offset = next_offset.get(row.partition, 0)
            next_offset[row.partition] = offset + 1
            stream.append(
                Record(row.partition, offset, row.key, row.value, row.timestamp_ms, row.headers, "")
            )
        stream.sort(key=lambda record: record.timestamp_ms)
        expected = expected_routes(stream, end_ms=int(time.time() * 1000))
        verdicts = compare(stream, expected, self.outputs(service))
        wrong = {route: verdict.problems for route, verdict in verdicts.items() if not verdict.ok}
        assert not wrong, wrong
        return {route: verdicts[route].found for route in ROUTES}

    def seconds_to_first_batch(self, service: str, seconds: float = 120) -> float:
        """Return the seconds from the container's start to its log line about the first batch."""
        started = datetime.fromisoformat(self.state(service)["StartedAt"][:26] + "+00:00")

        def batches() -> list[str]:
            lines = self.log(service, "--timestamps", "--since", started.isoformat()).splitlines()
            return [line for line in lines if '"event": "batch"' in line]

        wait_for(lambda: bool(batches()), seconds, lambda: self.log(service)[-3000:])
        return (datetime.fromisoformat(batches()[0][:26] + "+00:00") - started).total_seconds()


def dashboard_queries(instance: str) -> list[str]:
    """Return every query of the dashboard, with its variables set."""
    text = (ROOT / "deploy/grafana/dashboards/replayfilter.json").read_text()
    found = {target["expr"] for panel in json.loads(text)["panels"] for target in panel.get("targets", ())}
    found = {query.replace("$__rate_interval", "1m") for query in found}
    return sorted(re.sub(r"\$\{?instance\}?", instance, each) for each in found)


def docker(*arguments: str, stdin: str = "") -> str:
    """Run docker and return its output. Raises AssertionError if it fails."""
    ended = subprocess.run(
        ["docker", *arguments], input=stdin, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, f"docker {' '.join(arguments)}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def get(port: str, path: str) -> tuple[int, str]:
    """Return status and body of an HTTP response; status 0 if there is no response."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{os.environ[port]}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def wait_for(happened: Callable[[], bool], seconds: float, complaint: Callable[[], str]) -> None:
    """Return as soon as ``happened()``. Raises AssertionError if that takes longer than ``seconds``."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, complaint()
        time.sleep(0.2)
