"""Real file systems other than the local one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.support.name_node import NameNode
from tests.support.s3_server import Fault, S3Server


@pytest.fixture(scope="session")
def hdfs() -> Iterator[str]:
    """The URL of an HDFS."""
    with NameNode() as running:
        yield running.url


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 server with one bucket."""
    with S3Server() as running:
        yield running


@pytest.fixture
def s3a(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a bucket; the environment has what a client needs to know about it.

    Each request takes 20 ms longer. Of a hundred, three are refused because the server is busy, and the
    answers of two get lost.
    """
    chance = random.Random(1)
    faults = [Fault.BUSY] * 3 + [Fault.LOST] * 2 + [None] * 95
    monkeypatch.setattr(s3_server.proxy, "delay_s", 0.02)
    monkeypatch.setattr(s3_server.proxy, "faults", lambda method, path: chance.choice(faults))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    return s3_server.url


@pytest.fixture(params=["hdfs", "s3a"])
def storage(request: pytest.FixtureRequest) -> str:
    """The URL of each file system in turn."""
    return str(request.getfixturevalue(request.param))
