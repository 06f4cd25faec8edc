"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGE = sorted((ROOT / "replayfilter").rglob("*.py"))
LINES = 400
# Written so that this file does not find itself.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
MACHINE_PATH = re.compile(r"(?<![\w.~$}-])/(wo" + r"rk|ro" + r"ot|ho" + r"me|Us" + r"ers)/")
Public = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tracked() -> list[Path]:
    """The files under version control; outside of a clone (an unpacked archive) all but hidden ones."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return [ROOT / each for each in listed.stdout.split("\0") if each and (ROOT / each).is_file()]
    files = (each for each in ROOT.rglob("*") if each.is_file())
    return [each for each in files if not any(part.startswith(".") for part in each.relative_to(ROOT).parts)]


def text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        return None


def undocumented(body: list[ast.stmt]) -> list[str]:
    """The module's public functions and classes without a docstring. Methods may speak for themselves."""
    public = [node for node in body if isinstance(node, Public) and not node.name.startswith("_")]
    return [node.name for node in public if ast.get_docstring(node) is None]


@pytest.mark.parametrize("path", PACKAGE, ids=name)
def test_each_module_is_short_named_after_a_thing_and_says_what_it_is_for(path: Path) -> None:
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    assert len(source.splitlines()) <= LINES, f"more than {LINES} lines: it holds more than one thing"
    assert path.stem not in {"utils", "util", "helpers", "common", "misc"}, "name it after what it holds"
    assert ast.get_docstring(tree), "a module says in its first line what it is for"
    assert undocumented(tree.body) == []


def test_nothing_is_left_unfinished() -> None:
    places = [
        f"{name(path)}: {found[0]}" for path in tracked() if (found := UNFINISHED.search(text(path) or ""))
    ]
    assert places == []


def test_no_file_names_a_place_of_one_machine() -> None:
    places = [
        f"{name(path)}:{number}: {line.strip()[:100]}"
        for path in tracked()
        for number, line in enumerate((text(path) or "").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert places == []


def test_the_rules_find_what_they_look_for() -> None:
    assert UNFINISHED.search("# TO" + "DO: later")
    assert MACHINE_PATH.search("open('/ro" + "ot/x')")
    assert not MACHINE_PATH.search("https://example.org/ho" + "me/x")
    assert undocumented(ast.parse("class A: ...\ndef b(): ...\ndef _c(): ...").body) == ["A", "b"]
