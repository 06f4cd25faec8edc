"""What is done once in each Python worker, and kept there from task to task.

Spark sends a function by name if it can be imported, so what this module keeps lasts as long as the
worker; a function pickled by value would bring its globals along and find them new in every task.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from replayfilter.formats import Extractor, KeySpec, build_extractor
from replayfilter.kafka.lanes import Lanes
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.run_cache import RunCache

_lanes: dict[tuple[str, str], Lanes] = {}


@cache
def extractor(spec: KeySpec) -> Extractor:
    """The extractor for a spec."""
    return build_extractor(spec)


def lanes(settings: PipelineSettings) -> Lanes:
    """This worker's lanes of the service."""
    name = settings.service, settings.bootstrap
    if name not in _lanes:
        _lanes[name] = Lanes(settings.bootstrap, settings.service, settings.options)
    return _lanes[name]


@cache
def run_cache(limit: int) -> RunCache:
    """This host's cache of runs, which its workers share; ``limit`` in bytes."""
    return RunCache(Path(tempfile.gettempdir()), limit)
