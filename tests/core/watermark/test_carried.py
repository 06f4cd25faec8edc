"""The services before this one in an input partition: which count, and which are forgotten."""

from __future__ import annotations

import random

import numpy as np
import pytest

from replayfilter.core.watermark.carried import (
    FORGOTTEN_AFTER_US,
    UNNAMED,
    Carried,
    Upstreams,
    advance,
    last_of_runs,
)

TTL = FORGOTTEN_AFTER_US


def batch(known: Upstreams, time_us: int, **lows: int) -> Upstreams:
    """The services after a batch in which these carry watermarks; ``unnamed`` stands for no name."""
    names = {"unnamed": UNNAMED}
    return advance(known, [Carried(0, names.get(name, name), low) for name, low in lows.items()], time_us)


def lows_of(known: Upstreams) -> dict[str, int]:
    return {name: each.low for name, each in known.items()}


def test_the_largest_watermark_of_a_service_counts() -> None:
    known = batch({}, 0, a=5, b=3)
    known = batch(known, 1, a=4, b=7)
    assert lows_of(known) == {"a": 5, "b": 7}


def test_a_service_is_forgotten_after_a_silence_that_others_fill() -> None:
    known = batch({}, 0, a=0, b=0)
    known = batch(known, TTL, a=TTL)
    assert lows_of(known) == {"a": TTL, "b": 0}, "not yet"
    known = batch(known, TTL + 1, a=TTL + 1)
    assert lows_of(known) == {"a": TTL + 1}
    assert lows_of(batch(known, TTL + 2, b=1)) == {"a": TTL + 1, "b": 1}, "it may come back"


def test_a_service_is_not_forgotten_while_this_one_is_down() -> None:
    known = batch({}, 0, a=0, b=0)
    known = batch(known, 10 * TTL, a=5)
    assert lows_of(known) == {"a": 5, "b": 0}


def test_a_service_is_not_forgotten_when_another_one_catches_up() -> None:
    known = batch({}, 0, a=0, b=10 * TTL)
    known = batch(known, 5, a=20 * TTL)
    assert lows_of(known) == {"a": 20 * TTL, "b": 10 * TTL}


def test_a_service_whose_watermark_stands_still_is_not_forgotten() -> None:
    known = batch({}, 0, a=0, b=0)
    for number in range(1, 5):
        known = batch(known, number * 2 * TTL, a=number * 2 * TTL, b=0)
    assert lows_of(known) == {"a": 8 * TTL, "b": 0}


def test_the_fastest_service_is_never_forgotten() -> None:
    known = batch({}, 0, a=0, b=9)
    assert lows_of(batch(known, 10 * TTL, a=5)) == {"a": 5, "b": 9}


def test_records_without_a_name_count_until_their_service_gives_one() -> None:
    known = batch({}, 0, unnamed=5)
    known = batch(known, 1, unnamed=6, a=6)
    assert lows_of(known) == {UNNAMED: 6, "a": 6}
    assert lows_of(batch(known, 2, a=6)) == {UNNAMED: 6, "a": 6}
    assert lows_of(batch(known, 2, a=7)) == {"a": 7}


@pytest.mark.parametrize("seed", range(30))
def test_the_last_of_each_run(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randint(0, 60)
    sources = [(rng.randint(0, 2), rng.randint(0, 1)) for _ in range(n)]
    codes = [rng.randint(0, 2) for _ in range(n)]
    expected = []
    for row in range(n):
        later = [codes[other] for other in range(row + 1, n) if sources[other] == sources[row]]
        expected.append(not later or later[0] != codes[row])
    columns = [np.array([source[number] for source in sources], np.int64) for number in (0, 1)]
    assert last_of_runs(columns, np.array(codes, np.int64)).tolist() == expected
