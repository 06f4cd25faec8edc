"""Stamps: 20 bytes on a record that say which record of which source it was made from.

A job that starts again writes some records a second time. Each has the same stamp as before, so a reader
that remembers the highest offset of each source can drop them.

Rules:
- a stamp is pid int64, source partition int32, source offset int64, big-endian: 20 bytes. Any value of
  another length is not a stamp;
- a pid is one number per (job, source topic). By default it is the XXH3-64 of the parts, each with its
  length before it, so that ("a", "bc") and ("ab", "c") differ. The scheme ``sqe`` is MurmurHash2-64A of
  the parts joined without a separator: compatible with SQE, but ambiguous.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from replayfilter.errors import StampError

STAMP_BYTES = 20  # int64 + int32 + int64
STAMP_HEADER = "rf-stamp"  # has the stamp where records keep their own key
SQE_SEED = 0xE17A1465  # the seed of SQE, so that pids match those of jobs that still use it
_LAYOUT = struct.Struct(">qiq")
_WIRE = np.dtype([("pid", ">i8"), ("partition", ">i4"), ("offset", ">i8")])
_U64 = 0xFFFF_FFFF_FFFF_FFFF
_Value = TypeVar("_Value")


def last_header(headers: Sequence[tuple[str, _Value]] | None, name: str) -> _Value | None:
    """The value of a record's last header with this name, the one that counts; None if there is none.

    >>> last_header([("rf-stamp", b"old"), ("rf-stamp", b"new"), ("trace", b"1")], STAMP_HEADER)
    b'new'
    """
    for other, value in reversed(headers or ()):
        if other == name:
            return value
    return None


class Stamp(NamedTuple):
    """Which source record a record was made from.

    ``pid`` int64, source ``partition`` int32, source ``offset`` int64.

    >>> Stamp(-1, 2, 258).to_bytes().hex()
    'ffffffffffffffff000000020000000000000102'
    >>> Stamp.from_bytes(Stamp(-1, 2, 258).to_bytes())
    Stamp(pid=-1, partition=2, offset=258)
    >>> Stamp.from_bytes(b"a user's own key") is None
    True
    """

    pid: int
    partition: int
    offset: int

    def to_bytes(self) -> bytes:
        """The 20 bytes. Raises :class:`StampError` if a field does not fit its width."""
        try:
            return _LAYOUT.pack(*self)
        except struct.error as error:
            raise StampError(
                f"stamp out of range: pid {self.pid} (int64), partition {self.partition} (int32), "
                f"offset {self.offset} (int64); pass numbers that fit these widths"
            ) from error

    @classmethod
    def from_bytes(cls, data: bytes | None) -> Stamp | None:
        """The stamp in ``data``, or None if ``data`` is not exactly 20 bytes."""
        if data is None or len(data) != STAMP_BYTES:
            return None
        return cls(*_LAYOUT.unpack(data))

    @classmethod
    def covering(cls, stamps: Sequence[Stamp]) -> Stamp:
        """The stamp for a record made from several records of one source: that with the largest offset.

        A job that goes back must cut the same groups again: see :func:`aligned_group`. After [1-10], and a
        restart with [1-7] and [8-15], the stamps are 10, 7 and 15: nothing shows that 8-10 are counted twice.

        Raises :class:`StampError` for no stamps, and for stamps of several sources.

        >>> Stamp.covering([Stamp(7, 0, 3), Stamp(7, 0, 5), Stamp(7, 0, 4)])
        Stamp(pid=7, partition=0, offset=5)
        """
        sources = {(stamp.pid, stamp.partition) for stamp in stamps}
        if len(sources) != 1:
            raise StampError(
                f"covering stamp of {len(stamps)} stamps from {len(sources)} sources {sorted(sources)[:4]}: "
                "combine records of one source (pid, partition) only, and at least one"
            )
        return max(stamps, key=lambda stamp: stamp.offset)


def partition_for(source_partition: int, partitions: int) -> int:
    """The partition for a record from ``source_partition`` in a topic with this number of ``partitions``.

    All records of a source go to one partition, so they keep their order.

    >>> [partition_for(source, 4) for source in (0, 1, 5, 7)]
    [0, 1, 1, 3]
    """
    return source_partition % partitions


def aligned_group(offset: int, size: int) -> range:
    """The source offsets of the group that ``offset`` belongs to: groups begin at the multiples of ``size``.

    For jobs that make one record from several of a source. Restarts don't change such groups if the job
    keeps two rules:

    - it writes a group's record only once it has read a record beyond the group (offset >= ``group.stop``);
    - its saved position is ``group.start`` of the group that is not complete yet.

    Raises :class:`StampError` for a size below 1.

    >>> group = aligned_group(17, 10)
    >>> group.start, group.stop
    (10, 20)
    """
    if size < 1:
        raise StampError(f"groups of {size} offsets: a group has at least one, so pass a size of 1 or more")
    start = offset - offset % size
    return range(start, start + size)


def stamp_packer() -> Callable[[int, int, int], bytes]:
    """A function (pid, partition, offset) -> 20 bytes for loops; raises ``struct.error``, not StampError."""
    return _LAYOUT.pack


class Stamps(NamedTuple):
    """The stamps of n records: pids int64[n], partitions int32[n], offsets int64[n], valid bool[n]."""

    pids: NDArray[np.int64]
    partitions: NDArray[np.int32]
    offsets: NDArray[np.int64]
    valid: NDArray[np.bool_]

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Stamps:
        """The stamps of these rows."""
        return Stamps(self.pids[rows], self.partitions[rows], self.offsets[rows], self.valid[rows])


def parse_stamps(blobs: Sequence[bytes | None]) -> Stamps:
    """The stamps in n values. For a value that is not a stamp the numbers are 0 and ``valid`` is False.

    >>> parse_stamps([Stamp(7, 1, 9).to_bytes(), b"key", None]).valid.tolist()
    [True, False, False]
    """
    valid = np.fromiter((b is not None and len(b) == STAMP_BYTES for b in blobs), np.bool_, len(blobs))
    return stamps_from_wire(b"".join(b for b, good in zip(blobs, valid, strict=True) if good and b), valid)


def stamps_from_wire(joined: bytes | memoryview, valid: NDArray[np.bool_]) -> Stamps:
    """The stamps of n rows; ``joined`` has the 20 bytes of those that are ``valid``, in row order."""
    wire = np.frombuffer(joined, dtype=_WIRE)
    n = len(valid)
    pids, partitions, offsets = np.zeros(n, np.int64), np.zeros(n, np.int32), np.zeros(n, np.int64)
    pids[valid], partitions[valid], offsets[valid] = wire["pid"], wire["partition"], wire["offset"]
    return Stamps(pids, partitions, offsets, valid)


def stamp_keys(
    pid: NDArray[np.int64] | int,
    partitions: NDArray[np.integer] | Sequence[int] | int,
    offsets: NDArray[np.integer] | Sequence[int],
) -> NDArray[np.void]:
    """The stamps of many records as an array of 20-byte items (dtype ``V20``), in the shape of ``offsets``.

    >>> stamp_keys(-1, 2, [258]).tolist()[0].hex()
    'ffffffffffffffff000000020000000000000102'
    """
    given = np.asarray(offsets, dtype=np.int64)
    wire = np.empty(given.shape, dtype=_WIRE)
    wire["pid"], wire["partition"], wire["offset"] = pid, partitions, given
    return wire.view(f"V{STAMP_BYTES}")


def producer_id(*parts: str, scheme: str = "xxh3") -> int:
    """The pid of a job and its source, as a signed 64-bit integer.

    By convention ``parts`` are (cluster id, topic id, job name). A topic that is deleted and created again
    has a new id, so the pid is new too. Raises :class:`StampError` for no parts, and for an unknown scheme.

    >>> producer_id("a", "bc") != producer_id("ab", "c")
    True
    >>> producer_id("a", "bc", scheme="sqe") == producer_id("ab", "c", scheme="sqe")
    True
    """
    if not parts:
        raise StampError("producer_id needs at least one part: pass (cluster id, topic id, job name)")
    encoded = [part.encode() for part in parts]
    if scheme == "xxh3":
        value = xxhash.xxh3_64_intdigest(b"".join(len(p).to_bytes(4, "big") + p for p in encoded))
    elif scheme == "sqe":
        value = murmur2_64a(b"".join(encoded), SQE_SEED)
    else:
        raise StampError(f"unknown pid scheme {scheme!r}: use 'xxh3', or 'sqe' for the pids of SQE")
    return value - (1 << 64) if value >> 63 else value


def murmur2_64a(data: bytes, seed: int) -> int:
    """MurmurHash2-64A by Austin Appleby (public domain), as an unsigned 64-bit integer.

    >>> f"{murmur2_64a(b'ABCDEF', SQE_SEED):016x}"
    '0f6106105304a543'
    """
    m, r = 0xC6A4A7935BD1E995, 47
    h = (seed ^ (len(data) * m)) & _U64
    whole = len(data) & ~7
    for (k,) in struct.iter_unpack("<Q", data[:whole]):
        k = (k * m) & _U64
        k = ((k ^ (k >> r)) * m) & _U64
        h = ((h ^ k) * m) & _U64
    if data[whole:]:
        h = ((h ^ int.from_bytes(data[whole:], "little")) * m) & _U64
    h = ((h ^ (h >> r)) * m) & _U64
    return h ^ (h >> r)
