"""The clocks: what decides how old a record is.

A record is expired when its expiry key is a period or more behind the *latest point*. The clocks differ
in what sets the latest point, and in what an expiry key is:

===============  =================================  ==========================================
clock            latest point                       expiry key
===============  =================================  ==========================================
``tuple``        the largest expiry key so far      a time
``system``       the largest batch time so far      a time
``watermark``    the low watermark                  a time
``ordered``      the largest expiry key so far      an integer in a unit of its own
``categorical``  none: categories close one by one  a category, without order
``none``         none: nothing expires              not used
===============  =================================  ==========================================

Every decision that depends on the clock asks one of the properties below, so a new clock is a new line
in each of them, and a new source of the latest point in ``batch_clock.py``.
"""

from __future__ import annotations

from enum import StrEnum


class Clock(StrEnum):
    """A clock, under the name that the config and the identity of a checkpoint have for it.

    >>> [clock.value for clock in Clock if clock.moved_by_records]
    ['tuple', 'ordered']
    """

    TUPLE = "tuple"
    SYSTEM = "system"
    WATERMARK = "watermark"
    ORDERED = "ordered"
    CATEGORICAL = "categorical"
    NONE = "none"

    @property
    def expires(self) -> bool:
        """Whether records expire at all."""
        return self is not Clock.NONE

    @property
    def has_latest_point(self) -> bool:
        """Whether there is one latest point, and the distance from it is a record's age."""
        return self not in (Clock.CATEGORICAL, Clock.NONE)

    @property
    def moved_by_records(self) -> bool:
        """Whether the latest point is the largest expiry key so far."""
        return self in (Clock.TUPLE, Clock.ORDERED)

    @property
    def reads_time(self) -> bool:
        """Whether expiry keys are times: then they have a unit of time, and can be in the future."""
        return self in (Clock.TUPLE, Clock.SYSTEM, Clock.WATERMARK)

    @property
    def reads_integers(self) -> bool:
        """Whether the period is a plain integer, because expiry keys have no unit of time."""
        return self in (Clock.ORDERED, Clock.CATEGORICAL)

    @property
    def limits_jumps(self) -> bool:
        """Whether ``max_jump`` may limit how far one record moves the latest point."""
        return self is Clock.ORDERED
