"""The class archive: used if it exists, ignored if it is broken. `make test` makes a real one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from replayfilter.errors import MissingDependency
from replayfilter.jvm import class_archive as classes
from replayfilter.jvm.java import java
from replayfilter.service.tools import prepare


def run_java(options: str) -> str:
    command = [str(java()), *options.split(), "-Xlog:class+load", "-version"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def write_archive(path: Path) -> None:
    """Write the archive of a JVM that only printed its version."""
    run_java(classes.write_options(path))


def test_without_an_archive_there_is_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "ARCHIVE", tmp_path / "classes.jsa")
    assert classes.read_options() == ""


def test_an_archive_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "ARCHIVE", tmp_path / "classes.jsa")
    write_archive(classes.ARCHIVE)
    assert "shared objects file (top)" in run_java(classes.read_options())


def test_a_file_that_is_no_archive_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "ARCHIVE", tmp_path / "classes.jsa")
    classes.ARCHIVE.write_bytes(b"not an archive")
    output = run_java(classes.read_options())
    assert "shared objects file (top)" not in output
    assert "warning" not in output


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "classes.jsa"
    write_archive(archive)
    prepare._check(archive)
    content = archive.read_bytes()
    archive.unlink()  # Java made it read-only
    archive.write_bytes(content[: len(content) // 2])
    with pytest.raises(MissingDependency, match=r"is the disk full\? It ended with"):
        prepare._check(archive)


def test_an_unwritable_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "share").write_text("a file where a folder should be")
    monkeypatch.setattr(classes, "ARCHIVE", tmp_path / "share" / "classes.jsa")
    with pytest.raises(MissingDependency, match=r"classes\.jsa can't be written .*virtual environment"):
        prepare.prepare()
