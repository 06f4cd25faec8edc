"""Which fields of a sample may be its dedup key, and which its expiry key.

A dedup key that names the records has two signs: the records that repeat it have the same content, and there
are few of them. A key that is too short (a user's id) shows by repeats with other content. One that is too
long (with the time of sending in it) can't be told from a right one, so of two keys without such repeats the
shorter one is better, and the one whose name says that it is an id.

An expiry key is a time that is close to Kafka's timestamp: of an order's date and the customer's birthday the
first ages it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.units import UNIT_NS
from replayfilter.core.digest import MISSING, digest_keys
from replayfilter.formats.expiry_keys import Instant, from_text, read_expiry
from replayfilter.formats.spec import RecordError

PRESENT = 0.99  # the share of the records that have the field
RARE = 0.01  # the largest share of repeats with other content that a key's records may have
SOME = 0.1  # and that of a key whose name says that it names the record
MAX_KEY_FIELDS = 3
_FIRST_MS, _DAY_MS = 946_684_800_000, 86_400_000  # 2000-01-01; no events are older
_NS_PER_MS = UNIT_NS["ms"]
_OWN_ID = re.compile(
    r"(event|message|msg|record|idempotency|dedup|request|transaction)[ _-]?(id|key|uuid)$|^(uu)?id$"
)
_ID = re.compile(r"(id|key|uuid|guid|number|nr|no)$")


class KeyCandidate(NamedTuple):
    """A dedup key: its ``fields``, and which share of the sample's records repeat it.

    ``repeated``: records whose key came before. ``changed``: those of them with content that no record with
    this key had before.
    """

    fields: tuple[str, ...]
    repeated: float
    changed: float


class TimeCandidate(NamedTuple):
    """An expiry key, its ``unit``, and its median distance to Kafka's timestamp, in milliseconds."""

    field: str
    unit: str
    distance_ms: int


def time_candidates(
    columns: Mapping[str, Sequence[object]], timestamps_ms: NDArray[np.int64], now_ms: int
) -> list[TimeCandidate]:
    """The fields that are times between 2000 and tomorrow, the most likely expiry key first.

    ``columns``: n values of each field. ``timestamps_ms`` int64[n]: Kafka's.
    """
    found = []
    for name, column in columns.items():
        for unit in _possible_units(name, column):
            times_ms, good = _times_ms(name, column, unit)
            plausible = good & (times_ms >= _FIRST_MS) & (times_ms <= now_ms + _DAY_MS)
            if len(column) and plausible.sum() >= PRESENT * len(column):
                away = np.abs(timestamps_ms[plausible] - times_ms[plausible])
                found.append(TimeCandidate(name, unit, int(np.median(away))))
                break
    return sorted(found, key=lambda each: (each.distance_ms, name_depth(each.field)))


def key_candidates(
    columns: Mapping[str, Sequence[object]], contents: NDArray[np.uint64], times: Iterable[str]
) -> list[KeyCandidate]:
    """Possible dedup keys, the best first; at least ``@value``.

    ``columns``: n values of each field, in the records' order of fields. ``contents`` uint64[n]: hashes of
    what repeats are compared by. ``times``: fields that are times, which are a key only beside others.
    """
    n, times = len(contents), frozenset(times)
    digests = {name: _digests(column) for name, column in columns.items() if _may_be_key(column)}
    single = [_candidate((name,), digests[name], contents) for name in digests if name not in times and n]
    place = {name: number for number, name in enumerate(columns)}
    ranked = sorted(single, key=lambda each: _rank(each, place))
    best = ranked[0] if ranked else None
    whole = KeyCandidate(("@value",), 1 - _distinct(contents) / n if n else 0.0, 0.0)
    if best is not None and _is_good(best):
        return [*ranked, whole]
    combined = _combined(min(single, key=lambda each: each.changed), digests, contents) if single else None
    if combined is not None and combined.changed <= RARE:
        return [combined, *ranked, whole]
    return [whole, *ranked]


def name_depth(name: str) -> int:
    """How many levels a field's name has.

    >>> name_depth("user.id")
    2
    """
    return len(re.split(r"(?<!\\)\.", name))


def _may_be_key(column: Sequence[object]) -> bool:
    present = [value for value in column if value is not None and value is not MISSING]
    named = sum(type(value) in (str, int, bytes, Instant) for value in present)
    return bool(present) and named == len(present) and named >= PRESENT * len(column)


def _digests(column: Sequence[object]) -> NDArray[np.uint64]:
    return digest_keys([column])[:, 0]


def _candidate(
    fields: tuple[str, ...], digests: NDArray[np.uint64], contents: NDArray[np.uint64]
) -> KeyCandidate:
    n, keys = len(digests), _distinct(digests)
    both = _distinct(_mixed(digests, contents))
    return KeyCandidate(fields, (n - keys) / n, (both - keys) / n)


def _combined(
    first: KeyCandidate, digests: Mapping[str, NDArray[np.uint64]], contents: NDArray[np.uint64]
) -> KeyCandidate | None:
    """The candidate with the fields that take most of its repeats with other content away."""
    best, joined = first, digests[first.fields[0]]
    while len(best.fields) < MAX_KEY_FIELDS and best.changed > RARE:
        longer = [
            (_candidate((*best.fields, name), _mixed(joined, own), contents), own)
            for name, own in digests.items()
            if name not in best.fields
        ]
        following, own = min(longer, key=lambda each: each[0].changed, default=(best, joined))
        if following.changed >= best.changed:
            break
        best, joined = following, _mixed(joined, own)
    return best if len(best.fields) > 1 else None


def _mixed(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return one * np.uint64(0x9E3779B97F4A7C15) + other  # wraps around


def _distinct(hashes: NDArray[np.uint64]) -> int:
    return len(np.unique(hashes))


def _is_good(candidate: KeyCandidate) -> bool:
    return candidate.changed <= (SOME if _name_rank(candidate) == 0 else RARE)


def _rank(candidate: KeyCandidate, place: Mapping[str, int]) -> tuple[bool, int, int, int, float]:
    name = candidate.fields[0]
    return not _is_good(candidate), _name_rank(candidate), name_depth(name), place[name], candidate.changed


def _name_rank(candidate: KeyCandidate) -> int:
    """0: the name says that it names the record; 1: that it names something."""
    name = re.split(r"(?<!\\)\.|:", candidate.fields[0])[-1]
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return 0 if _OWN_ID.search(name) else 1 if _ID.search(name) else 2


def _possible_units(name: str, column: Sequence[object]) -> tuple[str, ...]:
    """The units that the first values allow; the magnitude of a number tells its unit."""
    seen = [value for value in column[:100] if value is not None and value is not MISSING]
    kinds = set(map(type, seen))
    if kinds == {Instant}:
        # All values are Instants, but mypy can't derive that from the set of types.
        return ("us",) if any(value % _NS_PER_MS for value in seen) else ("ms",)  # type: ignore[operator]
    texts = ("iso8601", "s", "ms", "us", "ns") if name.startswith("@header:") else ("iso8601",)
    return texts if kinds <= {str, bytes} else ("s", "ms", "us", "ns")


def _times_ms(name: str, column: Sequence[object], unit: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The times of a column in milliseconds, int64[n], and which can be read, bool[n]."""
    errors: dict[int, RecordError] = {}
    texts = from_text(column, unit) if name.startswith("@header:") else column
    keys = read_expiry(texts, name, unit, errors)
    good = np.ones(len(column), np.bool_)
    good[list(errors)] = False
    unit_ns = UNIT_NS[unit]
    if unit_ns <= _NS_PER_MS:
        return keys // (_NS_PER_MS // unit_ns), good
    limit = (1 << 62) // (unit_ns // _NS_PER_MS)
    return np.clip(keys, -limit, limit) * (unit_ns // _NS_PER_MS), good
