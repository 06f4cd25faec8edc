"""What the modules of this folder ask for."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.support.secure_broker import SecureBroker


@pytest.fixture(scope="session")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """One broker with TLS, SASL and ACLs for the whole run: name topics and users after the test."""
    with SecureBroker(tmp_path_factory.mktemp("certificates")) as running:
        yield running
        gc.collect()  # frees clients that are garbage while their broker is still there
