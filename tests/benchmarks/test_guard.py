"""The guard of the hot paths: each of them runs, and changes are shown."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from benchmarks.guard import KEPT, compare
from benchmarks.hot_paths import HotPath, hot_paths


@pytest.fixture(scope="module")
def paths() -> dict[str, HotPath]:
    return hot_paths()


def test_each_hot_path_runs_and_is_kept(paths: dict[str, HotPath]) -> None:
    assert set(json.loads(KEPT.read_text())) == set(paths), "make bench-guard OPTIONS=--keep"
    for path in paths.values():
        path.run()
        path.run()
        assert path.records >= 1_000


def test_changes_are_shown() -> None:
    table = compare(
        {"": 0.01, "same": 10.0, "slower": 12.0, "added": 1.0}, {"same": 10.1, "slower": 10.0, "left": 2.0}
    )
    console = Console(record=True, width=120)
    console.print(table)
    lines = {line.split()[1]: line for line in console.export_text().splitlines() if line.startswith("│")}
    assert "-1%" in lines["same"]
    assert "+20% !" in lines["slower"]
    assert "new" in lines["added"]
    assert "gone" in lines["left"]
