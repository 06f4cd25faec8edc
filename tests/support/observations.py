"""Observations for tests of the low watermark."""

from __future__ import annotations

import numpy as np

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.watermark.carried import UNNAMED, Carried
from replayfilter.core.watermark.watermark_state import Observation


def observation(carried: int = UNKNOWN, **times: int) -> Observation:
    """An observation of origins with their times, and of a carried watermark."""
    lows = () if carried == UNKNOWN else (Carried(0, UNNAMED, carried),)
    return Observation(tuple(times), np.array(list(times.values()), np.int64), lows)
