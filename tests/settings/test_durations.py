"""Durations, sizes and counts in configuration files."""

from __future__ import annotations

import pytest

from replayfilter.settings.durations import length_in_units, parse_bytes, parse_duration


def test_lengths_are_exact() -> None:
    assert [parse_duration(t) for t in ("7us", "250ms", "10s", "5m", "48h", "1d")] == [
        7, 250_000, 10_000_000, 300_000_000, 172_800_000_000, 86_400_000_000,
    ]  # fmt: skip
    assert length_in_units("9007199254740993us", "us") == 2**53 + 1, "no float on the way"
    assert length_in_units("1us", "ns") == 1000
    assert length_in_units("12", "integer") == 12
    assert (parse_bytes("1KiB"), parse_bytes(77), parse_bytes("2 GB")) == (1024, 77, 2 * 10**9)


@pytest.mark.parametrize(
    "text", ["", "5", "h", "-1s", "1.5h", "1h30m", "1H", "1e3s", "\u0661s", 5, None, True, "1 week"]
)
def test_texts_that_are_no_durations(text: object) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("value", ["1h", 1.0, True, "", "-1"])
def test_values_that_are_no_counts(value: object) -> None:
    with pytest.raises(ValueError, match="not a plain integer"):
        length_in_units(value, "integer")
