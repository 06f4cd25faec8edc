"""Starts the compose project on free ports; without a container engine all tests here are skipped.

`make test-compose` starts an engine if none is running, and makes the images.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from replayfilter.devbroker import free_port
from tests.compose.stack import PORTS, Stack, docker, engine_missing
from tests.support.paths import ROOT

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test in this folder, and skip it if there is no engine."""
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
        os.environ[variable] = str(free_port())
    os.environ["REPLAYFILTER_IMAGE"] = "replayfilter:test"
    return str(ROOT / "docker-compose.yml")


@pytest.fixture(scope="session")
def docker_setup() -> list[str]:
    # Without Grafana: its image needs a registry. Without `--wait`: that fails as soon as `topics` exits.
    return ["up --build --detach --quiet-pull feeder service prometheus"]


@pytest.fixture(scope="session")
def docker_cleanup() -> list[str]:
    return ["--profile '*' down --volumes --timeout 5"]


@pytest.fixture(scope="session")
def stack(docker_services: object, docker_compose_project_name: str) -> Iterator[Stack]:
    """The running compose project."""
    stack = Stack(docker_compose_project_name)
    stack.await_ready("HTTP_PORT")
    yield stack
    docker("image", "rm", "--force", "replayfilter:test-next")
