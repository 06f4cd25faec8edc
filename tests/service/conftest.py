"""What several modules of these folders ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.deployment import Deployment


@pytest.fixture
def deployment(bootstrap: str, tmp_path: Path) -> Deployment:
    """A service without topics and without a checkpoint."""
    return Deployment(bootstrap, tmp_path)
