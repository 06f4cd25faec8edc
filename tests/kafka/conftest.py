"""No test leaves a client behind: one that lives on when the interpreter ends can end it with a fault."""

from __future__ import annotations

import pytest

from tests.support.clients import asleep, clients

_before = {"clients": 0, "asleep": 0}


@pytest.fixture(scope="module", autouse=True)
def no_client_is_left(bootstrap: str) -> None:
    """Before each module, since the last test's fixtures live until then; what librdkafka keeps may stay."""
    found = {"clients": len(clients()), "asleep": asleep()}
    left = found["clients"] - _before["clients"]
    assert left <= 0 or found["asleep"] > _before["asleep"], f"the module before left {left} clients"
    _before.update(found)
