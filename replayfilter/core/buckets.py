"""Buckets: the dedup keys remembered, as sorted immutable runs of 16-byte digests.

Rules:
- A bucket holds the keys whose expiry keys fall in one span: bucket = floor(expiry key / span). With
  clock ``none`` there is no time: buckets are the digest's top bits, so that a lookup reads only one.
- A bucket is a list of runs. New keys make a new run; runs are merged as in a log-structured tree, so
  that a bucket has few and each key is rewritten a logarithmic number of times.
  With clock ``categorical`` a bucket is a category.
- A bucket goes as a whole when all of it has expired.
- Runs are named by their content: what a cache holds under a name is always right. The bucket stands before
  it, so that a store sorted by name has those that change beside each other and need not move the others.
- ``match = "window"`` keeps each key's age in its bucket, so that "within the period" is exact to the
  unit; ``bucket`` and clock ``none`` need none. A key takes 16 bytes and 4 for the age (8 if the span
  is above 2**32 units).
- With ``remember_first`` a key takes 12 bytes more, for where the accepted record was: place 4, offset 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from replayfilter.core.clock.expiry import INT64_MIN, Rules
from replayfilter.core.columns import Columns
from replayfilter.core.key_run import Run, bloom_masks

MERGE_RATIO = 3  # an older run this many times the newer ones' size or less is merged with them
MAX_RUN_KEYS = 1 << 20  # keys; a run is one value of the state: 20 MB at 20 bytes a key
NAME_BYTES = 24  # of a run's name: 8 for the bucket, 16 of its content's hash
HASH_BUCKETS_BITS = 4  # clock none: 16 buckets, so that a lookup touches a sixteenth of all runs


class RunStore(Protocol):
    """Where runs are kept: by content name, immutable."""

    def read(self, name: str) -> bytes | memoryview:
        """The run of that name as :func:`~replayfilter.core.key_run.prepare` made it."""

    def write(self, name: str, data: bytes) -> None:
        """Keep a run, as :meth:`Run.to_bytes` gives it."""

    def drop(self, name: str) -> None:
        """Forget a run."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A run in the directory: its ``bucket``, ``name``, number of ``keys`` and ``size`` in bytes."""

    bucket: int
    name: str
    keys: int
    size: int


@dataclass(frozen=True, slots=True)
class Found:
    """What is remembered of n digests: ``found`` bool[n]; of those found, by the newest of each,

    ``newest`` int64[n]: the expiry key under which it was accepted, where ages are kept; ``place``
    uint32[n] and ``offset`` int64[n]: where that record was, where origins are kept.
    """

    found: NDArray[np.bool_]
    newest: NDArray[np.int64]
    place: NDArray[np.uint32]
    offset: NDArray[np.int64]

    @classmethod
    def none(cls, n: int) -> Found:
        """Nothing found."""
        return cls(
            np.zeros(n, np.bool_), np.full(n, INT64_MIN), np.zeros(n, np.uint32), np.zeros(n, np.int64)
        )

    def update(self, rows: NDArray[np.intp], newest: NDArray[np.int64], kept: Columns) -> None:
        """Take in what one run says of these rows, as far as it is newer."""
        newer = ~self.found[rows] | (newest > self.newest[rows])
        at = rows[newer]
        self.found[at] = True
        self.newest[at] = newest[newer]
        if "offset" in kept:
            self.place[at], self.offset[at] = kept["place"][newer], kept["offset"][newer]


@dataclass(slots=True)
class Buckets:
    """The directory of one shard's runs, oldest first within a bucket, and what was done with them.

    Changes go to the store at once and to a directory of its own: make a new one for each batch.
    """

    rules: Rules
    store: RunStore
    entries: dict[int, list[Entry]] = field(default_factory=dict)
    evicted: int = 0  # keys that went with their buckets
    false_hits: int = 0  # digests that passed a Bloom filter and were not in its run

    def evict(self, latest: int) -> None:
        """Drop the buckets that have expired as a whole at this latest point."""
        horizon = latest - self.rules.period  # keys at or below are expired
        self.drop({bucket for bucket in self.entries if (bucket + 1) * self.rules.span - 1 <= horizon})

    def drop(self, buckets: Set[int]) -> None:
        """Forget these buckets."""
        for bucket in buckets:
            for entry in self.entries.pop(bucket):
                self.evicted += entry.keys
                self.store.drop(entry.name)

    def bucket_of(self, hi: NDArray[np.uint64], expiry: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n]: the bucket of each key."""
        if self.rules.clock == "none":
            return (hi >> np.uint64(64 - HASH_BUCKETS_BITS)).astype(np.int64)
        if self.rules.clock == "categorical":
            return expiry
        return expiry // np.int64(self.rules.span)

    def find(self, hi: NDArray[np.uint64], lo: NDArray[np.uint64], bucket: NDArray[np.int64]) -> Found:
        """Which of n digests, sorted by (hi, lo), are remembered.

        With match ``window`` all buckets are searched, else only each digest's own.
        """
        found = Found.none(len(hi))
        masks = bloom_masks(lo)
        for number, entries in self.entries.items():
            rows = None if self.rules.searches_all else np.flatnonzero(bucket == number)
            if rows is not None and not len(rows):
                continue
            part = (hi, lo, masks) if rows is None else (hi[rows], lo[rows], masks[rows])
            for entry in entries:
                run = Run.from_bytes(self.store.read(entry.name))
                hits, at, false_hits = run.search(*part)
                self.false_hits += false_hits
                mine = hits if rows is None else rows[hits]
                age = run.kept.get("age")
                newest = found.newest[mine] if age is None else self._expiry(number, age[at])
                found.update(mine, newest, {name: column[at] for name, column in run.kept.items()})
        return found

    def add(
        self,
        hi: NDArray[np.uint64],
        lo: NDArray[np.uint64],
        expiry: NDArray[np.int64],
        bucket: NDArray[np.int64],
        origin: Columns,
    ) -> None:
        """Remember n digests, sorted by (hi, lo), with their expiry keys, buckets and, if any, origins."""
        for number in np.unique(bucket).tolist():
            rows = np.flatnonzero(bucket == number)
            kept = {name: column[rows] for name, column in origin.items()}
            if self.rules.keeps_ages:
                kept["age"] = self._age(number, expiry[rows])
            entries = self.entries.setdefault(number, [])
            first = _merge_from([entry.keys for entry in entries], len(rows))
            merged = [Run.from_bytes(self.store.read(entry.name)) for entry in entries[first:]]
            entry = self._keep(number, Run.merged([Run(hi[rows], lo[rows], kept), *merged]))
            for old in entries[first:]:
                if old.name != entry.name:
                    self.store.drop(old.name)
            entries[first:] = [entry]

    def _keep(self, bucket: int, run: Run) -> Entry:
        data = run.to_bytes()
        name = (bucket + 2**63).to_bytes(8, "big").hex() + xxhash.xxh3_128_hexdigest(data)
        self.store.write(name, data)
        return Entry(bucket, name, len(run.hi), len(data))

    def _age(self, bucket: int, expiry: NDArray[np.int64]) -> NDArray[np.unsignedinteger]:
        # Modulo 2**64: right even where a bucket starts below the end of int64.
        start = np.uint64(bucket * self.rules.span % 2**64)
        age = expiry.view(np.uint64) - start
        return age.astype(np.uint32) if self.rules.span <= 2**32 else age

    def _expiry(self, bucket: int, age: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
        start = np.uint64(bucket * self.rules.span % 2**64)
        return (age.astype(np.uint64) + start).view(np.int64)


def _merge_from(sizes: list[int], new: int) -> int:
    """From which run on a bucket's runs are merged with ``new`` keys more.

    >>> _merge_from([900, 40, 10], 12)
    1
    """
    first = len(sizes)
    while first and sizes[first - 1] <= MERGE_RATIO * new and sizes[first - 1] + new <= MAX_RUN_KEYS:
        first -= 1
        new += sizes[first]
    return first


def directory_columns(buckets: Iterable[list[Entry]]) -> Columns:
    """The directory as columns, for the state."""
    entries = [entry for bucket in buckets for entry in bucket]
    return {
        "run_bucket": np.array([entry.bucket for entry in entries], np.int64),
        "run_name": np.frombuffer(bytes.fromhex("".join(entry.name for entry in entries)), np.uint8),
        "run_keys": np.array([entry.keys for entry in entries], np.int64),
        "run_size": np.array([entry.size for entry in entries], np.int64),
    }


def directory_entries(columns: Columns) -> dict[int, list[Entry]]:
    """What :func:`directory_columns` wrote."""
    names = columns["run_name"].tobytes().hex()
    width = 2 * NAME_BYTES
    directory: dict[int, list[Entry]] = {}
    numbers = zip(*(columns[name].tolist() for name in ("run_bucket", "run_keys", "run_size")), strict=True)
    for i, (bucket, keys, size) in enumerate(numbers):
        directory.setdefault(bucket, []).append(Entry(bucket, names[width * i : width * (i + 1)], keys, size))
    return directory
