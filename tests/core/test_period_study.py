"""What a study says of each period is what the slow model decides with that period."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock.periods import PERIODS_US
from replayfilter.core.digest import digest_keys
from replayfilter.core.period_study import PeriodStudy, Result, Rows
from replayfilter.core.routing import Route
from replayfilter.core.rules import Rules
from tests.support.reference import Model, Position, Record

SECOND, HOUR, DAY = 10**6, 3600 * 10**6, 86_400 * 10**6
NOW_US = 1_700_000_000 * SECOND

Slices = list[dict[int, list[Record]]]  # the records of each input partition


def stream(seed: int, slices: int = 12, longest_s: int = 200_000) -> Slices:
    """Out of order, with keys that come again after seconds or days, very old records and future ones."""
    random = Random(seed)
    found: Slices = []
    now, keys, offset = NOW_US // SECOND - longest_s, 0, 0
    for _ in range(slices):
        batch: dict[int, list[Record]] = {}
        for partition in range(random.choice((1, 3))):
            records = batch.setdefault(partition, [])
            for _ in range(random.randrange(25)):
                now += random.choice((0, 1, 7, longest_s // slices // 20))
                late = random.choice((0, 0, 1, 9, 10, 59, 60, 61, 3_600, 100_000))
                key = keys if random.random() < 0.5 else max(0, keys - random.randrange(1, 30))
                keys += key == keys
                expiry = now - late + (10**9 if random.random() < 0.02 else 0)
                records.append(Record(Position("t", partition, offset), None, None, key, expiry))
                offset += 1
        found.append(batch)
    return found


def digests_of(records: list[Record]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return digest_keys([[record.key for record in records]])


def study_of(slices: Slices, capacity: int = 1_000_000) -> Result:
    study = PeriodStudy("s", NOW_US // SECOND, capacity)
    for batch in slices:
        for partition, records in batch.items():
            half = len(records) // 2
            for part in (records[:half], records[half:]):
                offsets = np.array([record.position.offset for record in part], np.int64)
                expiry = np.array([record.expiry for record in part], np.int64)
                contents = np.array([record.position.offset % 2 for record in part], np.uint64)
                digests = digests_of(part) if part else np.zeros((0, 2), np.uint64)
                study.add(partition, Rows(offsets, expiry, digests, contents))
        study.end_slice()
    return study.result()


def decided(slices: Slices, period_us: int) -> Counter[Route]:
    model = Model(Rules(replay=False, unit="s", period=period_us // SECOND, span=1), 0)
    routes: Counter[Route] = Counter()
    for batch in slices:
        records = [record for own in batch.values() for record in own]
        facts = BatchFacts.at(NOW_US)
        routes.update(decision.route for decision in model.decide(records, facts).values())
    return routes


@pytest.mark.parametrize("seed", range(40))
def test_each_period_has_the_routes_that_the_model_decides(seed: int) -> None:
    slices = stream(seed)
    result = study_of(slices)
    assert [choice.period_us for choice in result.choices] == list(PERIODS_US)
    for choice in result.choices:
        routes = decided(slices, choice.period_us)
        assert choice.unique == routes[Route.UNIQUE], choice
        assert choice.duplicates == routes[Route.DUPLICATE], choice
        assert choice.expired == routes[Route.EXPIRED], choice
        assert result.future == routes[Route.FUTURE]
    assert result.records == sum(result.lateness)
    assert result.repeats == sum(result.distances)


def test_a_key_that_comes_all_the_time_is_accepted_once_per_period() -> None:
    start = NOW_US // SECOND - 7_200
    records = [Record(Position("t", 0, at), None, None, 1, start + at) for at in range(7_200)]
    choices = {choice.period_us: choice for choice in study_of([{0: records}]).choices}
    assert (choices[10 * SECOND].unique, choices[10 * SECOND].duplicates) == (720, 6_480)
    assert (choices[HOUR].unique, choices[HOUR].duplicates) == (2, 7_198)


def test_lengths_and_contents() -> None:
    start = NOW_US // SECOND - 10_000
    times = [0, 5, 5, 4_000, 4_000, 9_999]  # each key is that of the record two before
    records = [Record(Position("t", 0, at), None, None, at % 2, start + t) for at, t in enumerate(times)]
    result = study_of([{0: records}])
    assert (result.repeats, result.changed) == (4, 0)
    assert result.distances == [1, 0, 0, 0, 0, 3, *[0] * (len(PERIODS_US) - 5)]
    assert result.length_us == 9_999 * SECOND
    assert [choice.seen for choice in result.choices[:6]] == [True] * 5 + [False]


def test_state_is_what_the_documented_bytes_per_key_say() -> None:
    start = NOW_US // SECOND - 100_000
    records = [Record(Position("t", 0, at), None, None, at, start + at * 10) for at in range(10_000)]
    choices = {choice.period_us: choice for choice in study_of([{0: records}]).choices}
    hour = choices[HOUR]
    assert hour.keys == pytest.approx(390, rel=0.01)  # 360 in the period, and a twelfth of it
    assert hour.keys
    assert hour.state_bytes == hour.keys * 20
    month = choices[30 * DAY]
    assert month.keys == pytest.approx(280_800, rel=0.01)
    assert not month.seen


def test_ages_take_eight_bytes_with_wide_spans_of_fine_units() -> None:
    study = PeriodStudy("us", NOW_US)
    times = np.arange(NOW_US - HOUR, NOW_US, 10**6, np.int64)
    digests = digest_keys([list(range(len(times)))])
    study.add(0, Rows(np.arange(len(times)), times, digests, np.zeros(len(times), np.uint64)))
    sizes = {choice.period_us: (choice.state_bytes, choice.keys) for choice in study.result().choices}
    for period, bytes_each in ((12 * HOUR, 20), (DAY, 24)):
        state, keys = sizes[period]
        assert keys
        assert state == keys * bytes_each


def test_with_too_many_records_some_keys_stand_for_all() -> None:
    random, start = Random(5), NOW_US // SECOND - 40_000
    records = [
        Record(Position("t", 0, at), None, None, random.randrange(10_000), start + at) for at in range(40_000)
    ]
    all_, some = study_of([{0: records}]), study_of([{0: records}], capacity=6_000)
    assert (all_.share, some.share) == (1, 1 / 8)
    assert some.records == all_.records == 40_000
    assert some.lateness == all_.lateness
    assert some.repeats == pytest.approx(all_.repeats, rel=0.1)
    for exact, scaled in zip(all_.choices, some.choices, strict=True):
        assert scaled.unique + scaled.duplicates == pytest.approx(40_000, rel=0.1)
        assert scaled.unique == pytest.approx(exact.unique, rel=0.1)


def test_a_short_sample_says_nothing_about_long_periods() -> None:
    start = NOW_US // SECOND - 30
    records = [Record(Position("t", 0, at), None, None, at, start + at) for at in range(21)]
    known = {choice.period_us: choice.keys is not None for choice in study_of([{0: records}]).choices}
    assert (known[DAY], known[14 * DAY], known[30 * DAY]) == (True, True, False)


def test_nothing_to_study() -> None:
    study = PeriodStudy("ms", 0)
    none = np.zeros(0, np.int64)
    study.add(0, Rows(none, none, np.zeros((0, 2), np.uint64), none.view(np.uint64)))
    study.end_slice()
    result = study.result()
    assert (result.records, result.repeats, result.length_us) == (0, 0, 0)
    assert {(choice.unique, choice.keys) for choice in result.choices} == {(0, None)}


def test_the_oldest_and_the_newest_expiry_key() -> None:
    study = PeriodStudy("ns", 2**63 - 1)
    expiry = np.array([-(2**63), 2**62, -(2**63), 0], np.int64)
    digests = np.array([[0, 8], [0, 16], [0, 8], [0, 16]], np.uint64)
    study.add(3, Rows(np.arange(4), expiry, digests, np.zeros(4, np.uint64)))
    result = study.result()
    assert result.lateness[-1] == 2
    assert {(choice.unique, choice.duplicates, choice.expired) for choice in result.choices} == {(2, 0, 2)}
