"""Route: the stage with state. Each shard decides its own rows of the batch's frames."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import (
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import BinaryType, StructType

from replayfilter.core.frames import Frame
from replayfilter.core.key_run import with_bloom
from replayfilter.core.routing import Routes, route_batch
from replayfilter.core.state import ShardState
from replayfilter.core.watermark.laggards import laggards_of
from replayfilter.core.watermark.watermark_state import WatermarkState
from replayfilter.errors import CheckpointError
from replayfilter.spark import worker
from replayfilter.spark.partitioning import assigned_index, partition_ids
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.rows import (
    COLUMNS,
    REPORT,
    ROUTES,
    ShardReport,
    facts_from_text,
    facts_to_text,
    routes_to_bytes,
)
from replayfilter.spark.run_cache import RunCache

# As types: a schema given as text is sent to the JVM and parsed there, twice in each task.
_STATE = StructType().add("state", BinaryType())
NAME = StructType().add("name", BinaryType())
RUN = StructType().add("run", BinaryType())


class Router(StatefulProcessor):
    """Frames in, routes out: one row of routes for each lane, and one row with the shard's report.

    A shard's state is one value, which holds its recent marks, latest point and directory of runs, and one
    map with the runs by name. Each access costs 0.1 ms whatever its size, so there are few of them and they
    are large.
    """

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark before the first batch of a task."""
        self._state = handle.getValueState("shard", _STATE)
        self._runs = handle.getMapState("runs", NAME, RUN)

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: tuple[Any, ...],
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Route one batch of one shard."""
        started_at, settings = time.perf_counter(), self._settings
        parts = list(rows)
        frames = [Frame.from_bytes(body) for part in parts for body in part["body"]]
        facts = facts_from_text(str(parts[0]["facts"].iloc[0]))
        stored = self._state.get()
        state = ShardState.empty() if stored is None else ShardState.from_bytes(bytes(stored[0]))
        store = StateRuns(self._runs, worker.run_cache(settings.cache_bytes))
        if settings.mark_changes:
            state = state.with_changes(settings.mark_changes, _batch_id(), facts.time_us, store)
        batch = route_batch(frames, settings.rules, state, store, facts)
        self._state.update((batch.state.to_bytes(),))

        shard = int(key[0])
        watermark = batch.state.watermark
        counts = {f"state_{name}": value for name, value in batch.stats.items()}
        counts |= {"cache_hits": store.hits, "cache_misses": store.misses}
        counts["watermark_us"] = max(0, watermark.low) if watermark is not None else 0
        laggards = ""
        # The first shard is part of every batch, because decode sends the progress of origins to all shards.
        if settings.rules.watermark is not None and shard == partition_ids(settings.shards)[0]:
            laggards = laggards_of(watermark or WatermarkState(), settings.rules.watermark).to_text()
        counts["route_us"] = round((time.perf_counter() - started_at) * 1e6)
        report = ShardReport(counts, batch.low, laggards)
        yield pd.DataFrame(
            self._output_rows(shard, batch.routes, report, facts_to_text(facts)), columns=COLUMNS
        )

    def _output_rows(
        self, shard: int, found: list[Routes], report: ShardReport, facts: str
    ) -> list[tuple[Any, ...]]:
        ids = partition_ids(self._settings.lanes)
        lane = ids[partition_ids(self._settings.shards).index(shard) % len(ids)]
        rows = [(REPORT, shard, lane, 0, facts, report.to_bytes())]
        by_lane: dict[int, list[Routes]] = {}
        for routes in found:
            lane = ids[assigned_index(routes.topic, routes.partition, len(ids))]
            by_lane.setdefault(lane, []).append(routes)
        for lane, own in by_lane.items():
            rows.append((ROUTES, shard, lane, 0, facts, routes_to_bytes(own)))
        return rows

    def close(self) -> None:
        """Called by Spark at the end; there is nothing to close."""


def _batch_id() -> int:
    """The number of the current batch in Spark's logs."""
    context = TaskContext.get()
    number = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    if number is None:
        raise CheckpointError(
            "Spark doesn't give the number of the batch, so mark changes can't be applied: install the "
            "version of PySpark that this program was built for"
        )
    return int(number)


class StateRuns:
    """The core's RunStore: the runs of one shard in Spark's state, with the host's cache before it.

    ``hits`` and ``misses``: how often the cache had a run, and how often not.
    """

    def __init__(self, runs: MapState, cache: RunCache) -> None:
        self._runs, self._cache = runs, cache
        self.hits = self.misses = 0

    def read(self, name: str) -> bytes | memoryview:
        """The run with its Bloom filter. KeyError if the state doesn't have it: the state is damaged then."""
        found = self._cache.get(name)
        if found is not None:
            self.hits += 1
            return found
        self.misses += 1
        stored = self._runs.getValue((bytes.fromhex(name),))
        if stored is None:
            raise KeyError(f"run {name} is in the directory of the state, but not in the state")
        prepared = with_bloom(bytes(stored[0]))
        self._cache.put(name, prepared)
        return prepared

    def write(self, name: str, data: bytes) -> None:
        """Keep a run."""
        self._runs.updateValue((bytes.fromhex(name),), (data,))
        self._cache.put(name, with_bloom(data))

    def drop(self, name: str) -> None:
        """Forget a run."""
        self._runs.removeKey((bytes.fromhex(name),))
        self._cache.drop(name)
