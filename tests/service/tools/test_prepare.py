"""Spark's classes kept in a file: used where it is there, never in the way; `make test` makes a real one."""

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
    """Of a JVM that did nothing but tell its version."""
    run_java(classes.writing(path))


def test_no_file_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "ARCHIVE", tmp_path / "classes.jsa")
    assert classes.reading() == ""


def test_a_file_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "ARCHIVE", tmp_path / "classes.jsa")
    write_archive(classes.ARCHIVE)
    assert "shared objects file (top)" in run_java(classes.reading())


def test_a_file_that_is_none_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "ARCHIVE", tmp_path / "classes.jsa")
    classes.ARCHIVE.write_bytes(b"of another Java, or no archive at all")
    said = run_java(classes.reading())
    assert "shared objects file (top)" not in said
    assert "warning" not in said


def test_a_file_that_is_cut_off_is_not_kept(tmp_path: Path) -> None:
    made = tmp_path / "classes.jsa"
    write_archive(made)
    prepare._check(made)
    whole = made.read_bytes()
    made.unlink()  # Java made it for reading only
    made.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(MissingDependency, match=r"is the disk full\? It ended with"):
        prepare._check(made)


def test_a_place_that_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "share").write_text("a file where a folder should be")
    monkeypatch.setattr(classes, "ARCHIVE", tmp_path / "share" / "classes.jsa")
    with pytest.raises(MissingDependency, match=r"classes\.jsa can't be written .*virtual environment"):
        prepare.prepare()
