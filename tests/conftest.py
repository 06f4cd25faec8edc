"""What all tests share: one real broker for the whole run, and no clocks in hypothesis."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

from replayfilter.devbroker import DevBroker

settings.register_profile("steady", deadline=None, print_blob=True)  # a busy machine is no failure
settings.load_profile("steady")


@pytest.fixture(scope="session")
def broker() -> Iterator[DevBroker]:
    """One Kafka for the whole run: name topics, groups and transactions after the test, and never stop it."""
    with DevBroker() as running:
        yield running
        gc.collect()  # clients in garbage end while their broker is there, and the interpreter whole


@pytest.fixture(scope="session")
def bootstrap(broker: DevBroker) -> str:
    """Where clients reach the run's broker."""
    return broker.bootstrap
