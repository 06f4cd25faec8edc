"""No test leaves a client behind: one that lives on when the interpreter ends can end it with a fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.clients import asleep, clients


@pytest.fixture(scope="module", autouse=True)
def no_client_is_left(bootstrap: str) -> Iterator[None]:
    """After each module; those that a call of librdkafka never returns from can't be had back."""
    before, hung = clients(), asleep()
    yield
    assert asleep() > hung or len(clients()) <= len(before)
