"""No test of a config depends on variables that happen to be set."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("REPLAYFILTER_"):
            monkeypatch.delenv(name)
