"""Links in the pages at the repository's root lead somewhere. `make docs` checks those within docs/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from replayfilter.core.watermark.carried import SERVICE_HEADER, WATERMARK_HEADER
from replayfilter.service.tools.redrive.dead_letter import REDRIVEN_HEADER
from replayfilter.spark.error_reasons import REASONS
from replayfilter.spark.output_headers import (
    CONFLICT_HEADER,
    CONNECT_HEADERS,
    CONNECT_MESSAGE,
    FIRST_HEADER,
    LATE_HEADER,
)
from tests.support.paths import ROOT

PAGES = sorted(ROOT.glob("*.md"))
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The anchors that a page's headings have on the web."""
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {each.replace(" ", "-") for each in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for path, anchor in LINK.findall(page.read_text("utf-8")):
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            broken.append(f"{path}#{anchor}")
    assert broken == []


def test_every_reason_and_header_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "reference" / "reasons-and-headers.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(REASONS)
    headers = set(re.findall(r"^\| `((?:rf-|__)[\w.-]+)` \|", text, re.MULTILINE))
    others = {WATERMARK_HEADER, SERVICE_HEADER, CONNECT_MESSAGE, *CONNECT_HEADERS, LATE_HEADER, FIRST_HEADER}
    assert (
        headers
        == {"rf-stamp", "rf-reason", "rf-message", "rf-stage", CONFLICT_HEADER, REDRIVEN_HEADER} | others
    )
