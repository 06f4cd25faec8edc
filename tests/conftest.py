"""What all tests share: markers by need, one real broker for the whole run, no deadlines in Hypothesis."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

from replayfilter.devbroker import DevBroker
from tests.support.clients import clients, hanging_steps

settings.register_profile("steady", deadline=None, print_blob=True)  # a busy machine is no failure
settings.load_profile("steady")

_BROKERS = {"broker", "bootstrap", "own_broker", "secure", "stored"}
_before = {"clients": 0, "hanging": 0}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test that asks for a broker with ``kafka``."""
    for item in items:
        if _BROKERS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.kafka)


@pytest.fixture(scope="session")
def broker() -> Iterator[DevBroker]:
    """One Kafka for the whole run: name topics, groups and transactions after the test, and never stop it."""
    with DevBroker() as running:
        yield running
        gc.collect()  # frees clients that are garbage while their broker is still there


@pytest.fixture(scope="session")
def bootstrap(broker: DevBroker) -> str:
    """Where clients reach the run's broker."""
    return broker.bootstrap


@pytest.fixture(scope="module", autouse=True)
def no_client_is_left(request: pytest.FixtureRequest) -> None:
    """Fail a module if the one before it left a Kafka client: such a client can crash the interpreter's exit.

    Checked before each module, since fixtures of the last test live until then.
    """
    items = [item for item in request.session.items if item.getparent(pytest.Module) is request.node]
    if not any(item.get_closest_marker("kafka") for item in items):
        return
    found = {"clients": len(clients()), "hanging": hanging_steps()}
    left = found["clients"] - _before["clients"]
    hang = found["hanging"] > _before["hanging"]
    _before.update(found)  # also if this fails: one leak is one failure
    assert left <= 0 or hang, f"the module before left {left} clients"
