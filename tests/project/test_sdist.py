"""A source archive contains the whole repository, so that the tests can be run from it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT

BUILD = "import sys; from hatchling.build import build_sdist; print(build_sdist(sys.argv[1]))"


def tracked() -> set[str]:
    """Return the files under version control."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git repository, so nothing to compare with")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}


def test_a_source_archive_holds_the_whole_repository(tmp_path: Path) -> None:
    wanted = tracked()
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    archive = tmp_path / built.stdout.split()[-1]
    with tarfile.open(archive) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    assert wanted - held == set(), "missing: add them to [tool.hatch.build.targets.sdist] of pyproject.toml"
    assert {name for name in held if name.startswith((".venv", "build/", "checkpoint/"))} == set()
    assert held - wanted <= {"PKG-INFO"} | untracked(), "nothing else"


def untracked() -> set[str]:
    """Return the files that git would add."""
    command = ["git", "ls-files", "-z", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.split("\0"))
