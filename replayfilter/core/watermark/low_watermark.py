"""The low watermark of a roster: a time before which no more records are expected.

Each origin writes its records in time order, so its largest event time is a promise: nothing older will
come from it. The smallest of these times would be a watermark that one dead origin holds back for ever.
Therefore a share of the origins may lag behind the watermark.

Rules:
- The roster declares the origins. The progress of an origin is its largest event time.
- For N origins and completeness p, k = floor(N * (1 - p)) origins may lag: the watermark is the (k+1)-th
  smallest progress. p is a decimal string, so that every boundary is exact.
- An origin without progress holds the watermark back. Silence never makes an origin idle. Only a
  declaration does that, or, if asked for, a partition that is caught up.
- Idle origins don't count, neither among the N nor among those that may lag. If all are idle, the
  watermark stays where it is.
- The watermark never goes back: not for a new origin, not for one that returns, and not for reports that
  come late or out of order.

Times are int64 microseconds since the epoch, or any other unit that is used throughout.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.units import UNKNOWN

_DECIMAL = re.compile(r"[01](\.[0-9]{1,18})?", re.ASCII)
NO_PARTITION = -1  # of an origin that is not known from any partition


class Completeness:
    """The share of origins that must have reached a time: an exact decimal above 0 and up to 1.

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
        """How many of ``origins`` may lag: floor(origins * (1 - share)). Fewer than all, if there are any."""
        return origins * self._absent // self._of


class AdvanceResult(NamedTuple):
    """What reported times have changed.

    ``advanced`` intp[m]: the indexes of origins whose progress has grown. ``unknown``: names that are not in
    the roster.
    """

    advanced: NDArray[np.intp]
    unknown: list[str]


class LowWatermark:
    """The watermark of a roster, for many thousands of origins.

    ``low``: the watermark. ``names``: the origins. In the same order: ``progress`` int64[n], ``UNKNOWN``
    before the first report; ``idle`` bool[n], as declared; ``partition`` int32[n], the partition in which
    the origin was seen last, ``NO_PARTITION`` for none. Change them through the methods only.

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
        self.partition = np.zeros(0, np.int32)
        self._index: dict[str, int] = {}
        self._caught_up: set[int] = set()
        self.add(names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: str) -> bool:
        return name in self._index

    # ---- the roster ------------------------------------------------------------------------------

    def add(self, names: Iterable[str]) -> list[str]:
        """Expect these origins too; returns the new ones. They hold the watermark where it is."""
        new = [name for name in dict.fromkeys(names) if name not in self._index]
        for name in new:
            self._index[name] = len(self.names)
            self.names.append(name)
        self.progress = np.append(self.progress, np.full(len(new), UNKNOWN, np.int64))
        self.idle = np.append(self.idle, np.zeros(len(new), np.bool_))
        self.partition = np.append(self.partition, np.full(len(new), NO_PARTITION, np.int32))
        return new

    def remove(self, names: Iterable[str]) -> list[str]:
        """Stop expecting these origins, and forget their progress; returns those that were there."""
        gone = [name for name in dict.fromkeys(names) if name in self._index]
        if gone:
            keep = np.ones(len(self.names), np.bool_)
            keep[[self._index[name] for name in gone]] = False
            self.names = [name for name, kept in zip(self.names, keep.tolist(), strict=True) if kept]
            self.progress, self.idle, self.partition = (
                self.progress[keep],
                self.idle[keep],
                self.partition[keep],
            )
            self._index = {name: at for at, name in enumerate(self.names)}
        return gone

    # ---- reports ---------------------------------------------------------------------------------

    def find(self, names: Sequence[str]) -> NDArray[np.intp]:
        """intp[n]: the indexes of origins, -1 for those that are not in the roster."""
        get = self._index.get
        return np.fromiter((get(name, -1) for name in names), np.intp, len(names))

    def advance(
        self,
        names: Sequence[str],
        times: Sequence[int] | NDArray[np.int64],
        partition: int = NO_PARTITION,
    ) -> AdvanceResult:
        """Take in the times that origins have reached, as seen in ``partition``.

        A time that is not above the progress changes nothing. An origin that advances is no longer idle.
        """
        at, given = self.find(names), np.asarray(times, np.int64)
        known = at >= 0
        unknown = [] if known.all() else [names[row] for row in np.flatnonzero(~known).tolist()]
        at, given = at[known], given[known]
        ahead = given > self.progress[at]
        advanced = at[ahead]
        np.maximum.at(self.progress, advanced, given[ahead])  # a name may occur twice
        self.idle[advanced] = False
        if partition != NO_PARTITION:
            self.partition[advanced] = partition
        return AdvanceResult(advanced, unknown)

    def declare_idle(self, names: Sequence[str], idle: bool = True) -> list[str]:
        """Don't count these origins until they advance or are declared active; returns unknown names."""
        at = self.find(names)
        self.idle[at[at >= 0]] = idle
        return [name for name, where in zip(names, at.tolist(), strict=True) if where < 0]

    def set_caught_up(self, partition: int, caught_up: bool) -> None:
        """Record whether a partition is caught up. Only with ``idle_when_caught_up`` this has an effect."""
        if caught_up:
            self._caught_up.add(partition)
        else:
            self._caught_up.discard(partition)

    # ---- the watermark ---------------------------------------------------------------------------

    def active(self) -> NDArray[np.bool_]:
        """bool[n]: the origins that count."""
        if not (self.idle_when_caught_up and self._caught_up):
            return ~self.idle
        return ~(self.idle | np.isin(self.partition, list(self._caught_up)))

    def may_lag(self) -> int:
        """How many of the active origins may lag."""
        return self.completeness.may_lag(int(self.active().sum()))

    def settle(self) -> int:
        """Advance ``low`` as far as the origins allow, and return it."""
        counted = self.progress[self.active()]
        if len(counted):
            k = self.completeness.may_lag(len(counted))
            self.low = max(self.low, int(np.partition(counted, k)[k]))
        return self.low

    def missing(self, time: int) -> int:
        """How many more origins must reach ``time`` before the watermark does; 0 if it has."""
        if self.low >= time:
            return 0
        active = self.active()
        behind = int((self.progress[active] < time).sum())
        return max(behind - self.may_lag(), 0) if active.any() else len(self.names)
