"""Units of time, and times as int64.

An expiry key is an int64 in its own unit; inside the service every other time is in microseconds since
the epoch. The conversions here round down and never overflow.
"""

from __future__ import annotations

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
UNKNOWN = INT64_MIN  # a time that is not known yet: every other time is larger

UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1, "iso8601": 10**3}  # iso8601 keys are held in us
_US_NS = 1_000


def time_in_unit(time_us: int, unit: str) -> int:
    """A time in microseconds since the epoch as a whole number of ``unit``, rounded down.

    >>> time_in_unit(1_999_999, "s")
    1
    """
    return time_us * _US_NS // UNIT_NS[unit]


def length_in_ms(length: int, unit: str) -> int:
    """A length in ``unit`` as whole milliseconds, rounded down; one in a unit that is no time as it is.

    >>> length_in_ms(3, "s"), length_in_ms(3_999, "us"), length_in_ms(7, "integer")
    (3000, 3, 7)
    """
    return length * UNIT_NS[unit] // UNIT_NS["ms"] if unit in UNIT_NS else length


def future_threshold(batch_time_us: int, max_future_us: int, unit: str) -> int:
    """The largest expiry key, in ``unit``, that is not in the future; clipped to int64.

    >>> future_threshold(5_000_000, 600_000_000, "s")
    605
    """
    return min(time_in_unit(batch_time_us + max_future_us, unit), INT64_MAX)
