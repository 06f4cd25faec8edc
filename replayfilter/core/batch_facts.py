"""What is known of a batch when it is planned, and what all of its attempts and shards must agree on."""

from __future__ import annotations

from typing import NamedTuple

CLOCK_STEP_US = 3600 * 10**6  # a clock that is further ahead than this at once may be wrong


class BatchFacts(NamedTuple):
    """What the shards must know of a batch; all times are in microseconds since the epoch.

    - ``time_us``: the batch time.
    - ``believed_us``: the same, unless the clock has jumped ahead; see :func:`believed_time`.
    - ``caught_up``: whether the batch has all that could be read when it was planned.
    - ``upstream``: the services before this one, each with its low watermark. All that they had written
      before they had these watermarks is in this batch or an earlier one.
    """

    time_us: int
    believed_us: int
    caught_up: bool
    upstream: tuple[tuple[str, int], ...] = ()

    @classmethod
    def at(cls, time_us: int) -> BatchFacts:
        """A batch at a time that is believed, with all that could be read."""
        return cls(time_us, time_us, True)


def believed_time(time_us: int, last_us: int | None, passed_us: int) -> int:
    """The time of a batch that is believed: a jump ahead counts only once the next batch confirms it.

    ``last_us``: the time of the batch before, None for the first. ``passed_us``: how long ago that was
    planned, by a clock that nobody sets; 0 if it is not known, because the service was started after that.

    >>> hour = CLOCK_STEP_US
    >>> believed_time(50 * hour, 2 * hour, 3), believed_time(50 * hour + 3, 50 * hour, 3)
    (7200000003, 180000000003)
    >>> believed_time(5 * hour, 2 * hour, 3 * hour)
    18000000000
    """
    if last_us is None or time_us <= last_us + passed_us + CLOCK_STEP_US:
        return time_us
    return last_us + passed_us
