"""Route: the stage with a memory; each shard decides its own rows of the batch's frames."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import (
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from replayfilter.core.columns import Columns, pack
from replayfilter.core.frames import Frame
from replayfilter.core.key_run import prepare
from replayfilter.core.replay.mark_changes import apply_changes, due_changes
from replayfilter.core.routing import Batch, ShardState, route_batch
from replayfilter.core.watermark.laggards import laggards_of
from replayfilter.core.watermark.watermark_state import WatermarkState
from replayfilter.errors import CheckpointError
from replayfilter.spark import worker
from replayfilter.spark.counts import LAGGARDS
from replayfilter.spark.partitioning import assigned_index, partition_ids
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.rows import COLUMNS, ROUTES, STATS
from replayfilter.spark.run_cache import RunCache


class Router(StatefulProcessor):
    """Fingerprint frames in, routes out: one row for each run, and one row of stats.

    The state of a shard is one value with its marks, latest point and directory of runs, and a map of the
    runs by name. Each access costs 0.1 ms whatever its size, so there are few of them and they are large.
    """

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark's call before the first batch of a task."""
        self._state = handle.getValueState("shard", "state BINARY")
        self._runs = handle.getMapState("runs", "name BINARY", "run BINARY")

    def handleInputRows(
        self, key: tuple[Any, ...], rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        """One batch of one shard."""
        begun, settings = time.perf_counter(), self._settings
        parts = list(rows)
        frames = [Frame.from_bytes(body) for part in parts for body in part["body"]]
        batch_time = int(parts[0]["batch_time"].iloc[0])
        kept = self._state.get()
        state = ShardState.empty() if kept is None else ShardState.from_bytes(bytes(kept[0]))
        store = StateRuns(self._runs, worker.run_cache(settings.cache_bytes))
        mark_changes = (
            due_changes(settings.mark_changes, state.mark_changes, _batch_id())
            if settings.mark_changes
            else []
        )
        state = replace(state, marks=apply_changes(state.marks, mark_changes, batch_time))
        batch = route_batch(frames, settings.rules, state, store, batch_time)
        self._state.update(
            (replace(batch.state, mark_changes=state.mark_changes + len(mark_changes)).to_bytes(),)
        )

        counts: dict[str, int | str] = {f"state_{name}": value for name, value in batch.stats.items()}
        counts |= {"cache_hits": store.hits, "cache_misses": store.misses}
        counts["watermark_us"] = max(0, batch.state.watermark.low) if batch.state.watermark is not None else 0
        shard = int(key[0])
        if settings.rules.watermark is not None and shard == partition_ids(settings.shards)[0]:
            # What origins bring goes to every shard, so the first one has a part in every batch.
            counts[LAGGARDS] = laggards_of(
                batch.state.watermark or WatermarkState(), settings.rules.watermark
            ).to_text()
        counts["route_us"] = round((time.perf_counter() - begun) * 1e6)
        counts["low"] = batch.low
        yield pd.DataFrame(self._answers(shard, batch, counts, batch_time), columns=COLUMNS)

    def _answers(
        self, shard: int, batch: Batch, counts: dict[str, int | str], batch_time: int
    ) -> list[tuple[Any, ...]]:
        ids = partition_ids(self._settings.lanes)
        lane = ids[partition_ids(self._settings.shards).index(shard) % len(ids)]
        rows = [(STATS, shard, lane, "", 0, 0, batch_time, json.dumps(counts).encode())]
        for routes in batch.routes:
            lane = ids[assigned_index(routes.topic, routes.partition, len(ids))]
            columns: Columns = {"rows": routes.rows, "codes": routes.codes}
            names: list[str] = []
            if (origins := routes.origins) is not None:
                columns |= {"repeats": origins.rows, "place": origins.place, "offset": origins.offset}
                names = [f"{topic}/{partition}" for topic, partition in origins.names]
            body = pack(columns, {"places": names})
            rows.append((ROUTES, shard, lane, routes.topic, routes.partition, routes.first, batch_time, body))
        return rows

    def close(self) -> None:
        """Spark's call at the end; nothing is open."""


def _batch_id() -> int:
    """The number of the batch at hand, as Spark's logs have it."""
    context = TaskContext.get()
    number = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    if number is None:
        raise CheckpointError(
            "Spark does not tell the batch's number, so edits of marks can't be applied: use the version of "
            "Spark that this program is made for"
        )
    return int(number)


class StateRuns:
    """The runs of one shard: kept in Spark's state, at hand in the host's cache; a core RunStore.

    ``hits`` and ``misses`` count how often the cache had a run, or did not.
    """

    def __init__(self, kept: MapState, cache: RunCache) -> None:
        self._kept, self._cache = kept, cache
        self.hits = self.misses = 0

    def read(self, name: str) -> bytes | memoryview:
        """The run with its Bloom filter. KeyError if the state doesn't have it, which can't be."""
        found = self._cache.get(name)
        if found is not None:
            self.hits += 1
            return found
        self.misses += 1
        kept = self._kept.getValue((bytes.fromhex(name),))
        if kept is None:
            raise KeyError(f"the state has no run {name}, which its directory names")
        prepared = prepare(bytes(kept[0]))
        self._cache.put(name, prepared)
        return prepared

    def write(self, name: str, data: bytes) -> None:
        """Keep a run."""
        self._kept.updateValue((bytes.fromhex(name),), (data,))
        self._cache.put(name, prepare(data))

    def drop(self, name: str) -> None:
        """Forget a run."""
        self._kept.removeKey((bytes.fromhex(name),))
        self._cache.drop(name)
