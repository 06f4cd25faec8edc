"""Marks as text for offset metadata: nothing is lost, the text is short, other texts are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayfilter.client.offset_metadata import marks_from_text, marks_to_text
from replayfilter.errors import StampError

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
SOURCES = st.tuples(INT64, st.integers(-(1 << 31), (1 << 31) - 1))
HOUR = 490_000


@given(st.dictionaries(SOURCES, st.tuples(INT64, st.integers(0, 500)), max_size=20))
def test_marks_come_back_as_they_were(kept: dict[tuple[int, int], tuple[int, int]]) -> None:
    marks = {source: mark for source, (mark, _) in kept.items()}
    seen = {source: HOUR - age for source, (_, age) in kept.items()}
    text = marks_to_text(marks, seen, HOUR)
    assert marks_from_text(text) == (marks, seen)
    assert text.isascii()


def test_a_source_takes_about_nine_characters() -> None:
    marks = {(-5, partition): 10**9 + partition for partition in range(0, 800, 4)}
    assert len(marks_to_text(marks, dict.fromkeys(marks, HOUR), HOUR)) < 9 * len(marks) + 20


def test_an_incomplete_or_foreign_text_is_refused() -> None:
    text = marks_to_text({(1, 2): 300}, {(1, 2): HOUR}, HOUR)
    for wrong in [text[:cut] for cut in range(1, len(text))] + ["spark", "{}", "é", "0" * 20]:
        with pytest.raises(StampError, match="give this one its own group"):
            marks_from_text(wrong)
