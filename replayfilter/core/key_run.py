"""Runs: sorted immutable lists of 16-byte digests, with a Bloom filter that spares most searches.

Most keys are new, and the Bloom filter of a run rules most of them out with one memory access each. The
others are found by binary search. A false positive costs a search, never a record.

A run has its digests and, column by column, what is kept with each: its age in the bucket, and where its
first record is. The Bloom filter is made when a run is read into a cache; the state doesn't have it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.columns import Columns, pack, unpack

BLOOM_LAYOUT = 1  # changes with anything that changes the bits of a filter: caches on disk outlive a release
BLOOM_BITS = 12  # bits per key, in 64-bit words: about 2% false positives
AGE = "age"  # column: expiry key - start of the bucket
INDEX = "place"  # column: the first record's input partition, by its index in the state
OFFSET = "offset"  # column: the first record's offset
CONTENT = "content-"  # begins the name of a column: digests of the first record's content, 0 if not known
_WORD = 64


@dataclass(frozen=True, slots=True)
class Run:
    """n digests, ascending: ``hi``, ``lo`` uint64[n]; ``kept``: columns of n rows; ``bloom`` uint64[w].

    >>> one, two = (Run(np.array([h], np.uint64), np.array([7], np.uint64)) for h in (5, 3))
    >>> Run.from_bytes(with_bloom(Run.merged([one, two]).to_bytes())).hi.tolist()
    [3, 5]
    """

    hi: NDArray[np.uint64]
    lo: NDArray[np.uint64]
    kept: Columns = field(default_factory=dict)
    bloom: NDArray[np.uint64] | None = None

    def to_bytes(self) -> bytes:
        """The run as it is kept in the state, without its Bloom filter."""
        return pack({"hi": self.hi, "lo": self.lo, **self.kept})

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Run:
        """Read a run, with or without Bloom filter; the columns are views of ``data``."""
        columns, _ = unpack(data)
        hi, lo, bloom = columns.pop("hi"), columns.pop("lo"), columns.pop("bloom", None)
        return cls(hi, lo, columns, bloom)

    @classmethod
    def merged(cls, runs: list[Run]) -> Run:
        """One run with the keys of all runs; a key that is there more than once keeps its largest age.

        It has the columns of the first run. Others may lack digests of the content, or have them of another.
        """
        columns = {
            "hi": np.concatenate([run.hi for run in runs]),
            "lo": np.concatenate([run.lo for run in runs]),
            **{name: np.concatenate([run.column(name) for run in runs]) for name in runs[0].kept},
        }
        if len(runs) > 1:
            # The stable sort is fast on parts that are sorted already. Equal upper halves are sorted below.
            columns = _take(columns, np.argsort(columns["hi"], kind="stable"))
        if (columns["hi"][1:] == columns["hi"][:-1]).any():
            by = [columns[name] for name in (AGE, "lo", "hi") if name in columns]
            columns = _take(columns, np.lexsort(by))
            last = np.ones(len(columns["hi"]), np.bool_)
            last[:-1] = np.any([columns[name][1:] != columns[name][:-1] for name in ("hi", "lo")], axis=0)
            columns = _take(columns, last)
        return cls(columns.pop("hi"), columns.pop("lo"), columns)

    def column(self, name: str) -> NDArray[Any]:
        """A column that is kept; if it is digests of the content, 0 where the run doesn't have it."""
        if name.startswith(CONTENT) and name not in self.kept:
            return np.zeros(len(self.hi), np.uint32)
        return self.kept[name]

    def search(
        self, hi: NDArray[np.uint64], lo: NDArray[np.uint64], masks: NDArray[np.uint64]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], int]:
        """Search for n sorted digests: the indexes of those found, their positions here, false positives.

        ``masks`` uint64[n]: :func:`bloom_masks` of ``lo``, which the caller computes once for many runs.
        A small run needs no Bloom filter.
        """
        maybe = np.arange(len(hi))
        if self.bloom is not None:
            words = self.bloom[_bloom_words_of(hi, len(self.bloom))]
            maybe = np.flatnonzero((words & masks) == masks)
        at = np.searchsorted(self.hi, hi[maybe])
        while True:  # more than once only for digests with equal upper halves
            inside = at < len(self.hi)
            same = np.zeros(len(at), np.bool_)
            same[inside] = self.hi[at[inside]] == hi[maybe[inside]]
            behind = np.zeros(len(at), np.bool_)
            behind[same] = self.lo[at[same]] < lo[maybe[same]]
            if not behind.any():
                break
            at = at + behind
        same[same] = self.lo[at[same]] == lo[maybe[same]]
        return maybe[same], at[same], len(maybe) - int(same.sum())


def with_bloom(data: bytes | memoryview) -> bytes:
    """A run with its Bloom filter, for the cache."""
    columns, _ = unpack(data)
    return pack({**columns, "bloom": _make_bloom(columns["hi"], columns["lo"])})


def cached_size(keys: int, size: int) -> int:
    """Bytes in a cache of a run with ``size`` bytes and this many keys: with its Bloom filter."""
    return size + 8 * _bloom_size(keys)


def bloom_masks(lo: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The bits that each of n digests sets in its word of a Bloom filter, uint64[n]."""
    # Five bits of one word. The lowest bits of ``lo`` choose the shard, so all keys here share them.
    one, low = np.uint64(1), np.uint64(_WORD - 1)
    masks = np.zeros(len(lo), np.uint64)
    for shift in (16, 22, 28, 34, 40):
        masks |= one << ((lo >> np.uint64(shift)) & low)
    return masks


def _take(columns: Columns, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Columns:
    return {name: column[rows] for name, column in columns.items()}


def _bloom_words_of(hi: NDArray[np.uint64], words: int) -> NDArray[np.uint64]:
    # By the top bits of the digest, so that sorted digests read the filter from front to back.
    return ((hi >> np.uint64(32)) * np.uint64(words)) >> np.uint64(32)


def _bloom_size(keys: int) -> int:
    return keys * BLOOM_BITS // _WORD + 1


def _make_bloom(hi: NDArray[np.uint64], lo: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = np.zeros(_bloom_size(len(hi)), np.uint64)
    if len(hi):
        word = _bloom_words_of(hi, len(words))
        starts = np.flatnonzero(np.concatenate([[True], word[1:] != word[:-1]]))
        words[word[starts]] = np.bitwise_or.reduceat(bloom_masks(lo), starts)
    return words
