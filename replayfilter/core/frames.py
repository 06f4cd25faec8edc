"""Frames: what a shard must know of one chunk of records to decide those that are its own.

A chunk is a stretch of consecutive records of one input partition. Each of its records is decided by one
shard, but the records of all shards move marks and the latest point. Each chunk is therefore cut into one
frame per shard, which has the shard's own rows and as few rows of other shards as possible.

Rules:
- A frame holds the shard's own rows, with their digests, and *witnesses*: rows of other shards that move a
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
- Therefore the offsets of a source rise within a frame, and to find replays it is enough to compare each
  offset with the mark before the chunk.
- A record without a stamp has source -1. A record in the future may move a mark, but not the latest point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.columns import pack, unpack
from replayfilter.core.stamp import Stamps
from replayfilter.core.watermark.watermark_state import Observation

OWN = 1  # decided by this shard; other rows are witnesses
FUTURE = 2  # later than batch time + max_future: doesn't move the latest point
FIRST = 4  # first row of its source in the chunk: a gap if above the mark before the chunk + 1
JUMP = 8  # a gap: above the offset of its source's previous row in the chunk + 1

NO_SOURCE = -1


@dataclass(frozen=True, slots=True)
class Frame:
    """One chunk for one shard: n rows in input order, k of them the shard's own, s sources.

    - ``topic``, ``partition``, ``first``: identify the chunk; ``first`` is its first input offset.
    - ``pids`` int64[s], ``partitions`` int32[s]: the sources.
    - ``row`` uint32[n]: index in the chunk. ``source`` int32[n]: index of the source, -1 for no stamp.
      ``offset`` int64[n]: the stamp's offset. ``expiry`` int64[n]: expiry key in its unit.
      ``flags`` uint8[n]: OWN, FUTURE, FIRST, JUMP.
    - ``hi``, ``lo`` uint64[k]: digests of the own rows. ``input_offset`` int64[k]: their offsets in the
      input, of length 0 unless first records are remembered.
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
    input_offset: NDArray[np.int64]
    observation: Observation | None = None

    def to_bytes(self) -> bytes:
        """The frame as a column block."""
        columns = {name: getattr(self, name) for name in _COLUMNS}
        meta = {"topic": self.topic, "partition": self.partition, "first": self.first}
        return pack(
            columns, meta | ({"news": self.observation.to_meta()} if self.observation is not None else {})
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Frame:
        """Read a frame; its columns are views of ``data``. Raises ``ValueError`` for other bytes."""
        columns, meta = unpack(data)
        missing = [name for name in (*_NAME, *_COLUMNS) if name not in columns and name not in meta]
        if missing:
            raise ValueError(f"not a frame: the column block has no {', '.join(missing)}")
        observation = Observation.from_meta(meta["news"]) if "news" in meta else None
        named: dict[str, Any] = {name: columns[name] for name in _COLUMNS}
        return cls(**{name: meta[name] for name in _NAME}, observation=observation, **named)


_NAME = ("topic", "partition", "first")
_COLUMNS = ("pids", "partitions", "row", "source", "offset", "expiry", "flags", "hi", "lo", "input_offset")


@dataclass(frozen=True, slots=True)
class Cut:
    """A chunk cut into ``frames``, one per shard; ``replays`` uint32[r]: rows that are already decided."""

    frames: list[Frame]
    replays: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class _Sources:
    """Rows by source: the table of sources, each row's index in it, and the rows in (source, input) order."""

    pids: NDArray[np.int64]
    partitions: NDArray[np.int32]
    index: NDArray[np.int32]
    order: NDArray[np.intp]


def cut_frames(
    topic: str,
    partition: int,
    first: int,
    *,
    stamps: Stamps | None,
    expiry: NDArray[np.int64],
    digests: NDArray[np.uint64],
    rows: NDArray[np.uint32],
    future: NDArray[np.bool_] | None,
    shards: int,
    expiry_order: bool = False,
    input_offset: NDArray[np.int64] | None = None,
    observation: Observation | None = None,
) -> Cut:
    """Cut the rows of a chunk that are no errors into one frame per shard.

    - ``rows`` uint32[n]: the rows' indexes in the chunk. All other arrays have this length.
    - ``stamps``: None if replays are not filtered. ``expiry`` int64[n]. ``digests`` uint64[n, 2]: (hi, lo).
    - ``future`` bool[n]: rows in the future; None if there are none.
    - ``expiry_order``: whether the order of the expiry keys matters.
    - ``input_offset`` int64[n]: None unless first records are remembered.
    - ``observation``: goes to every shard.
    """
    sources = _find_sources(stamps, len(rows))
    offset = stamps.offsets if stamps is not None else np.zeros(len(rows), np.int64)
    replayed = _replays_in_chunk(sources, offset)
    replays = rows[replayed]
    input_offset = input_offset if input_offset is not None else np.zeros(0, np.int64)
    if len(replays):
        keep = ~replayed
        kept_future = future[keep] if future is not None else None
        rows, offset, expiry, digests, future = (
            rows[keep],
            offset[keep],
            expiry[keep],
            digests[keep],
            kept_future,
        )
        input_offset = input_offset[keep] if len(input_offset) else input_offset
        sources = _keep_rows(sources, keep)
    flags = _order_flags(sources, offset)
    carriers = np.isin(rows, [each.row for each in observation.carried]) if observation is not None else False
    weight = expiry
    if future is not None and future.any():
        flags[future] |= FUTURE
        weight = np.where(future, np.iinfo(np.int64).min, expiry)
    rank = np.unique(weight, return_inverse=True)[1].astype(np.int64, copy=False)
    repeated = _repeats(sources, weight) if expiry_order else None
    hi, lo = digests[:, 0], digests[:, 1]
    shard = lo % np.uint64(shards)
    frames = []
    for number in range(shards):
        own = shard == number
        implied = _implied(sources, own, rank) if repeated is None else repeated
        kept = np.flatnonzero(own | ~implied | ((flags & (FIRST | JUMP)) != 0) | carriers)
        frames.append(
            Frame(
                topic, partition, first, sources.pids, sources.partitions, rows[kept], sources.index[kept],
                offset[kept], expiry[kept], flags[kept] | own[kept].view(np.uint8), hi[own], lo[own],
                input_offset[own] if len(input_offset) else input_offset, observation,
            )
        )  # fmt: skip
    return Cut(frames, replays)


def _find_sources(stamps: Stamps | None, n: int) -> _Sources:
    nowhere, identity = np.full(n, NO_SOURCE, np.int32), np.arange(n)
    if stamps is None or not stamps.valid.any():
        return _Sources(np.zeros(0, np.int64), np.zeros(0, np.int32), nowhere, identity)
    pids, partitions = stamps.pids, stamps.partitions
    if stamps.valid.all() and (pids == pids[0]).all() and (partitions == partitions[0]).all():
        return _Sources(pids[:1], partitions[:1], np.zeros(n, np.int32), identity)
    order = np.lexsort((partitions, pids, stamps.valid))  # stable: input order within a source
    good = order[n - int(stamps.valid.sum()) :]
    starts = np.ones(len(good), np.bool_)
    starts[1:] = (np.diff(pids[good]) != 0) | (np.diff(partitions[good]) != 0)
    index = nowhere
    index[good] = np.cumsum(starts, dtype=np.int32) - 1
    heads = good[starts]
    return _Sources(pids[heads], partitions[heads], index, order)


def _keep_rows(sources: _Sources, keep: NDArray[np.bool_]) -> _Sources:
    moved = np.cumsum(keep) - 1
    order = moved[sources.order[keep[sources.order]]]
    return _Sources(sources.pids, sources.partitions, sources.index[keep], order)


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


def _implied(sources: _Sources, own: NDArray[np.bool_], rank: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[n]: rows that a later row of the same source, before the shard's next own row, implies.

    ``rank`` int64[n]: rank of the expiry key; that of the later row must not be smaller.
    """
    if own.all():
        return np.zeros(len(own), np.bool_)
    order = sources.order
    # An interval ends with an own row: each row's number of own rows before it.
    interval: NDArray[np.int64] = np.cumsum(own) - own
    source, at = sources.index[order], interval[order]
    same = np.zeros(len(order), np.bool_)  # the next row in this order is of the same group
    same[:-1] = (source[1:] == source[:-1]) & (at[1:] == at[:-1])
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


def _repeats(sources: _Sources, expiry: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[n]: rows whose next row is of the same source and has the same expiry key."""
    repeated = np.zeros(len(expiry), np.bool_)
    repeated[:-1] = (sources.index[1:] == sources.index[:-1]) & (expiry[1:] == expiry[:-1])
    return repeated
