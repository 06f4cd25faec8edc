"""Windows of an hour at a completeness of 99.9%, with 10,000 origins of which some are delayed."""

from __future__ import annotations

import numpy as np

from benchmarks.watermark_cases import CASES, HOUR_S, ORIGINS, Stall, replay_stall, replay_windows

HOURS = 6
PROMPT_S = 120  # an origin writes once a minute


def test_without_delay_every_window_is_complete_at_once() -> None:
    windows = replay_windows(CASES["no delay"], HOURS)
    assert [window.hour for window in windows] == list(range(HOURS))
    assert all(window.full == ORIGINS * 60 for window in windows)
    assert all(window.at_s - (window.hour + 1) * HOUR_S <= PROMPT_S for window in windows)
    assert all(window.difference <= 0.001 for window in windows)
    assert max(window.difference for window in windows) == 0, "no origin lags, so no record is missing"


def test_a_delayed_thousandth_delays_no_window_and_its_records_are_missing() -> None:
    windows = replay_windows(CASES["0.1% delayed for three hours"], HOURS)
    assert [window.hour for window in windows] == list(range(HOURS))
    assert all(window.at_s - (window.hour + 1) * HOUR_S <= PROMPT_S for window in windows)
    # Delayed from 5,000 s to 15,800 s: part of the second hour, all of the third and fourth.
    missing = [window.difference for window in windows]
    assert missing[0] == missing[4] == missing[5] == 0
    assert 0 < missing[1] < 0.001
    assert np.allclose(missing[2:4], 10 / ORIGINS, rtol=1e-9)


def test_more_than_a_delayed_thousandth_delays_every_window() -> None:
    delay = CASES["0.5% delayed for two to three hours"]
    assert delay is not None
    windows = replay_windows(delay, HOURS)
    assert [window.hour for window in windows] == list(range(HOURS))
    assert windows[0].at_s - HOUR_S <= PROMPT_S, "no origin is delayed yet"
    fortieth = int(np.sort(delay.back)[39])  # from then on ten origins are delayed, and ten may lag
    held = [
        window for window in windows if window.at_s > 2 * HOUR_S and (window.hour + 1) * HOUR_S < fortieth
    ]
    assert [window.hour for window in held] == [1, 2, 3]
    for window in held:
        assert fortieth <= window.at_s <= fortieth + PROMPT_S
        assert 0 < window.difference <= 0.001
    assert all(window.difference <= 0.001 for window in windows)
    assert all(window.at_s - (window.hour + 1) * HOUR_S <= PROMPT_S for window in windows[4:])


def test_a_bound_on_lateness_closes_windows_whoever_is_missing() -> None:
    delay = CASES["0.5% delayed for two to three hours"]
    for bound_s, lacks in ((60, 50 / ORIGINS), (600, 50 / ORIGINS), (3 * HOUR_S, 0.0)):
        windows = replay_windows(delay, HOURS, bound_s=bound_s)
        assert [window.hour for window in windows] == list(range(HOURS))
        assert all(window.at_s == (window.hour + 1) * HOUR_S + bound_s for window in windows)
        assert np.isclose(max(window.difference for window in windows), lacks, rtol=1e-9)


def test_a_stall_of_a_third_loses_no_record_here_and_ten_minutes_in_spark() -> None:
    stall = Stall()
    batches = replay_stall(stall)
    records = np.concatenate([batch.times for batch in batches])
    origins = np.concatenate([batch.origins for batch in batches])
    assert len(set(zip(origins.tolist(), records.tolist(), strict=True))) == len(records), "each record once"
    assert len(records) == stall.origins * stall.length_s // stall.every_s, "and no record is missing"
    assert sum(batch.ours for batch in batches) == 0
    lost = sum(batch.spark for batch in batches)
    expected = stall.stalled * (stall.end_s - stall.start_s - stall.allowed_s) / stall.every_s
    assert abs(lost - expected) < 0.05 * expected
    assert batches[0].spark == stall.origins // stall.every_s, "records of second 0 are late for Spark"
    assert all(batch.spark == 0 for batch in batches[1:] if not stall.end_s <= batch.at_s <= stall.end_s + 20)
    lows = [batch.ours_low for batch in batches]
    assert lows == sorted(lows)
    during = [batch.ours_low for batch in batches if stall.start_s + 30 < batch.at_s <= stall.end_s]
    assert max(during) < stall.start_s, "our watermark waits, Spark's advances"
