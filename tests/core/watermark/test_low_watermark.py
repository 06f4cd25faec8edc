"""The low watermark of a roster, compared with a naive sort in rational arithmetic."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.watermark.low_watermark import NO_PARTITION, Completeness, LowWatermark

SHARES = ["1", "1.0", "0.999", "0.9990", "0.99", "0.9", "0.5", "0.3", "0.1", "0.001", "0.000000000000000001"]


def naive(progress: list[int], share: str) -> int:
    """The rule itself, with a sort and without rounding."""
    k = Fraction(len(progress)) * (1 - Fraction(share))
    return sorted(progress)[k.numerator // k.denominator]


def names(count: int) -> list[str]:
    return [f"host-{number}" for number in range(count)]


@pytest.mark.parametrize("share", SHARES)
def test_how_many_may_lag_is_exact_for_every_number_of_origins(share: str) -> None:
    completeness = Completeness(share)
    for origins in range(1, 12_001):
        exact = origins * (1 - Fraction(share))
        assert completeness.may_lag(origins) == exact.numerator // exact.denominator
        assert completeness.may_lag(origins) < origins


def test_known_numbers_that_floats_get_wrong() -> None:
    assert [Completeness("0.999").may_lag(n) for n in (10_000, 6_000, 500)] == [10, 6, 0]
    # As a float 1 - 0.9 is a little below 0.1, so of ten origins none could lag.
    wrong = [n for n in range(1, 10_001) if int(n * (1 - 0.9)) != Completeness("0.9").may_lag(n)]
    assert wrong, "floats would be right"


@pytest.mark.parametrize(
    "text", ["0", "0.0", "1.1", "1.0001", "2", "-0.5", "99.9", ".5", "0.5 ", "", "1e-3", "0,9"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"0\.999"):
        Completeness(text)


@pytest.mark.parametrize("seed", range(40))
def test_random_rosters_agree_with_the_naive_rule(seed: int) -> None:
    rng = random.Random(seed)
    share = rng.choice(SHARES)
    hosts = names(rng.choice([1, 2, 3, 9, 10, 11, 99, 100, 101, 999, 1_000, 1_001, 2_500]))
    low, seen, highest = LowWatermark(share, hosts), dict.fromkeys(hosts, UNKNOWN), UNKNOWN
    idle: set[str] = set()
    for step in range(60):
        match rng.randrange(8):
            case 0:
                chosen = rng.sample(hosts, rng.randint(0, len(hosts)))
                low.declare_idle(chosen)
                idle.update(chosen)
            case 1:
                new = f"new-{step}"
                assert low.add([new, hosts[0]]) == [new]
                hosts.append(new)
                seen[new] = UNKNOWN
            case 2 if len(hosts) > 1:
                gone = rng.choice(hosts)
                assert low.remove([gone, "nobody"]) == [gone]
                hosts.remove(gone)
                del seen[gone]
                idle.discard(gone)
            case _:
                chosen = rng.choices(hosts, k=rng.randint(0, 2 * len(hosts)))  # some twice
                times = [rng.randint(0, 40) + step for _ in chosen]
                assert low.advance([*chosen, "stranger"], [*times, 10**9]).unknown == ["stranger"]
                for name, time in zip(chosen, times, strict=True):
                    if time > seen[name]:
                        seen[name] = time
                        idle.discard(name)
        counted = [seen[name] for name in hosts if name not in idle]
        if counted:
            highest = max(highest, naive(counted, share))
        assert low.settle() == highest
        for time in (highest, highest + 1, step + 20):
            behind = sum(progress < time for progress in counted)
            exact = len(counted) * (1 - Fraction(share))
            k = exact.numerator // exact.denominator
            if highest < time and counted:
                assert low.missing(time) == max(behind - k, 0)
    assert dict(zip(low.names, low.progress.tolist(), strict=True)) == seen


def test_ten_of_ten_thousand_may_lag_and_the_eleventh_holds() -> None:
    hosts = names(10_000)
    low = LowWatermark("0.999", hosts)
    assert low.settle() == UNKNOWN
    low.advance(hosts[11:], [1_000] * 9_989)
    assert low.settle() == UNKNOWN, "eleven have no progress"
    assert low.missing(1_000) == 1
    low.advance([hosts[10]], [1_000])
    assert low.settle() == 1_000
    low.advance(hosts[:10], list(range(10)))
    low.advance(hosts[10:], [2_000] * 9_990)
    assert low.settle() == 2_000
    low.advance(hosts[11:], [3_000] * 9_989)
    assert low.settle() == 2_000, "the eleventh, at 2,000, holds it"
    low.remove([hosts[3]])  # of the 9,999 left nine may lag, and nine do
    assert low.settle() == 2_000


def test_it_never_goes_back() -> None:
    low = LowWatermark("1", ["a", "b"])
    low.advance(["a", "b"], [10, 20])
    assert low.settle() == 10
    low.add(["new"])
    assert low.settle() == 10
    low.advance(["new", "a"], [3, 5])  # a new origin with an old time, and a late report
    assert low.settle() == 10
    assert low.progress.tolist() == [10, 20, 3]
    restored = LowWatermark("1", ["a", "b", "new"], low=low.low)
    assert restored.settle() == 10


def test_silence_is_not_idleness_but_a_declaration_is() -> None:
    low = LowWatermark("1", ["a", "b"])
    low.advance(["a", "b"], [10, 10])
    low.advance(["b"], [10**6])
    assert low.settle() == 10
    assert low.declare_idle(["a", "stranger"]) == ["stranger"]
    assert low.settle() == 10**6
    low.advance(["a"], [9])  # an old report makes no origin active
    assert low.idle.tolist() == [True, False]
    low.advance(["a"], [11])  # a new one does
    low.advance(["b"], [2 * 10**6])
    assert low.settle() == 10**6
    low.declare_idle(["a", "b"])
    assert low.settle() == 10**6, "without active origins it stays"


def test_idle_origins_do_not_count_among_those_that_may_lag() -> None:
    hosts = names(20)
    low = LowWatermark("0.9", hosts)
    low.advance(hosts[2:], [100] * 18)
    assert low.settle() == 100, "two of twenty may lag"
    low.declare_idle(hosts[10:])
    low.advance(hosts[2:10], [200] * 8)
    assert low.settle() == 100, "one of ten may, and two do"


def test_a_caught_up_partition_makes_its_origins_idle_only_if_asked_for() -> None:
    for asked in (True, False):
        low = LowWatermark("1", ["a", "b", "c"], idle_when_caught_up=asked)
        low.advance(["a"], [10], partition=0)
        low.advance(["b", "c"], [10, 10], partition=1)
        low.set_caught_up(0, True)
        low.advance(["b", "c"], [50, 40], partition=1)
        assert low.settle() == (40 if asked else 10)
        low.set_caught_up(0, False)
        low.advance(["b", "c"], [90, 90], partition=1)
        assert low.settle() == (40 if asked else 10), "there are records to read again"
    low = LowWatermark("1", ["a", "b"], idle_when_caught_up=True)
    low.advance(["a"], [10], partition=0)
    low.set_caught_up(0, True)
    assert low.partition.tolist() == [0, NO_PARTITION]
    assert low.settle() == UNKNOWN, "b has no progress, and its partition is not known"


def test_the_ends_of_int64() -> None:
    top = 2**63 - 1
    low = LowWatermark("1", ["a", "b"])
    low.advance(["a", "b"], np.array([top, -top], np.int64))
    assert low.settle() == -top
    low.advance(["b"], [top])
    assert low.settle() == top
    assert LowWatermark("1").settle() == UNKNOWN
