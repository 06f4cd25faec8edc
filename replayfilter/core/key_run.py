"""Runs: sorted immutable lists of 16-byte digests, with a Bloom filter to spare the search for new keys.

A run has its digests and, column by column, what is kept with each: ``age`` in its bucket, ``place`` and
``offset`` of the record that was accepted. The Bloom filter is made when a run is read into a cache and
not kept in the state; a false positive costs a search, never a record.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.columns import Columns, pack, unpack

BLOOM_BITS = 12  # bits a key: about 2% false positives with one 64-bit word a key, 1.5 bytes
_WORD = 64


@dataclass(frozen=True, slots=True)
class Run:
    """n digests, ascending: ``hi``, ``lo`` uint64[n]; ``kept``: columns of n rows; ``bloom`` uint64[w].

    >>> one, two = (Run(np.array([h], np.uint64), np.array([7], np.uint64)) for h in (5, 3))
    >>> Run.from_bytes(prepare(Run.merged([one, two]).to_bytes())).hi.tolist()
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
        """Read a run, prepared or not; the columns are views of ``data``."""
        columns, _ = unpack(data)
        hi, lo, bloom = columns.pop("hi"), columns.pop("lo"), columns.pop("bloom", None)
        return cls(hi, lo, columns, bloom)

    @classmethod
    def merged(cls, runs: list[Run]) -> Run:
        """One run of all their keys; a key accepted twice, be it in the same run, keeps its larger age."""
        columns = {
            "hi": np.concatenate([run.hi for run in runs]),
            "lo": np.concatenate([run.lo for run in runs]),
            **{name: np.concatenate([run.kept[name] for run in runs]) for name in runs[0].kept},
        }
        if len(runs) > 1:
            # A timsort merges stretches that are sorted already; ties are put right below.
            columns = _take(columns, np.argsort(columns["hi"], kind="stable"))
        if (columns["hi"][1:] == columns["hi"][:-1]).any():
            by = [columns[name] for name in ("age", "lo", "hi") if name in columns]
            columns = _take(columns, np.lexsort(by))
            last = np.ones(len(columns["hi"]), np.bool_)
            last[:-1] = np.any([columns[name][1:] != columns[name][:-1] for name in ("hi", "lo")], axis=0)
            columns = _take(columns, last)
        return cls(columns.pop("hi"), columns.pop("lo"), columns)

    def search(
        self, hi: NDArray[np.uint64], lo: NDArray[np.uint64], masks: NDArray[np.uint64]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], int]:
        """Which of n digests, sorted, are in this prepared run: their indexes, where, and false hits.

        ``masks`` uint64[n]: what :func:`bloom_masks` makes of ``lo``; made once for many runs.
        """
        assert self.bloom is not None, "only prepared runs are searched"
        words = self.bloom[_bloom_places(hi, len(self.bloom))]
        maybe = np.flatnonzero((words & masks) == masks)
        at = np.searchsorted(self.hi, hi[maybe])
        while True:  # once, but for digests that share their upper 64 bits
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


def prepare(data: bytes | memoryview) -> bytes:
    """Put the Bloom filter beside a run, for the cache."""
    columns, _ = unpack(data)
    return pack({**columns, "bloom": _make_bloom(columns["hi"], columns["lo"])})


def prepared_size(keys: int, size: int) -> int:
    """Bytes that a run of so many keys and ``size`` bytes takes in a cache: with its Bloom filter's words."""
    return size + 8 * _bloom_words(keys)


def bloom_masks(lo: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The bits that each of n digests sets in its word of a Bloom filter, uint64[n]."""
    # Five bits of one word; the lowest bits of ``lo`` choose the shard, so they are the same here.
    one, low = np.uint64(1), np.uint64(_WORD - 1)
    masks = np.zeros(len(lo), np.uint64)
    for shift in (16, 22, 28, 34, 40):
        masks |= one << ((lo >> np.uint64(shift)) & low)
    return masks


def _take(columns: Columns, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Columns:
    return {name: column[rows] for name, column in columns.items()}


def _bloom_places(hi: NDArray[np.uint64], words: int) -> NDArray[np.uint64]:
    # By the digest's top bits, so that sorted digests walk the filter from front to back.
    return ((hi >> np.uint64(32)) * np.uint64(words)) >> np.uint64(32)


def _bloom_words(keys: int) -> int:
    return keys * BLOOM_BITS // _WORD + 1


def _make_bloom(hi: NDArray[np.uint64], lo: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = np.zeros(_bloom_words(len(hi)), np.uint64)
    if len(hi):
        place = _bloom_places(hi, len(words))
        starts = np.flatnonzero(np.concatenate([[True], place[1:] != place[:-1]]))
        words[place[starts]] = np.bitwise_or.reduceat(bloom_masks(lo), starts)
    return words
