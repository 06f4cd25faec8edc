"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

import replayfilter

NAMES = [found.name for found in pkgutil.walk_packages(replayfilter.__path__, "replayfilter.")]
MODULES = [importlib.import_module(name) for name in NAMES if not name.endswith("__main__")]
WITH_EXAMPLES = [m for m in MODULES if any(test.examples for test in doctest.DocTestFinder().find(m))]


@pytest.mark.parametrize("module", WITH_EXAMPLES, ids=[module.__name__ for module in WITH_EXAMPLES])
def test_examples_run(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed


def test_most_of_the_core_has_examples() -> None:
    core = {module.__name__ for module in WITH_EXAMPLES if module.__name__.startswith("replayfilter.core.")}
    assert len(core) >= 8, sorted(core)
