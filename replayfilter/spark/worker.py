"""Objects that each Python worker makes once and keeps from task to task.

Spark pickles a function by name if it can be imported, so this module's globals live as long as the worker. A
function pickled by value would bring its own globals along, new ones in every task.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache, lru_cache
from pathlib import Path

from replayfilter.formats import Extractor, KeySpec, build_extractor
from replayfilter.kafka.chunk_reader import ChunkReader
from replayfilter.kafka.lanes import KEPT_OWNERS, Lanes
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.run_cache import RunCache

_lanes: dict[tuple[str, str], Lanes] = {}
_readers: dict[tuple[str, str], ChunkReader] = {}


@lru_cache(maxsize=4)  # a spec changes with the list of unknown schemas
def extractor(spec: KeySpec) -> Extractor:
    """The extractor for a spec."""
    return build_extractor(spec)


def reader(settings: PipelineSettings) -> ChunkReader:
    """This worker's reader of the service's input; a new one after :func:`drop_reader`."""
    name = settings.service, settings.bootstrap
    if name not in _readers:
        _readers[name] = ChunkReader(settings.bootstrap, settings.service, settings.options)
    return _readers[name]


def drop_reader(settings: PipelineSettings) -> None:
    """Close the reader after an error: its connections may be to a broker that is gone."""
    failed = _readers.pop((settings.service, settings.bootstrap), None)
    if failed is not None:
        failed.close()


def lanes(settings: PipelineSettings) -> Lanes:
    """This worker's lanes for the service; new ones if the limit of the output topics has changed."""
    name = settings.service, settings.bootstrap
    if name in _lanes and _lanes[name].max_message_bytes != settings.max_message_bytes:
        _lanes.pop(name).close()
    if name not in _lanes:
        _lanes[name] = Lanes(
            settings.bootstrap,
            settings.service,
            settings.options,
            max_message_bytes=settings.max_message_bytes,
            kept_owners=max(KEPT_OWNERS, 2 * -(-settings.lanes // len(os.sched_getaffinity(0)))),
        )
    if settings.membership:
        _lanes[name].join(settings.membership)
    return _lanes[name]


@cache
def run_cache(limit: int) -> RunCache:
    """The host's cache of runs, shared by its workers; ``limit`` in bytes."""
    shared = RunCache(Path(tempfile.gettempdir()), limit)
    shared.release_while_idle()
    return shared
