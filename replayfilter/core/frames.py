"""Frames: what a shard must know of some chunks of records to decide those that are its own.

A chunk is a stretch of consecutive records of one input partition. Each of its records is decided by one
shard, the one of its digest or of its input partition, but the records of all shards move marks and the
latest point. Chunks are therefore cut into one
frame per shard, which has the shard's own rows and as few rows of other shards as possible. Chunks that were
read together, of many input partitions, share a frame, because work per frame costs more than work per row.
Each chunk is a *part* of the frame, and what follows holds for each part by itself.

Rules:
- A part holds the shard's own rows, with their digests, and *witnesses*: rows of other shards that move a
  mark or the latest point between the shard's own rows.
- A witness is left out when a later row of the same source, before the shard's next own row, implies it:
  the later row has a higher offset, so it is a replay only if the witness is one, and its expiry key is
  not smaller.
- A row whose carried watermark the observation has is in every frame, so that every shard sees whether it
  counts.
- Where the order of the expiry keys matters (``expiry_order``), a witness is left out only when the very
  next row of the chunk is of the same source and has the same expiry key.
- A row whose offset is not above an earlier offset of its source in the chunk is a replay whatever the
  marks are. It is in no frame.
- Therefore the offsets of a source rise within a part, and to find replays it is enough to compare each
  offset with the mark before the chunk.
- A record without a stamp has source -1. A record in the future, or with a null value, may move a mark, but
  not the latest point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from replayfilter.core.columns import Columns, pack, unpack
from replayfilter.core.stamp import Stamps
from replayfilter.core.watermark.watermark_state import Observation

OWN = 1  # decided by this shard; other rows are witnesses
FUTURE = 2  # later than batch time + max_future: doesn't move the latest point
FIRST = 4  # first row of its source in the chunk: a gap if above the mark before the chunk + 1
JUMP = 8  # a gap: above the offset of its source's previous row in the chunk + 1
NULL = 16  # a null value: has no expiry key, and doesn't move the latest point

NO_SOURCE = -1


class ChunkId(NamedTuple):
    """Identifies a chunk within a batch: its input partition and first offset."""

    topic: str
    partition: int
    first: int


@dataclass(frozen=True, slots=True)
class FramePart:
    """One chunk for one shard: n rows in input order, k of them the shard's own, s sources.

    - ``topic``, ``partition``, ``first``: identify the chunk; ``first`` is its first input offset.
    - ``pids`` int64[s], ``partitions`` int32[s]: the sources.
    - ``row`` uint32[n]: index in the chunk. ``source`` int32[n]: index of the source, -1 for no stamp.
      ``offset`` int64[n]: the stamp's offset. ``expiry`` int64[n]: expiry key in its unit.
      ``flags`` uint8[n]: OWN, FUTURE, FIRST, JUMP, NULL.
    - ``hi``, ``lo`` uint64[k]: digests of the own rows. ``kept``: columns of k rows, what is remembered of
      them with their keys.
    - ``observation``: what the chunk has for the low watermark, if there is one.
    """

    topic: str
    partition: int
    first: int
    pids: NDArray[np.int64]
    partitions: NDArray[np.int32]
    row: NDArray[np.uint32]
    source: NDArray[np.int32]
    offset: NDArray[np.int64]
    expiry: NDArray[np.int64]
    flags: NDArray[np.uint8]
    hi: NDArray[np.uint64]
    lo: NDArray[np.uint64]
    kept: Columns
    observation: Observation | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """Some chunks for one shard: the columns of the parts, joined.

    ``chunks``: the c chunks. ``row_ends``, ``own_ends``, ``source_ends`` int64[c]: where the rows, own rows
    and sources of each end. ``observations``: by index of the chunk.
    """

    chunks: tuple[ChunkId, ...]
    row_ends: NDArray[np.int64]
    own_ends: NDArray[np.int64]
    source_ends: NDArray[np.int64]
    pids: NDArray[np.int64]
    partitions: NDArray[np.int32]
    row: NDArray[np.uint32]
    source: NDArray[np.int32]
    offset: NDArray[np.int64]
    expiry: NDArray[np.int64]
    flags: NDArray[np.uint8]
    hi: NDArray[np.uint64]
    lo: NDArray[np.uint64]
    kept: Columns
    observations: Mapping[int, Observation]

    def parts(self) -> Iterator[FramePart]:
        """The parts that have rows or an observation; their columns are views of the frame's."""
        row = own = source = 0
        ends = zip(self.row_ends.tolist(), self.own_ends.tolist(), self.source_ends.tolist(), strict=True)
        for number, (row_end, own_end, source_end) in enumerate(ends):
            if row_end > row or number in self.observations:
                index = self.source[row:row_end]
                yield FramePart(
                    *self.chunks[number],
                    self.pids[source:source_end],
                    self.partitions[source:source_end],
                    self.row[row:row_end],
                    np.where(index == NO_SOURCE, index, index - np.int32(source)) if source else index,
                    self.offset[row:row_end],
                    self.expiry[row:row_end],
                    self.flags[row:row_end],
                    self.hi[own:own_end],
                    self.lo[own:own_end],
                    {name: column[own:own_end] for name, column in self.kept.items()},
                    self.observations.get(number),
                )
            row, own, source = row_end, own_end, source_end

    @classmethod
    def empty(cls) -> Frame:
        """A frame without chunks: its shard takes part in the batch, and has nothing to decide."""
        nothing = np.zeros(0, np.int64)
        cut = cut_frames(
            (), nothing, stamps=None, expiry=nothing, digests=np.zeros((0, 2), np.uint64),
            rows=nothing.astype(np.uint32), future=None, shards=1,
        )  # fmt: skip
        return cut.frames[0]

    def to_bytes(self) -> bytes:
        """The frame as a column block."""
        meta: dict[str, Any] = {"chunks": self.chunks}
        if self.observations:
            meta["news"] = [(number, each.to_meta()) for number, each in self.observations.items()]
        kept = {_KEPT + name: column for name, column in self.kept.items()}
        return pack({name: getattr(self, name) for name in _COLUMNS} | kept, meta)

    @classmethod
    def from_bytes(cls, data: bytes) -> Frame:
        """Read a frame; its columns are views of ``data``. Raises ``ValueError`` for other bytes."""
        columns, meta = unpack(data)
        missing = [name for name in ("chunks", *_COLUMNS) if name not in columns and name not in meta]
        if missing:
            raise ValueError(f"not a frame: the column block has no {', '.join(missing)}")
        return cls(
            chunks=tuple(ChunkId(*chunk) for chunk in meta["chunks"]),
            observations={number: Observation.from_meta(each) for number, each in meta.get("news", ())},
            kept={name.removeprefix(_KEPT): columns[name] for name in columns if name.startswith(_KEPT)},
            **{name: columns[name] for name in _COLUMNS},
        )


_COLUMNS = (
    "row_ends", "own_ends", "source_ends",
    "pids", "partitions", "row", "source", "offset", "expiry", "flags", "hi", "lo",
)  # fmt: skip
_KEPT = "kept_"


@dataclass(frozen=True, slots=True)
class Cut:
    """Chunks cut into ``frames``, one per shard. ``replays`` intp[r]: the given rows that are replays."""

    frames: list[Frame]
    replays: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Sources:
    """Rows by source: the table of sources, each row's index in it, and the rows in (source, input) order.

    Sources are sorted by chunk; ``ends`` int64[c]: where those of each chunk end.
    """

    pids: NDArray[np.int64]
    partitions: NDArray[np.int32]
    ends: NDArray[np.int64]
    index: NDArray[np.int32]
    order: NDArray[np.intp]


def cut_frames(
    chunks: Sequence[ChunkId],
    ends: NDArray[np.int64],
    *,
    stamps: Stamps | None,
    expiry: NDArray[np.int64],
    digests: NDArray[np.uint64],
    rows: NDArray[np.uint32],
    future: NDArray[np.bool_] | None,
    shards: int,
    chunk_shards: Sequence[int] | None = None,
    expiry_order: bool = False,
    kept: Columns | None = None,
    observations: Mapping[int, Observation] | None = None,
    null: NDArray[np.bool_] | None = None,
) -> Cut:
    """Cut the rows of c chunks that are no errors into one frame per shard.

    - ``ends`` int64[c]: where each chunk's rows end in the n rows.
    - ``rows`` uint32[n]: the rows' indexes in their chunk. All arrays below have this length.
    - ``stamps``: None if replays are not filtered. ``expiry`` int64[n]. ``digests`` uint64[n, 2]: (hi, lo).
    - ``future`` bool[n]: rows in the future; None if there are none.
    - ``chunk_shards``, of length c: the shard that decides all rows of each chunk; None if the digest says
      which shard decides a row.
    - ``expiry_order``: whether the order of the expiry keys matters.
    - ``kept``: what is remembered of each row with its key, see ``key_run.py``. None if nothing is.
    - ``observations``: by index of the chunk; they go to every shard.
    - ``null`` bool[n]: rows with a null value; None if there are none.
    """
    chunk = chunk_of_rows(ends)
    sources = _find_sources(stamps, chunk, len(chunks))
    offset = stamps.offsets if stamps is not None else np.zeros(len(rows), np.int64)
    replayed = _replays_in_chunk(sources, offset)
    replays = np.flatnonzero(replayed)
    kept = kept or {}
    if len(replays):
        keep = ~replayed
        rows, offset, expiry = rows[keep], offset[keep], expiry[keep]
        digests, chunk = digests[keep], chunk[keep]
        future = future[keep] if future is not None else None
        null = null[keep] if null is not None else None
        kept = {name: column[keep] for name, column in kept.items()}
        sources = _keep_rows(sources, keep)
        ends = np.searchsorted(chunk, np.arange(len(ends)), side="right")
    flags = _order_flags(sources, offset)
    carriers = _carriers(observations or {}, rows, ends)
    weight = expiry
    for timeless, flag in ((future, FUTURE), (null, NULL)):
        if timeless is not None and timeless.any():
            flags[timeless] |= flag
            weight = np.where(timeless, np.iinfo(np.int64).min, weight)
    rank = np.unique(weight, return_inverse=True)[1].astype(np.int64, copy=False)
    implied_everywhere = None  # where what a row implies is the same for all shards
    if expiry_order:
        implied_everywhere = _repeats(sources, chunk, weight)
    elif chunk_shards is not None and shards > 1:
        implied_everywhere = _implied(sources, chunk, np.zeros(len(rows), np.bool_), rank)
    hi, lo = digests[:, 0], digests[:, 1]
    shard = lo % np.uint64(shards) if chunk_shards is None else np.array(chunk_shards, np.uint64)[chunk]
    frames = []
    for number in range(shards):
        own = shard == number
        implied = implied_everywhere
        if implied is None:
            implied = _implied(sources, chunk, own, rank)
        seen = np.flatnonzero(own | ~implied | ((flags & (FIRST | JUMP)) != 0) | carriers)
        frames.append(
            Frame(
                tuple(chunks), np.searchsorted(seen, ends), np.concatenate([[0], np.cumsum(own)])[ends],
                sources.ends, sources.pids, sources.partitions, rows[seen], sources.index[seen],
                offset[seen], expiry[seen], flags[seen] | own[seen].view(np.uint8), hi[own], lo[own],
                {name: column[own] for name, column in kept.items()}, observations or {},
            )
        )  # fmt: skip
    return Cut(frames, replays)


def chunk_of_rows(ends: ArrayLike) -> NDArray[np.intp]:
    """intp[n]: the index of each row's chunk; ``ends`` int64[c]: where the rows of each chunk end.

    >>> chunk_of_rows([2, 2, 3])
    array([0, 0, 2])
    """
    sizes = np.diff(ends, prepend=0)
    return np.repeat(np.arange(len(sizes)), sizes)


def _carriers(
    observations: Mapping[int, Observation], rows: NDArray[np.uint32], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """bool[n]: rows that carry a watermark which may count. The shards must know whether they are replays."""
    found = np.zeros(len(rows), np.bool_)
    starts = [0, *ends.tolist()]
    for chunk, observation in observations.items():
        if observation.carried:
            own = slice(starts[chunk], starts[chunk + 1])
            found[own] = np.isin(rows[own], [each.row for each in observation.carried])
    return found


def _find_sources(stamps: Stamps | None, chunk: NDArray[np.intp], chunks: int) -> _Sources:
    """The sources of each chunk; the same source in two chunks counts as two."""
    n = len(chunk)
    nowhere, identity = np.full(n, NO_SOURCE, np.int32), np.arange(n)
    if stamps is None or not stamps.valid.any():
        none = np.zeros(chunks, np.int64)
        return _Sources(np.zeros(0, np.int64), np.zeros(0, np.int32), none, nowhere, identity)
    order = identity
    if not (stamps.valid.all() and _one_source_each(stamps, chunk)):
        keys = (stamps.partitions, stamps.pids, chunk, stamps.valid)
        order = np.lexsort(keys)  # stable: input order within a source
    good = order[n - int(stamps.valid.sum()) :]
    starts = np.ones(len(good), np.bool_)
    starts[1:] = _differs(chunk[good]) | _differs(stamps.pids[good]) | _differs(stamps.partitions[good])
    index = nowhere
    index[good] = np.cumsum(starts, dtype=np.int32) - 1
    heads = good[starts]
    ends = np.searchsorted(chunk[heads], np.arange(chunks), side="right")
    return _Sources(stamps.pids[heads], stamps.partitions[heads], ends, index, order)


def _one_source_each(stamps: Stamps, chunk: NDArray[np.intp]) -> bool:
    """Whether each chunk has one source only, as most have."""
    changes = _differs(stamps.pids) | _differs(stamps.partitions)
    return not (changes & ~_differs(chunk)).any()


def _differs(column: NDArray[np.integer]) -> NDArray[np.bool_]:
    """bool[n - 1]: which items after the first differ from the one before."""
    return np.asarray(column[1:] != column[:-1])


def _keep_rows(sources: _Sources, keep: NDArray[np.bool_]) -> _Sources:
    moved = np.cumsum(keep) - 1
    order = moved[sources.order[keep[sources.order]]]
    return replace(sources, index=sources.index[keep], order=order)


def _replays_in_chunk(sources: _Sources, offset: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[n]: rows whose offset is not above the largest earlier offset of their source."""
    replayed = np.zeros(len(offset), np.bool_)
    source, ordered = sources.index[sources.order], offset[sources.order]
    same = (source[1:] == source[:-1]) & (source[1:] != NO_SOURCE)
    if not (same & (ordered[1:] <= ordered[:-1])).any():
        return replayed  # the usual case: offsets rise within every source
    rank = np.unique(ordered, return_inverse=True)[1].astype(np.int64, copy=False)
    highest = _running_max(source.astype(np.int64) + 1, rank)
    replayed[sources.order[1:]] = same & (rank[1:] <= highest[:-1])
    return replayed


def _running_max(group: NDArray[np.int64], rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[n]: the largest rank so far in each group. Groups come in rising order; ranks are below n."""
    base = group * (len(rank) + 1)
    return np.maximum.accumulate(base + rank) - base


def _order_flags(sources: _Sources, offset: NDArray[np.int64]) -> NDArray[np.uint8]:
    source, ordered = sources.index[sources.order], offset[sources.order]
    flags = np.zeros(len(offset), np.uint8)
    stamped = source != NO_SOURCE
    head = stamped.copy()
    head[1:] &= source[1:] != source[:-1]
    jump = np.zeros(len(offset), np.bool_)
    # Offsets rise within a source, so unsigned differences can't overflow.
    rise = ordered[1:].view(np.uint64) - ordered[:-1].view(np.uint64)
    jump[1:] = stamped[1:] & ~head[1:] & (rise > 1)
    flags[sources.order] = head * np.uint8(FIRST) + jump * np.uint8(JUMP)
    return flags


def _implied(
    sources: _Sources, chunk: NDArray[np.intp], own: NDArray[np.bool_], rank: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """bool[n]: rows that a later row of the same source, before the shard's next own row, implies.

    ``rank`` int64[n]: rank of the expiry key; that of the later row must not be smaller.
    """
    if own.all():
        return np.zeros(len(own), np.bool_)
    order = sources.order
    # An interval ends with an own row: each row's number of own rows before it.
    interval: NDArray[np.int64] = np.cumsum(own) - own
    same = np.zeros(len(order), np.bool_)  # the next row in this order is of the same group
    same[:-1] = ~(_differs(sources.index[order]) | _differs(chunk[order]) | _differs(interval[order]))
    starts = np.ones(len(order), np.int64)
    starts[1:] = ~same[:-1]
    group = np.cumsum(starts)
    later = np.full(len(order), -1, np.int64)
    if len(order):
        backwards = _running_max((group[-1] - group)[::-1], rank[order][::-1])[::-1]
        later[:-1] = np.where(same[:-1], backwards[1:], -1)
    implied = np.zeros(len(order), np.bool_)
    implied[order] = later >= rank[order]
    return implied


def _repeats(sources: _Sources, chunk: NDArray[np.intp], expiry: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[n]: rows whose next row in the chunk is of the same source and has the same expiry key."""
    repeated = np.zeros(len(expiry), np.bool_)
    repeated[:-1] = ~(_differs(sources.index) | _differs(chunk) | _differs(expiry))
    return repeated
