"""The pipeline on Spark; and functions for Spark jobs of your own."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replayfilter.spark.jobs import filter_replays, stamp
    from replayfilter.spark.stamped_sink import write_stamped

__all__ = ["filter_replays", "stamp", "write_stamped"]

_MODULES = {
    "filter_replays": "replayfilter.spark.jobs",
    "stamp": "replayfilter.spark.jobs",
    "write_stamped": "replayfilter.spark.stamped_sink",
}


def __getattr__(name: str) -> Any:  # imports PySpark only when one of them is used
    if name not in _MODULES:
        raise AttributeError(f"module 'replayfilter.spark' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
