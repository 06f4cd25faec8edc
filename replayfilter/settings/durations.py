"""Lengths in a config: durations such as "48h", plain counts, and sizes such as "256MB".

A duration is a whole number of microseconds. It must convert to the unit of the expiry key exactly: with a
rounded period, other records would expire than the config says.
"""

from __future__ import annotations

import re

from replayfilter.core.clock.units import UNIT_NS

_TIMES_US = {"us": 1, "ms": 10**3, "s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86400 * 10**6}
_SIZES = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_MAX = 2**63 - 1  # the largest number that the state and Spark can store
_AMOUNT = re.compile(r"([0-9]{1,30}) ?([A-Za-z]*)", re.ASCII)


def parse_duration(text: object) -> int:
    """A duration such as "48h", "5m", "10s", "250ms", "7us" or "1d" in microseconds; ValueError for others.

    >>> parse_duration("48h")
    172800000000
    """
    match = _AMOUNT.fullmatch(text) if isinstance(text, str) else None
    if not match or match[2] not in _TIMES_US:
        raise ValueError('not a duration; write a whole number and d, h, m, s, ms or us, such as "90s"')
    return _bounded(int(match[1]) * _TIMES_US[match[2]])


def parse_bytes(text: object) -> int:
    """A size such as "256MB", "1GiB" or a plain number, in bytes; ValueError for others.

    >>> parse_bytes("256MB")
    256000000
    """
    match = _AMOUNT.fullmatch(str(text)) if isinstance(text, str | int) else None
    if not match or match[2] not in _SIZES:
        raise ValueError('not a size; write a whole number and kB, MB, GB, KiB, MiB or GiB, such as "256MB"')
    return _bounded(int(match[1]) * _SIZES[match[2]])


def duration_text(us: int) -> str:
    """Microseconds as a config has them, in the largest unit that needs no fraction.

    >>> duration_text(172_800_000_000)
    '2d'
    """
    return next(f"{us // size}{unit}" for unit, size in reversed(_TIMES_US.items()) if us % size == 0)


def bytes_text(size: int) -> str:
    """Bytes as a config has them, in the largest decimal unit that needs no fraction.

    >>> bytes_text(256_000_000)
    '256MB'
    """
    return next(
        f"{size // _SIZES[unit]}{unit}" for unit in ("GB", "MB", "kB", "B") if size % _SIZES[unit] == 0
    )


def parse_count(value: object) -> int:
    """A whole number without a unit: an integer in TOML, text in the environment; ValueError for others."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _bounded(value)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,30}", value, re.ASCII):
        return _bounded(int(value))
    raise ValueError("not a plain integer; write one without a unit, such as 1000")


def length_in_units(value: object, unit: str) -> int:
    """``value`` as a whole number of ``unit``: a duration for units of time, a plain integer for "integer".

    ValueError for the other of the two, and for a duration that is not a whole number of units.

    >>> length_in_units("1h", "ms")
    3600000
    >>> length_in_units(500, "integer")
    500
    """
    if unit == "integer":
        return parse_count(value)
    units, rest = divmod(parse_duration(value) * 1_000, UNIT_NS[unit])
    if rest:
        name = "us" if unit == "iso8601" else unit
        raise ValueError(
            f"not a whole number of the expiry key's unit, {name}; round it or choose a finer unit"
        )
    return _bounded(units)


def _bounded(number: int) -> int:
    if number > _MAX:
        raise ValueError("too large; the largest is 2^63 - 1 units (292 years of nanoseconds)")
    return number
