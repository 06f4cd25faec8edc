"""The low watermark of a roster: a time before which no more records are expected.

Rules (design, section 6):
- the roster declares the origins; each writes in time order; its progress is its largest event time;
- for N origins and completeness p, k = floor(N * (1 - p)) may lag: the watermark is the (k+1)-th smallest
  progress, with p a decimal string, so that every boundary is exact;
- an origin not yet heard of holds the watermark back; silence never makes one idle: only its own
  declaration does or, where that is asked for, a partition with provably nothing left to read;
- idle origins don't count, neither among the N nor among those that may lag; when all are idle the
  watermark stays;
- it never goes back: not for a new origin, one that returns, or reports that come late or out of order.

Times are int64 microseconds since the epoch, or any other unit used throughout.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.expiry import UNKNOWN

_DECIMAL = re.compile(r"[01](\.[0-9]{1,18})?", re.ASCII)
NOWHERE = -1  # the place of an origin that no partition has brought yet


class Completeness:
    """The share of origins that must have passed a time, as an exact decimal above 0 and up to 1.

    Raises ``ValueError`` for any other text.

    >>> [Completeness("0.999").may_lag(origins) for origins in (10_000, 6_000, 999, 500)]
    [10, 6, 0, 0]
    """

    def __init__(self, text: str) -> None:
        if not _DECIMAL.fullmatch(text):
            raise ValueError('not a share; write a decimal above 0 and up to 1 as text, such as "0.999"')
        whole, _, fraction = text.partition(".")
        self._of = int(10 ** len(fraction))
        self._absent = self._of - int(whole + fraction)
        self.text = text
        if not 0 <= self._absent < self._of:
            raise ValueError('out of range; a share is above 0 and up to 1, such as "0.999"')

    def may_lag(self, origins: int) -> int:
        """How many of ``origins`` may lag: floor(origins * (1 - share)), always below ``origins`` above 0."""
        return origins * self._absent // self._of


class Advanced(NamedTuple):
    """What came of times reported: ``moved`` intp[m], the origins that went ahead, and unknown names."""

    moved: NDArray[np.intp]
    unknown: list[str]


class LowWatermark:
    """The watermark of a roster; as fast for 10,000 origins as for ten.

    ``names``: the origins; in the same order ``progress`` int64[n] (``UNKNOWN`` before the first report),
    ``idle`` bool[n], as declared, ``place`` int32[n], the partition that last brought news, ``NOWHERE``
    for none. Read them, change them only by the methods.

    >>> low = LowWatermark("0.5", ["a", "b"])
    >>> low.advance(["a", "stranger"], [7, 9]).unknown, low.settle()
    (['stranger'], 7)
    """

    def __init__(
        self,
        completeness: str,
        names: Iterable[str] = (),
        *,
        low: int = UNKNOWN,
        idle_when_caught_up: bool = False,
    ) -> None:
        self.completeness = Completeness(completeness)
        self.idle_when_caught_up = idle_when_caught_up
        self.low = low
        self.names: list[str] = []
        self.progress = np.zeros(0, np.int64)
        self.idle = np.zeros(0, np.bool_)
        self.place = np.zeros(0, np.int32)
        self._index: dict[str, int] = {}
        self._caught_up: set[int] = set()
        self.add(names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: str) -> bool:
        return name in self._index

    # ---- the roster ------------------------------------------------------------------------------

    def add(self, names: Iterable[str]) -> list[str]:
        """Expect these origins too; returns those that were new. They hold the watermark where it is."""
        new = [name for name in dict.fromkeys(names) if name not in self._index]
        for name in new:
            self._index[name] = len(self.names)
            self.names.append(name)
        self.progress = np.append(self.progress, np.full(len(new), UNKNOWN, np.int64))
        self.idle = np.append(self.idle, np.zeros(len(new), np.bool_))
        self.place = np.append(self.place, np.full(len(new), NOWHERE, np.int32))
        return new

    def remove(self, names: Iterable[str]) -> list[str]:
        """Expect these no longer; returns those that were there. What was known of them is forgotten."""
        gone = [name for name in dict.fromkeys(names) if name in self._index]
        if gone:
            keep = np.ones(len(self.names), np.bool_)
            keep[[self._index[name] for name in gone]] = False
            self.names = [name for name, kept in zip(self.names, keep.tolist(), strict=True) if kept]
            self.progress, self.idle, self.place = self.progress[keep], self.idle[keep], self.place[keep]
            self._index = {name: at for at, name in enumerate(self.names)}
        return gone

    # ---- what is heard ---------------------------------------------------------------------------

    def find(self, names: Sequence[str]) -> NDArray[np.intp]:
        """The places of origins in the columns, intp[n]; -1 for those not in the roster."""
        get = self._index.get
        return np.fromiter((get(name, -1) for name in names), np.intp, len(names))

    def advance(
        self, names: Sequence[str], times: Sequence[int] | NDArray[np.int64], place: int = NOWHERE
    ) -> Advanced:
        """Note the times that origins have reached, from partition ``place``.

        Older times than known change nothing. An origin that goes ahead is idle no longer.
        """
        at, given = self.find(names), np.asarray(times, np.int64)
        known = at >= 0
        unknown = [] if known.all() else [names[row] for row in np.flatnonzero(~known).tolist()]
        at, given = at[known], given[known]
        ahead = given > self.progress[at]
        moved = at[ahead]
        np.maximum.at(self.progress, moved, given[ahead])  # a name may be there twice
        self.idle[moved] = False
        if place != NOWHERE:
            self.place[moved] = place
        return Advanced(moved, unknown)

    def declare_idle(self, names: Sequence[str], idle: bool = True) -> list[str]:
        """Count these origins out until they go ahead or are declared active; returns unknown names."""
        at = self.find(names)
        self.idle[at[at >= 0]] = idle
        return [name for name, where in zip(names, at.tolist(), strict=True) if where < 0]

    def set_caught_up(self, place: int, nothing_left: bool) -> None:
        """Say whether a partition has provably nothing left to read; counts only if ``idle_when_caught_up``."""
        (self._caught_up.add if nothing_left else self._caught_up.discard)(place)

    # ---- what follows ----------------------------------------------------------------------------

    def active(self) -> NDArray[np.bool_]:
        """bool[n]: the origins that count."""
        if not (self.idle_when_caught_up and self._caught_up):
            return ~self.idle
        return ~(self.idle | np.isin(self.place, list(self._caught_up)))

    def may_lag(self) -> int:
        """How many of the active origins may lag."""
        return self.completeness.may_lag(int(self.active().sum()))

    def settle(self) -> int:
        """Move ``low`` as far as the origins allow, and return it."""
        counted = self.progress[self.active()]
        if len(counted):
            k = self.completeness.may_lag(len(counted))
            self.low = max(self.low, int(np.partition(counted, k)[k]))
        return self.low

    def missing(self, time: int) -> int:
        """How many more origins must reach ``time`` until the watermark does; 0 if it has."""
        if self.low >= time:
            return 0
        active = self.active()
        behind = int((self.progress[active] < time).sum())
        return max(behind - self.may_lag(), 0) if active.any() else len(self.names)
