"""Times in commands and query parameters."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)


def parse_time(text: str) -> int:
    """A time in microseconds since the epoch, from ISO 8601 (UTC if there is no offset) or a plain number.

    Raises ``ValueError`` for any other text.

    >>> parse_time("2026-01-01T00:00:01Z"), parse_time("1767225601000000")
    (1767225601000000, 1767225601000000)
    """
    if _NUMBER.fullmatch(text) and abs(int(text)) < 2**63:
        return int(text)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "not a time; write ISO 8601 such as 2026-01-01T12:00:00Z, or microseconds since 1970"
        ) from None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return (instant - _EPOCH) // timedelta(microseconds=1)


def format_time(time_us: int | None) -> str:
    """ISO 8601 in UTC, to the second. A number for times after the year 9999, and "unknown" for None.

    >>> format_time(1767225601000000), format_time(None), format_time(2**62)
    ('2026-01-01T00:00:01Z', 'unknown', '4611686018427387904 us')
    """
    if time_us is None:
        return "unknown"
    try:
        return f"{_EPOCH + timedelta(seconds=time_us // 10**6):%Y-%m-%dT%H:%M:%SZ}"
    except OverflowError:
        return f"{time_us} us"
