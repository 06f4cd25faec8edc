"""What the offset log keeps of a batch: read as it was written, also as Spark's connector wrote it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayfilter.spark.batch_range import BatchEnd, last_line

OFFSETS = st.dictionaries(
    st.tuples(st.from_regex(r"[a-zA-Z0-9._-]{1,9}", fullmatch=True), st.integers(0, 2**31 - 1)),
    st.integers(0, 2**63 - 1),
    max_size=5,
)
LOWS = st.dictionaries(st.text(max_size=5), st.integers(-(2**63), 2**63 - 1), max_size=3)
ENDS = st.builds(
    BatchEnd, OFFSETS, st.integers(1, 2**60), OFFSETS, OFFSETS, st.integers(0, 10**6), upstream=LOWS
)


@given(ENDS)
def test_it_is_read_as_it_was_written(end: BatchEnd) -> None:
    assert BatchEnd.from_json(json.loads(json.dumps(end.to_json()))) == end


@given(OFFSETS)
def test_offsets_of_sparks_connector_are_ends_without_more(ends: dict[tuple[str, int], int]) -> None:
    logged = BatchEnd(ends).to_json()
    assert all(not topic.startswith("@") for topic in logged)
    assert BatchEnd.from_json(logged) == BatchEnd(ends)


def test_the_json_is_the_last_line_of_an_entry() -> None:
    assert last_line(b'\0v1\n{"t":{"0":1}}') == '{"t":{"0":1}}'  # as the connector wrote its first offsets
    for damaged in (b"", b"v1", b'v1\n{"t":{"0":1}}\n'):
        with pytest.raises(ValueError, match="substring not found"):
            last_line(damaged)
