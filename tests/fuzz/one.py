"""Runs one target under atheris, in a process of its own: ``python -m tests.fuzz.one TARGET OPTIONS``."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["replayfilter", "fastavro", "json"], enable_loader_override=False):
    from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    target = TARGETS[sys.argv[1]]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], atheris.instrument_func(target))
    atheris.Fuzz()
