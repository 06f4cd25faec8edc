"""The messages that docs/guides/faults.md quotes are those of the code, word for word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "guides" / "faults.md"
VALUE = "…"
QUOTED = re.findall(r"^```text\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def messages() -> Iterator[str]:
    """All texts in the package, with … for each value that is put into them."""
    for path in sorted((ROOT / "replayfilter").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
                yield re.sub(f"{VALUE}+", VALUE, "".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


TEXTS = list(messages())


@pytest.mark.parametrize("quoted", [line for block in QUOTED for line in block.splitlines()])
def test_each_quoted_message_is_in_the_code(quoted: str) -> None:
    assert any(quoted in text for text in TEXTS)


def test_the_page_quotes_messages() -> None:
    assert len(QUOTED) > 20


def test_another_message_would_be_found() -> None:
    assert not any("consumer group … has lost its offsets" in text for text in TEXTS)
