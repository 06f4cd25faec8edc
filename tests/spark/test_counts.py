"""Counts: a closed list, each with the aggregate that fits it."""

from __future__ import annotations

import pytest

from replayfilter.core.stats import STATS, Aggregate
from replayfilter.spark.counts import COUNTS, count_row


def test_counts_are_a_closed_list() -> None:
    assert count_row({"unique": 3}).to_pylist()[0]["unique"] == 3
    with pytest.raises(KeyError, match="other"):
        count_row({"other": 1})
    assert {f"state_{stat.name}" for stat in STATS} <= COUNTS.keys()


def test_what_all_shards_know_is_not_added_up() -> None:
    largest = {name for name, count in COUNTS.items() if count.aggregate is Aggregate.MAX}
    assert largest == {
        "newest_ms", "delay_ms", "watermark_us",
        "state_sources", "state_gaps", "state_forgotten", "state_spread",
    }  # fmt: skip
