"""The cases by which such a watermark was first judged, with 10,000 origins and hourly windows at 99.9%."""

from __future__ import annotations

import numpy as np

from benchmarks.watermark_cases import CASES, HOUR_S, ORIGINS, Stall, replay_stall, replay_windows

HOURS = 6
PROMPT_S = 120  # an origin writes once a minute


def test_without_delay_every_window_closes_at_once_and_whole() -> None:
    windows = replay_windows(CASES["no delay"], HOURS)
    assert [window.hour for window in windows] == list(range(HOURS))
    assert all(window.full == ORIGINS * 60 for window in windows)
    assert all(window.at_s - (window.hour + 1) * HOUR_S <= PROMPT_S for window in windows)
    assert all(window.difference <= 0.001 for window in windows)
    assert max(window.difference for window in windows) == 0, "nobody lags, so nothing is lacking"


def test_a_thousandth_delayed_holds_nothing_back_and_is_what_is_lacking() -> None:
    windows = replay_windows(CASES["0.1% delayed for three hours"], HOURS)
    assert [window.hour for window in windows] == list(range(HOURS))
    assert all(window.at_s - (window.hour + 1) * HOUR_S <= PROMPT_S for window in windows)
    # Away from 5,000 s to 15,800 s: part of the second hour, all of the third and fourth.
    lacking = [window.difference for window in windows]
    assert lacking[0] == lacking[4] == lacking[5] == 0
    assert 0 < lacking[1] < 0.001
    assert np.allclose(lacking[2:4], 10 / ORIGINS, rtol=1e-9)


def test_more_than_a_thousandth_delayed_holds_every_window_until_the_data_is_there() -> None:
    delay = CASES["0.5% delayed for two to three hours"]
    assert delay is not None
    windows = replay_windows(delay, HOURS)
    assert [window.hour for window in windows] == list(range(HOURS))
    assert windows[0].at_s - HOUR_S <= PROMPT_S, "nobody was away yet"
    fortieth = int(np.sort(delay.back)[39])  # then only ten are left, who may lag
    held = [
        window for window in windows if window.at_s > 2 * HOUR_S and (window.hour + 1) * HOUR_S < fortieth
    ]
    assert [window.hour for window in held] == [1, 2, 3]
    for window in held:
        assert fortieth <= window.at_s <= fortieth + PROMPT_S
        assert 0 < window.difference <= 0.001
    assert all(window.difference <= 0.001 for window in windows)
    assert all(window.at_s - (window.hour + 1) * HOUR_S <= PROMPT_S for window in windows[4:])


def test_a_stall_of_a_third_loses_nothing_of_ours_and_ten_minutes_of_spark_s() -> None:
    stall = Stall()
    batches = replay_stall(stall)
    records = np.concatenate([batch.times for batch in batches])
    origins = np.concatenate([batch.origins for batch in batches])
    assert len(set(zip(origins.tolist(), records.tolist(), strict=True))) == len(records), "each record once"
    assert len(records) == stall.origins * stall.length_s // stall.every_s, "and none is missing"
    assert sum(batch.ours for batch in batches) == 0
    lost = sum(batch.spark for batch in batches)
    expected = stall.stalled * (stall.end_s - stall.start_s - stall.allowed_s) / stall.every_s
    assert abs(lost - expected) < 0.05 * expected
    assert batches[0].spark == stall.origins // stall.every_s, "at second 0, which Spark takes for late"
    assert all(batch.spark == 0 for batch in batches[1:] if not stall.end_s <= batch.at_s <= stall.end_s + 20)
    lows = [batch.ours_low for batch in batches]
    assert lows == sorted(lows)
    during = [batch.ours_low for batch in batches if stall.start_s + 30 < batch.at_s <= stall.end_s]
    assert max(during) < stall.start_s, "it stands still and says so, while Spark's goes on"
