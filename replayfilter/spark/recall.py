"""Recall: reads back what a service has delivered, for a rebuild of its state (see core/rebuilt_state.py).

- The unique topic gives the keys, and both the unique and the duplicate topic the latest point. With
  ``refresh`` the duplicates give keys, too, and their header ``rf-first`` says which record they repeat.
- What a key was made from is unchanged in the outputs, but for the record's own key and stamp, which the
  service's own stamp replaces.
- That stamp says where a record was in the input. A record without one was written by somebody else, and is
  left out unless it is asked for.
- The input gives the marks: its stamps, without those of records that decode refuses. They are read up to the
  committed offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.columns import Columns
from replayfilter.core.digest import partition_salt
from replayfilter.core.input_partition import InputPartition, partition_hash
from replayfilter.core.key_run import INDEX, OFFSET
from replayfilter.core.rebuilt_state import Delivered, Keys, highest_marks
from replayfilter.core.replay.marks import Marks
from replayfilter.core.routing import Route
from replayfilter.core.rules import OnNull, Scope
from replayfilter.core.stamp import STAMP_HEADER, Stamps, last_header, parse_stamps
from replayfilter.errors import BrokerError
from replayfilter.formats import Extraction, RecordColumns
from replayfilter.kafka.chunk_reader import InputChunk
from replayfilter.kafka.reader import Range
from replayfilter.spark import worker
from replayfilter.spark.output_headers import CONFLICT_HEADER, FIRST_HEADER
from replayfilter.spark.partitioning import assigned_index, partition_ids
from replayfilter.spark.pipeline_settings import PipelineSettings

ROW_KEYS = 20_000  # keys that are collected before they go to the shards

SCHEMA = "shard INT NOT NULL, body BINARY NOT NULL"  # an id of partitioning.partition_ids, and a Delivered
_ARROW_SCHEMA = pa.schema([
    pa.field("shard", pa.int32(), nullable=False), pa.field("body", pa.binary(), nullable=False)
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecallSettings:
    """What a rebuild must know.

    - ``pipeline``: the settings of the service.
    - ``time_us``: the time of the rebuild, in microseconds since the epoch.
    - ``inputs``: all input partitions.
    - ``pids``: by pid the input topic, for each pid that the service may have had in its stamps.
    - ``foreign``: whether records count that are in the output topics without a stamp of the service.
    """

    pipeline: PipelineSettings
    time_us: int
    inputs: tuple[InputPartition, ...]
    pids: Mapping[int, str]
    foreign: bool = False


def needs_record_key(key: Sequence[str], values: str) -> bool:
    """Whether the dedup key can't be made without the record's own; ``values``: the format of the values."""
    return "@key" in key or values == "debezium"


def recall_task(settings: RecallSettings, ranges: Mapping[InputPartition, Range]) -> Iterator[pa.RecordBatch]:
    """Read ranges of output topics and of input topics; yields rows for the shards, one for each at least."""
    try:
        yield from recall_chunks(settings, worker.reader(settings.pipeline).read_chunks(ranges))
    except BrokerError:
        worker.drop_reader(settings.pipeline)
        raise


def recall_chunks(settings: RecallSettings, read: Iterable[Sequence[InputChunk]]) -> Iterator[pa.RecordBatch]:
    """What :func:`recall_task` yields, for chunks that are read."""
    task = _Task(settings)
    for chunks in read:
        for chunk in chunks:
            task.add(chunk)
        if task.waiting >= ROW_KEYS:
            yield task.rows()
    yield task.rows(last=True)


class _Task:
    """What one task has found so far. ``waiting``: the number of keys that no row has yet."""

    def __init__(self, settings: RecallSettings) -> None:
        pipeline = settings.pipeline
        self._settings, self._pipeline, self._rules = settings, pipeline, pipeline.rules
        self._extract = worker.extractor(replace(pipeline.keys, origin=None, time=None))
        # Conflicts may have a topic of their own, or go to that of the duplicates.
        outputs, read = pipeline.outputs, (Route.CONFLICT, Route.DUPLICATE, Route.UNIQUE)
        self._topics = {outputs[route].topic: route for route in read if route in outputs}
        self._index = {at: index for index, at in enumerate(settings.inputs)}
        self._known: dict[tuple[int, int], int] = {}  # (pid, partition) of an own stamp -> index, -1: foreign
        salts = [partition_salt(*at) for at in settings.inputs]
        self._salts = np.array(salts, np.uint64).reshape(-1, 2)
        shards = [assigned_index(*at, pipeline.shards) for at in settings.inputs]
        self._shard_of_input = np.array(shards, np.uint64)
        self._hashes = np.array([partition_hash(*at) for at in settings.inputs], np.int64)
        self._keys: list[list[Keys]] = [[] for _ in range(pipeline.shards)]
        self._latest = UNKNOWN
        self._front: dict[InputPartition, int] = {}  # of each output partition, the largest expiry key so far
        self._marks = [Marks.empty()]
        self._counts: Counter[str] = Counter()
        self.waiting = 0

    def add(self, chunk: InputChunk) -> None:
        """Take what counts from a chunk."""
        if (route := self._topics.get(chunk.topic)) is None:
            self._add_marks(chunk)
        else:
            self._add_delivered(chunk, route)

    def rows(self, last: bool = False) -> pa.RecordBatch:
        """A row for each shard with the keys that wait; with ``last``, also what all shards must know."""
        bodies = []
        for number, keys in enumerate(self._keys):
            delivered = Delivered(Keys.joined(keys))
            if last:
                counts = dict(self._counts) if number == 0 else {}
                delivered = Delivered(delivered.keys, self._latest, highest_marks(self._marks), counts)
            bodies.append(delivered.to_bytes())
        self._keys, self.waiting = [[] for _ in self._keys], 0
        return pa.RecordBatch.from_pydict(
            {"shard": partition_ids(self._pipeline.shards), "body": bodies}, schema=_ARROW_SCHEMA
        )

    def _add_marks(self, chunk: InputChunk) -> None:
        self._counts["input"] += len(chunk.offsets)
        stamps = _stamps(chunk, self._pipeline.stamp)
        good = stamps.valid.copy()
        good[list(chunk.unreadable)] = False
        good[[error.row for error in self._extraction(chunk, chunk.keys).errors]] = False
        found = stamps.take(good)
        marks = Marks.zeros(len(found.pids))
        marks.pid[:], marks.partition[:], marks.mark[:] = found.pids, found.partitions, found.offsets
        marks.input_hash[:] = self._hashes[self._index[chunk.topic, chunk.partition]]
        self._marks = [highest_marks([*self._marks, marks])]

    def _add_delivered(self, chunk: InputChunk, route: Route) -> None:
        self._counts["outputs"] += len(chunk.offsets)
        index, offsets, in_key = self._input_positions(chunk)
        good = index >= 0
        stamped = self._pipeline.output_stamp != "none"
        self._counts["foreign"] += int((~good).sum()) if stamped else 0
        if self._settings.foreign or not stamped:  # then nothing is made from the positions
            good[:], index[~good] = True, 0
        own_keys = [None if stamp else key for key, stamp in zip(chunk.keys, in_key.tolist(), strict=True)]
        extraction = self._extraction(chunk, own_keys)
        keys = self._pipeline.keys
        wrong = in_key & needs_record_key(keys.key, keys.format)  # the stamp is where the record's key was
        wrong[[error.row for error in extraction.errors]] = True
        self._counts["unreadable"] += int((good & wrong).sum())
        good &= ~wrong
        null = np.zeros(len(good), np.bool_)
        null[list(extraction.nulls)] = True
        expiry = extraction.expiry
        if self._rules.clock.has_latest_point:
            expiry = self._with_ages_of_nulls(chunk, expiry, good, null)
        if route is not Route.UNIQUE and not self._rules.refresh:
            return
        kept: Columns = {}
        if self._rules.remember_first:
            at = (index, offsets) if route is Route.UNIQUE else self._first_positions(chunk, index, offsets)
            kept = {INDEX: at[0].astype(np.uint32), OFFSET: at[1]}
        if self._rules.content and extraction.contents is not None:
            kept[self._rules.content] = self._contents_of_first(chunk, route, extraction.contents, in_key)
        if self._rules.on_null is OnNull.UNIQUE:
            good &= ~null
        elif self._rules.clock.has_latest_point:
            self._counts["null_ages"] += int((good & null).sum())
        digests = extraction.digests
        self._add_keys(Keys(digests[:, 0], digests[:, 1], expiry, kept).take(good), index[good])

    def _with_ages_of_nulls(
        self, chunk: InputChunk, expiry: NDArray[np.int64], good: NDArray[np.bool_], null: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """The expiry keys; a null value is as old as the largest one before it in its output partition.

        That is at most the latest point, which may have come from another input partition.
        """
        at = chunk.topic, chunk.partition
        counted = np.where(good & ~null, expiry, UNKNOWN)
        front = np.maximum.accumulate(np.append(self._front.get(at, UNKNOWN), counted))
        self._front[at] = int(front[-1])
        self._latest = max(self._latest, self._front[at])
        return np.where(null, front[1:], expiry)

    def _add_keys(self, keys: Keys, index: NDArray[np.int64]) -> None:
        if self._rules.scope is Scope.PARTITION:
            salts = self._salts[index]
            keys = replace(keys, hi=keys.hi ^ salts[:, 0], lo=keys.lo ^ salts[:, 1])
        shard = keys.lo % np.uint64(self._pipeline.shards)
        if self._rules.shards_by_partition:
            shard = self._shard_of_input[index]
        for number, found in enumerate(self._keys):
            found.append(keys.take(shard == number))
        self.waiting += len(keys.hi)
        self._counts["remembered"] += len(keys.hi)

    def _contents_of_first(
        self, chunk: InputChunk, route: Route, contents: NDArray[np.uint32], in_key: NDArray[np.bool_]
    ) -> NDArray[np.uint32]:
        """Digests of the content of the records that were accepted, 0 where it isn't known.

        A duplicate that is no conflict has the same content as the record that it repeats.
        """
        unknown = in_key & ("@key" in self._pipeline.keys.content)
        if route is not Route.UNIQUE:
            named = (value is not None for value in _last_values(chunk, CONFLICT_HEADER))
            unknown |= np.fromiter(named, np.bool_, len(contents))
        return np.where(unknown | (route is Route.CONFLICT), np.uint32(0), contents)

    def _extraction(self, chunk: InputChunk, keys: Sequence[bytes | None]) -> Extraction:
        needs = self._extract.needs
        headers: Sequence[Any] = chunk.headers or [None] * len(chunk.offsets)
        return self._extract(
            RecordColumns(
                chunk.values,
                keys if "keys" in needs else (),
                chunk.timestamps_ms if "timestamps" in needs else (),
                headers if "headers" in needs else (),
            )
        )

    def _input_positions(
        self, chunk: InputChunk
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Where n delivered records were in the input, by their own stamps, wherever these are.

        ``output.stamp`` may have been another one when they were written. Index of the input partition
        int64[n], -1 where it isn't known; offset int64[n]; whether the stamp is the key, bool[n].
        """
        stamps = _stamps(chunk, "key")
        index, offsets = self._input_indexes(stamps), stamps.offsets
        in_key = index >= 0
        if not in_key.all():
            stamps = _stamps(chunk, "header")
            index = np.where(in_key, index, self._input_indexes(stamps))
            offsets = np.where(in_key, offsets, stamps.offsets)
        return index, offsets, in_key

    def _first_positions(
        self, chunk: InputChunk, index: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the first records of duplicates were in the input, or else the duplicates themselves."""
        index, offsets = index.copy(), offsets.copy()
        for row, first in enumerate(_last_values(chunk, FIRST_HEADER)):
            topic, _, rest = (first or b"").decode("utf-8", "replace").partition("/")
            number, _, offset = rest.partition("/")
            if number.isdecimal() and offset.isdecimal() and (topic, int(number)) in self._index:
                index[row], offsets[row] = self._index[topic, int(number)], int(offset)
        return index, offsets

    def _input_indexes(self, stamps: Stamps) -> NDArray[np.int64]:
        """int64[n]: the index of the input partition that each stamp of this service names, -1 for others."""
        pairs = zip(stamps.valid.tolist(), stamps.pids.tolist(), stamps.partitions.tolist(), strict=True)
        found = (self._input_index(pid, number) if valid else -1 for valid, pid, number in pairs)
        return np.fromiter(found, np.int64, len(stamps.valid))

    def _input_index(self, pid: int, number: int) -> int:
        if (pid, number) not in self._known:
            topic = self._settings.pids.get(pid)
            index = self._index.get((topic, number), -1) if topic is not None else -1
            self._known[pid, number] = index
        return self._known[pid, number]


def _stamps(chunk: InputChunk, where: str) -> Stamps:
    """The stamps of a chunk's records; ``where``: "key" or "header"."""
    return parse_stamps(chunk.keys if where == "key" else list(_last_values(chunk, STAMP_HEADER)))


def _last_values(chunk: InputChunk, header: str) -> Iterator[bytes | None]:
    """The value of the last header of that name in each record; None if a record has none."""
    for pairs in chunk.headers or [None] * len(chunk.offsets):
        yield last_header(pairs, header)
