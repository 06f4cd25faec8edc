"""A real file system other than the local one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.name_node import NameNode


@pytest.fixture(scope="session")
def storage() -> Iterator[str]:
    """The URL of an HDFS."""
    with NameNode() as running:
        yield running.url
