"""The parts of a shard's frames, in groups that are decided at once.

A topic may have hundreds of partitions with few records each, and work per part costs more than work per
row. Within a batch, input partitions don't depend on each other. So parts of different ones are decided at
once.

Rules:
- The *order of decision* is (topic, partition, first offset). Of the parts of one input partition, each
  depends on those before it.
- The first parts of all input partitions are round 0, the second ones round 1, and so on. A group has the
  parts of one frame and one round.
- Groups come in the order of their rounds. What a group decides therefore doesn't depend on the others of
  its round, nor on the order in which frames arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.columns import Columns
from replayfilter.core.frames import NO_SOURCE, ChunkId, Frame, chunk_of_rows
from replayfilter.core.input_partition import InputPartition
from replayfilter.core.watermark.watermark_state import Observation


@dataclass(frozen=True, slots=True)
class PartGroup:
    """p parts of different input partitions: n rows, k of them the shard's own.

    - ``parts`` intp[p]: their numbers in the order of decision. ``inputs`` intp[p]: indexes of their input
      partitions in ``Parts.inputs``.
    - ``row_ends``, ``own_ends`` int64[p]: where the rows and own rows of each part end.
    - ``source`` int64[n]: index in ``Parts.sources``, -1 for no stamp. The other columns are as in a frame.
    - ``observations``: for each part, None if it has none.
    """

    parts: NDArray[np.intp]
    inputs: NDArray[np.intp]
    row_ends: NDArray[np.int64]
    own_ends: NDArray[np.int64]
    row: NDArray[np.uint32]
    source: NDArray[np.int64]
    offset: NDArray[np.int64]
    expiry: NDArray[np.int64]
    flags: NDArray[np.uint8]
    hi: NDArray[np.uint64]
    lo: NDArray[np.uint64]
    kept: Columns
    observations: Sequence[Observation | None]

    def slices(self) -> Iterator[slice]:
        """The rows of each part."""
        start = 0
        for end in self.row_ends.tolist():
            yield slice(start, end)
            start = end


class Parts:
    """All parts of a shard's batch that have rows or an observation.

    ``chunks``: their chunks in the order of decision. ``inputs``: the input partitions in the same order.
    ``sources``: pid int64[s], partition int32[s] and index of the input partition intp[s] of the sources of
    each part, one part after the other; the index is -1 if the part has no rows.
    """

    def __init__(self, frames: Iterable[Frame]) -> None:
        self._frames = list(frames)
        listed = sorted(
            (*frame.chunks[chunk], number, chunk)
            for number, frame in enumerate(self._frames)
            for chunk in _used_chunks(frame)
        )
        self.chunks = [ChunkId(*part[:3]) for part in listed]
        self.inputs: list[InputPartition] = []
        self._input_of_chunk = [np.full(len(frame.chunks), -1) for frame in self._frames]
        self._part_of_chunk = [np.full(len(frame.chunks), -1) for frame in self._frames]
        self._groups: dict[tuple[int, int], list[int]] = {}
        for part, (topic, partition, _, number, chunk) in enumerate(listed):
            if not self.inputs or self.inputs[-1] != (topic, partition):
                self.inputs.append((topic, partition))
                depth = 0
            self._groups.setdefault((depth, number), []).append(chunk)
            self._input_of_chunk[number][chunk] = len(self.inputs) - 1
            self._part_of_chunk[number][chunk] = part
            depth += 1
        self._bases = np.cumsum([0, *(len(frame.pids) for frame in self._frames)]).tolist()
        self.sources = self._all_sources()

    def groups(self) -> Iterator[PartGroup]:
        """The groups, in an order in which they can be decided."""
        for (_, number), chunks in sorted(self._groups.items(), key=lambda item: item[0][0]):
            yield self._group(number, np.array(sorted(chunks)))

    def _all_sources(self) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.intp]]:
        found = [(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.intp))]
        for frame, inputs in zip(self._frames, self._input_of_chunk, strict=True):
            seen = np.where(np.diff(frame.row_ends, prepend=0) > 0, inputs, -1)
            found.append((frame.pids, frame.partitions, seen[chunk_of_rows(frame.source_ends)]))
        pids, partitions, inputs = (np.concatenate(column) for column in zip(*found, strict=True))
        return pids, partitions, inputs

    def _group(self, number: int, chunks: NDArray[np.intp]) -> PartGroup:
        frame = self._frames[number]
        rows, row_ends = _selected(frame.row_ends, chunks)
        own, own_ends = _selected(frame.own_ends, chunks)
        source = frame.source[rows].astype(np.int64)
        if base := self._bases[number]:
            source[source != NO_SOURCE] += base
        return PartGroup(
            self._part_of_chunk[number][chunks], self._input_of_chunk[number][chunks], row_ends, own_ends,
            frame.row[rows], source, frame.offset[rows], frame.expiry[rows], frame.flags[rows],
            frame.hi[own], frame.lo[own], {name: column[own] for name, column in frame.kept.items()},
            [frame.observations.get(chunk) for chunk in chunks.tolist()],
        )  # fmt: skip


def _used_chunks(frame: Frame) -> list[int]:
    """The chunks that have rows or an observation in this frame."""
    with_rows = np.flatnonzero(np.diff(frame.row_ends, prepend=0)).tolist()
    return sorted({*with_rows, *frame.observations}) if frame.observations else with_rows


def _selected(
    ends: NDArray[np.int64], chunks: NDArray[np.intp]
) -> tuple[slice | NDArray[np.intp], NDArray[np.int64]]:
    """The rows of these chunks, and where those of each end among them; ``ends``: where each chunk's end."""
    sizes = np.diff(ends, prepend=0)
    starts, sizes = (ends - sizes)[chunks], sizes[chunks]
    own_ends = np.cumsum(sizes)
    first, last = int(starts[0]), int(ends[chunks[-1]])
    if last - first == own_ends[-1]:
        return slice(first, last), own_ends
    return rows_of_ranges(starts, sizes), own_ends


def rows_of_ranges(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[n]: the rows of ranges, one range after the other.

    >>> rows_of_ranges(np.array([7, 2]), np.array([2, 3])).tolist()
    [7, 8, 2, 3, 4]
    """
    ends = np.cumsum(sizes)
    return np.repeat(starts - (ends - sizes), sizes) + np.arange(sizes.sum())
