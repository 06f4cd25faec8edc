"""Buckets: the dedup keys remembered, as sorted immutable runs of 16-byte digests.

Memory is bounded because keys are forgotten by the bucket: when the latest point has left a whole bucket
behind, its runs are dropped without a search for single keys. The work per batch hardly grows with the
number of keys, because a run is never changed, only merged with others now and then.

Rules:
- A bucket holds the keys whose expiry keys fall in one span: bucket = floor(expiry key / span). With clock
  ``categorical`` a bucket is a category. With clock ``none`` a bucket is the top bits of the digest, so that
  a search reads only one bucket.
- A bucket is a list of runs. New keys make a new run. Runs are merged as in a log-structured merge tree, so
  a bucket has few runs, and each key is rewritten a logarithmic number of times.
- A bucket is dropped when all of its keys have expired.
- A run is named by its bucket and by a hash of its content. A cached run is therefore never out of date;
  and in a store that is sorted by name, the runs that change are next to each other.
- ``match = "window"`` keeps each key's age in its bucket, so that "within the period" is exact to the unit.
  ``match = "bucket"`` and clock ``none`` need no ages.
- Bytes per key: 16 for the digest; 4 for the age, 8 if the span is above 2**32 units; and with
  ``remember_first`` 12 for the first record, 4 for its input partition and 8 for its offset; and 4 for a
  digest of its content, if conflicts are looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from replayfilter.core.clock.clocks import Clock
from replayfilter.core.clock.units import INT64_MIN
from replayfilter.core.columns import Columns
from replayfilter.core.key_run import AGE, Run, bloom_masks
from replayfilter.core.rules import Rules

MERGE_RATIO = 3  # an older run is merged with newer ones if it is at most this many times as large
MAX_RUN_KEYS = 1 << 20  # a run is one value of the state: 20 MB at 20 bytes per key
NAME_BYTES = 24  # length of a run's name: 8 for the bucket, 16 for the hash of its content
HASH_BUCKETS_BITS = 4  # clock none: 16 buckets, so that a search reads a sixteenth of all runs


class RunStore(Protocol):
    """Where the runs of one shard are kept, by name.

    A name always means the same content, so writing a name that is there changes nothing. Called only while
    a batch is decided, from one thread.
    """

    def read(self, name: str) -> bytes | memoryview:
        """The run with its Bloom filter, as :func:`~replayfilter.core.key_run.with_bloom` makes it.

        Only runs that were written and not dropped are read; for others an implementation raises KeyError.
        """

    def write(self, name: str, data: bytes) -> None:
        """Keep a run, as :meth:`Run.to_bytes` gives it."""

    def drop(self, name: str) -> None:
        """Remove a run that was written before."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A run in the directory: its ``bucket``, its ``name``, its number of ``keys``, its ``size`` in bytes."""

    bucket: int
    name: str
    keys: int
    size: int


@dataclass(frozen=True, slots=True)
class Found:
    """What is remembered of n digests.

    ``found`` bool[n]. A digest may be remembered more than once; the rest is about the newest record that was
    accepted with it. ``newest`` int64[n]: its expiry key, where ages are kept. ``kept``: the other columns
    that are kept with it, as in a run.
    """

    found: NDArray[np.bool_]
    newest: NDArray[np.int64]
    kept: Columns

    @classmethod
    def none(cls, n: int, kept: Columns) -> Found:
        """Nothing found; ``kept``: columns with the names and types that are asked for."""
        columns = {name: np.zeros(n, column.dtype) for name, column in kept.items()}
        return cls(np.zeros(n, np.bool_), np.full(n, INT64_MIN), columns)

    def update(
        self, rows: NDArray[np.intp], newest: NDArray[np.int64], run: Run, at: NDArray[np.intp]
    ) -> None:
        """Add what a run has for these rows at ``at``, where it is newer than what was found before."""
        newer = ~self.found[rows] | (newest > self.newest[rows])
        rows = rows[newer]
        self.found[rows] = True
        self.newest[rows] = newest[newer]
        for name, column in self.kept.items():
            column[rows] = run.column(name)[at[newer]]


@dataclass(slots=True)
class Buckets:
    """The directory of one shard's runs, oldest first within a bucket, while one batch is decided.

    Changes go to the store at once, and to ``entries``, which belongs to this object: make a new one for
    each batch.
    """

    rules: Rules
    store: RunStore
    entries: dict[int, list[Entry]] = field(default_factory=dict)
    evicted: int = 0  # keys dropped with their buckets
    false_hits: int = 0  # digests that passed a Bloom filter and were not in its run

    def evict(self, latest: int) -> None:
        """Drop the buckets all of whose keys have expired at this latest point."""
        self.drop({bucket for bucket in self.entries if self.is_expired(bucket, latest)})

    def is_expired(self, bucket: int, latest: int) -> bool:
        """Whether all keys that can be in a bucket have expired at this latest point."""
        return (bucket + 1) * self.rules.span - 1 <= latest - self.rules.period

    def drop(self, buckets: Set[int]) -> None:
        """Drop these buckets with all their runs."""
        for bucket in buckets:
            for entry in self.entries.pop(bucket):
                self.evicted += entry.keys
                self.store.drop(entry.name)

    def bucket_of(self, hi: NDArray[np.uint64], expiry: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n]: the bucket of each key."""
        if self.rules.clock is Clock.NONE:
            return (hi >> np.uint64(64 - HASH_BUCKETS_BITS)).astype(np.int64)
        if self.rules.clock is Clock.CATEGORICAL:
            return expiry
        return expiry // np.int64(self.rules.span)

    def find(
        self, hi: NDArray[np.uint64], lo: NDArray[np.uint64], bucket: NDArray[np.int64], kept: Columns
    ) -> Found:
        """Which of n digests, sorted by (hi, lo), are remembered, and the columns of ``kept`` for them.

        With match ``window`` all buckets are searched, otherwise only each digest's own.
        """
        found = Found.none(len(hi), kept)
        masks = bloom_masks(lo)
        for number, entries in self.entries.items():
            rows = None if self.rules.searches_all_buckets else np.flatnonzero(bucket == number)
            if rows is not None and not len(rows):
                continue
            part = (hi, lo, masks) if rows is None else (hi[rows], lo[rows], masks[rows])
            for entry in entries:
                run = Run.from_bytes(self.store.read(entry.name))
                hits, at, false_hits = run.search(*part)
                self.false_hits += false_hits
                mine = hits if rows is None else rows[hits]
                age = run.kept.get(AGE)
                newest = found.newest[mine] if age is None else self._expiry(number, age[at])
                found.update(mine, newest, run, at)
        return found

    def add(
        self,
        hi: NDArray[np.uint64],
        lo: NDArray[np.uint64],
        expiry: NDArray[np.int64],
        bucket: NDArray[np.int64],
        kept: Columns,
    ) -> None:
        """Remember n digests, sorted by (hi, lo), with their expiry keys and buckets.

        ``kept``: what else is kept with each, see ``key_run.py``.
        """
        for number in np.unique(bucket).tolist():
            rows = np.flatnonzero(bucket == number)
            columns = {name: column[rows] for name, column in kept.items()}
            if self.rules.keeps_ages:
                columns[AGE] = self._age(number, expiry[rows])
            entries = self.entries.setdefault(number, [])
            start = merge_from([entry.keys for entry in entries], len(rows))
            merged = [Run.from_bytes(self.store.read(entry.name)) for entry in entries[start:]]
            entry = keep_run(self.store, number, Run.merged([Run(hi[rows], lo[rows], columns), *merged]))
            for old in entries[start:]:
                if old.name != entry.name:
                    self.store.drop(old.name)
            entries[start:] = [entry]

    def _age(self, bucket: int, expiry: NDArray[np.int64]) -> NDArray[np.unsignedinteger]:
        # Modulo 2**64, because a bucket may start below the smallest int64.
        start = np.uint64(bucket * self.rules.span % 2**64)
        age = expiry.view(np.uint64) - start
        return age.astype(np.uint32) if self.rules.span <= 2**32 else age

    def _expiry(self, bucket: int, age: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
        start = np.uint64(bucket * self.rules.span % 2**64)
        return (age.astype(np.uint64) + start).view(np.int64)


def keep_run(store: RunStore, bucket: int, run: Run) -> Entry:
    """Write a run to the store; its entry in the directory."""
    data = run.to_bytes()
    name = (bucket + 2**63).to_bytes(8, "big").hex() + xxhash.xxh3_128_hexdigest(data)
    store.write(name, data)
    return Entry(bucket, name, len(run.hi), len(data))


def merge_from(sizes: list[int], new: int) -> int:
    """The index from which on runs, of these ``sizes`` in keys, are merged with ``new`` keys.

    >>> merge_from([900, 40, 10], 12)
    1
    """
    first = len(sizes)
    while first and sizes[first - 1] <= MERGE_RATIO * new and sizes[first - 1] + new <= MAX_RUN_KEYS:
        first -= 1
        new += sizes[first]
    return first


def directory_columns(buckets: Iterable[Iterable[Entry]], prefix: str = "run") -> Columns:
    """The directory as columns of the state, whose names begin with ``prefix``."""
    entries = [entry for bucket in buckets for entry in bucket]
    return {
        f"{prefix}_bucket": np.array([entry.bucket for entry in entries], np.int64),
        f"{prefix}_name": np.frombuffer(bytes.fromhex("".join(entry.name for entry in entries)), np.uint8),
        f"{prefix}_keys": np.array([entry.keys for entry in entries], np.int64),
        f"{prefix}_size": np.array([entry.size for entry in entries], np.int64),
    }


def directory_entries(columns: Columns, prefix: str = "run") -> dict[int, list[Entry]]:
    """The directory that :func:`directory_columns` wrote."""
    names = columns[f"{prefix}_name"].tobytes().hex()
    width = 2 * NAME_BYTES
    directory: dict[int, list[Entry]] = {}
    numbers = zip(*(columns[f"{prefix}_{name}"].tolist() for name in ("bucket", "keys", "size")), strict=True)
    for i, (bucket, keys, size) in enumerate(numbers):
        directory.setdefault(bucket, []).append(Entry(bucket, names[width * i : width * (i + 1)], keys, size))
    return directory
