"""The repository's own rules, which no linter checks."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from tests.support.paths import ROOT

PACKAGE = sorted((ROOT / "replayfilter").rglob("*.py"))
LINES = 400
MODULES_PER_FOLDER = 10
# These patterns are split so that they don't match in this file.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
MACHINE_PATH = re.compile(r"(?<![\w.~$}-])/(wo" + r"rk|ro" + r"ot|ho" + r"me|Us" + r"ers)/")
ODD_ENGLISH = re.compile(
    r"\b(an" + r"ew|me" + r"nd(s|ed|ing)?|(is|are) to" + r"ld|so c" + r"an't|hea" + r"rd? of)\b"
    r"|(?<!\bat )\ba million rec" + r"ords\b",
    re.IGNORECASE,
)
FOREIGN_PAGE = re.compile(r"desi" + r"gn, section", re.IGNORECASE)
Public = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tracked() -> list[Path]:
    """The files under version control; without git (in an unpacked archive), all files but hidden ones."""
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


def matches(pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the lines of all tracked files that match."""
    for path in tracked():
        for number, line in enumerate((text(path) or "").splitlines(), 1):
            if pattern.search(line):
                yield f"{name(path)}:{number}: {line.strip()[:100]}"


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the modules, and the names in modules, that a module imports anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or ''}.{alias.name}" for alias in node.names)


def cycles(graph: grimp.ImportGraph) -> list[str]:
    """Return a cycle for each import that is part of one; imports in functions count too."""
    return [
        " -> ".join([importer, *way_back])
        for importer in sorted(graph.modules)
        for module in sorted(graph.find_modules_directly_imported_by(importer))
        if (way_back := graph.find_shortest_chain(importer=module, imported=importer))
    ]


def undocumented(body: list[ast.stmt]) -> list[str]:
    """Return the public functions and classes of a module that have no docstring; methods need none."""
    public = [node for node in body if isinstance(node, Public) and not node.name.startswith("_")]
    return [node.name for node in public if ast.get_docstring(node) is None]


@pytest.mark.parametrize("path", PACKAGE, ids=name)
def test_each_module_is_named_after_its_content_and_documented(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    assert path.stem not in {"utils", "util", "helpers", "common", "misc"}, "name it after its content"
    assert ast.get_docstring(tree), "the first line of a module says what it is for"
    assert undocumented(tree.body) == []


def test_no_python_file_is_too_long() -> None:
    sizes = {name(p): len((text(p) or "").splitlines()) for p in tracked() if p.suffix == ".py"}
    assert {path: size for path, size in sizes.items() if size > LINES} == {}, "split it by subject"


def test_no_two_modules_have_the_same_name() -> None:
    stems = Counter(path.stem for path in PACKAGE if path.stem not in {"__init__", "__main__"})
    assert [stem for stem, count in stems.items() if count > 1] == []


def test_no_folder_of_the_service_has_too_many_modules() -> None:
    folders = Counter(name(path.parent) for path in PACKAGE if path.stem != "__init__")
    services = {folder: count for folder, count in folders.items() if "/service/" in folder}
    assert services
    assert {folder: count for folder, count in services.items() if count > MODULES_PER_FOLDER} == {}


def test_no_module_is_part_of_an_import_cycle() -> None:
    assert cycles(grimp.build_graph("replayfilter", cache_dir=None)) == []


def test_the_oracle_of_the_tests_shares_no_code_with_the_service() -> None:
    graph = grimp.build_graph("replayfilter", cache_dir=None)
    assert graph.find_upstream_modules("replayfilter.demo.stream") == set()
    assert graph.find_upstream_modules("replayfilter.demo.check") == {"replayfilter.demo.stream"}


def test_no_test_module_imports_another_test_module() -> None:
    wrong = [
        f"{name(path)}: {module}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for module in imported(ast.parse(path.read_text("utf-8")))
        if re.match(r"(tests\.|\.).*\btest_", module)
    ]
    assert wrong == [], "move what they share to tests/support"


def test_plain_english() -> None:
    """No words that only a native speaker knows, or that the documentation of Kafka would not use."""
    assert list(matches(ODD_ENGLISH)) == []


def test_only_pages_of_this_repository_are_cited() -> None:
    assert list(matches(FOREIGN_PAGE)) == []


def test_nothing_is_left_unfinished() -> None:
    assert list(matches(UNFINISHED)) == []


def test_no_file_names_a_path_of_one_machine() -> None:
    assert list(matches(MACHINE_PATH)) == []


def test_the_rules_find_violations() -> None:
    assert UNFINISHED.search("# TO" + "DO: later")
    assert MACHINE_PATH.search("open('/ro" + "ot/x')")
    assert not MACHINE_PATH.search("https://example.org/ho" + "me/x")
    assert undocumented(ast.parse("class A: ...\ndef b(): ...\ndef _c(): ...").body) == ["A", "b"]
    for phrase in ("made an" + "ew", "me" + "nded", "Me" + "nd it", "it is to" + "ld", "never hea" + "rd of"):
        assert ODD_ENGLISH.search(phrase), phrase
    assert ODD_ENGLISH.search("3 s a million rec" + "ords")
    assert not ODD_ENGLISH.search("recommended, amended, a new one, at a million rec" + "ords per second")
    assert FOREIGN_PAGE.search("see the desi" + "gn, section 2")
    modules = imported(ast.parse("def f():\n    import a.b\n    from tests.x.test_y import z"))
    assert list(modules) == ["a.b", "tests.x.test_y.z"]
    graph = grimp.ImportGraph()
    for module in ("a", "b", "c"):
        graph.add_module(module)
    graph.add_import(importer="a", imported="b")
    assert cycles(graph) == []
    graph.add_import(importer="b", imported="a")
    assert cycles(graph) == ["a -> b -> a", "b -> a -> b"]
