"""The examples in README.md and docs/ work: TOML blocks are valid configs, Python blocks run."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from replayfilter.service.config.loader import load
from replayfilter.watermark.server_config import load as load_watermark
from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Completes an example that shows only a part of a config.
REST = """
[service]
name = "orders"
checkpoint = "checkpoint/orders"
[kafka]
bootstrap = "localhost:9092"
[input]
topics = ["orders"]
[dedup]
key = ["event_id"]
expiry_key = "ts"
period = "1h"
[output]
unique = "orders.unique"
duplicate = "orders.duplicate"
expired = "orders.expired"
error = "orders.error"
"""


def blocks(language: str) -> list[Any]:
    """Return the text of each block in a language, with page and line as its id."""
    cases = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for found in BLOCK.finditer(text):
            if found[1] == language:
                line = text.count("\n", 0, found.start()) + 1
                cases.append(pytest.param(found[2], id=f"{page.name}:{line}"))
    return cases


def completed(block: str) -> str:
    """Return the block with the required keys that it doesn't have; a whole config as it is."""
    whole, given = tomllib.loads(REST), tomllib.loads(block)
    if given.keys() >= whole.keys():
        return block
    if given.get("input", {}).get("format") in ("cloudevents", "debezium"):  # which set these keys
        del whole["dedup"]["key"], whole["dedup"]["expiry_key"]
    for section, keys in given.items():
        whole[section] = whole.get(section, {}) | keys
    return "".join(written(section, keys) for section, keys in whole.items())


def written(name: str, table: dict[str, Any]) -> str:
    """Return a table as TOML; JSON's plain values are valid TOML."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"[{name}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in plain.items())]
    deeper = (written(f"{name}.{key}", value) for key, value in table.items() if isinstance(value, dict))
    return "\n".join(lines) + "\n" + "".join(deeper)


@pytest.mark.parametrize("block", blocks("toml"))
def test_each_toml_block_is_a_valid_config(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in re.findall(r"\$\{(\w+)\}", block):
        monkeypatch.setenv(name, "secret")
    monkeypatch.chdir(tmp_path)
    for name in re.findall(r'"([\w./-]+\.(?:txt|avsc))"', block):  # files that it names
        Path(name).write_text(
            '{"type": "record", "name": "R", "fields": []}' if name.endswith("avsc") else "a\n"
        )
    for name in re.findall(r'"([\w./-]+\.desc)"', block):
        Path(name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "tests" / "vectors" / "order.desc", name)
    path = tmp_path / "example.toml"
    if "stages" in tomllib.loads(block):
        path.write_text(block)
        load_watermark(path)
    else:
        path.write_text(completed(block))
        load(path)


def needs_a_server(block: str) -> bool:
    """Whether it needs a broker, a server or a cluster; such examples run in other tests."""
    return bool(re.search(r"localhost:\d|127\.0\.0\.1|https?://|bootstrap|SparkSession|\bspark\b", block))


@pytest.mark.parametrize("block", blocks("python"))
def test_each_python_block_runs(block: str) -> None:
    code = compile(block, "example", "exec")
    if needs_a_server(block):
        # Its imports must work, at least.
        imports = [line for line in block.splitlines() if re.match(r"(from|import) ", line)]
        code = compile("\n".join(imports), "example", "exec")
    exec(code, {"__name__": "example"})


def test_a_wrong_example_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "example.toml"
    path.write_text(completed('[replay]\nmark_tll = "1h"\n'))
    with pytest.raises(Exception, match="mark_tll"):
        load(path)
