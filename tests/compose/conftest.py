"""The compose file as it is, on ports of its own; skipped, with the reason, where no engine is.

`make test-compose` sees to an engine and to the images first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from stack import PORTS, ROOT, Stack, docker, engine_missing

from replayfilter.devbroker import _free_port

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder is marked, and skipped without an engine."""
    reason = None
    for item in items:
        if HERE not in item.path.parents:
            continue
        reason = engine_missing() if reason is None else reason
        item.add_marker(pytest.mark.compose)
        item.add_marker(pytest.mark.timeout(420))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def docker_compose_file() -> str:
    for variable in PORTS:
        os.environ[variable] = str(_free_port())
    os.environ["REPLAYFILTER_IMAGE"] = "replayfilter:test"
    return str(ROOT / "docker-compose.yml")


@pytest.fixture(scope="session")
def docker_setup() -> list[str]:
    # Grafana can't be had without an image registry. `--wait` is for those that stay; `topics` ends.
    return ["up --build --detach --quiet-pull feeder service prometheus"]


@pytest.fixture(scope="session")
def docker_cleanup() -> list[str]:
    return ["--profile cluster down --volumes --timeout 5"]


@pytest.fixture(scope="session")
def stack(docker_services: object, docker_compose_project_name: str) -> Iterator[Stack]:
    """The running compose project."""
    stack = Stack(docker_compose_project_name)
    stack.await_ready("HTTP_PORT")
    yield stack
    docker("image", "rm", "--force", "replayfilter:test-next")
