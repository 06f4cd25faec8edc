"""Counts: a closed list, each with the aggregate that fits it."""

from __future__ import annotations

import pytest

from replayfilter.core.stats import STATS, Aggregate
from replayfilter.spark.counts import COUNTS, LAGGARDS, ROW, count_row, total


def test_counts_are_a_closed_list() -> None:
    with pytest.raises(KeyError, match="other"):
        count_row({"other": 1})
    assert {f"state_{stat.name}" for stat in STATS} <= COUNTS.keys()


def rows(*counts: dict[str, int], laggards: str = "") -> list[str]:
    """The texts that Spark collects of these counts, with the laggards in the first one."""
    texts = [laggards, *[""] * (len(counts) - 1)]
    return [
        str(count_row(each, text).column(ROW)[0].as_py()) for each, text in zip(counts, texts, strict=True)
    ]


def test_the_counts_of_a_batch_are_those_of_its_rows() -> None:
    counts = total(rows({"unique": 3, "newest_ms": 7}, {"unique": 2, "newest_ms": 5}, laggards="orders-0"))
    assert counts == dict.fromkeys(COUNTS, 0) | {"unique": 5, "newest_ms": 7, LAGGARDS: "orders-0"}
    assert total([]) == dict.fromkeys(COUNTS, 0) | {LAGGARDS: ""}


def test_what_all_shards_know_is_not_added_up() -> None:
    largest = {name for name, count in COUNTS.items() if count.aggregate is Aggregate.MAX}
    assert largest == {
        "newest_ms", "delay_ms", "watermark_us",
        "state_sources", "state_gaps", "state_forgotten", "state_spread",
    }  # fmt: skip
