"""Inputs that fuzzing found, and a short random test of each target so that none breaks unnoticed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

FOLDER = Path(__file__).parent
CASES = [path for folder in ("cases", "seeds") for path in sorted((FOLDER / folder).glob("*/*"))]


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.name[:20]}")
@pytest.mark.timeout(20)
def test_case(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_random_bytes(name: str) -> None:
    rng = random.Random(name)
    seeds = [path.read_bytes() for path in CASES if path.parent.name == name]
    assert seeds, "each target needs a seed that shows what its input looks like"
    for _ in range(300):
        data = bytearray(rng.choice([*seeds, rng.randbytes(rng.randrange(200))]))
        for _ in range(rng.randrange(4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        TARGETS[name](bytes(data))
