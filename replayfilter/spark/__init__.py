"""The pipeline on Spark; and functions for Spark jobs of your own."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from replayfilter.errors import MissingDependency

if TYPE_CHECKING:
    from replayfilter.spark.jobs import filter_replays, stamp
    from replayfilter.spark.routed import route
    from replayfilter.spark.stamped_sink import write_stamped

__all__ = ["filter_replays", "route", "stamp", "write_stamped"]

_MODULES = {
    "filter_replays": "replayfilter.spark.jobs",
    "route": "replayfilter.spark.routed",
    "stamp": "replayfilter.spark.jobs",
    "write_stamped": "replayfilter.spark.stamped_sink",
}


def __getattr__(name: str) -> Any:  # imports PySpark only when one of them is used
    if name not in _MODULES:
        raise AttributeError(f"module 'replayfilter.spark' has no attribute {name!r}")
    try:
        module = import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("pyspark"):
            raise
        raise MissingDependency(
            f"replayfilter.spark.{name} needs Spark 4.0 or later, where there is {error.name}; here it is "
            'missing: use a newer Spark, or without one: pip install "replayfilter[spark]"'
        ) from None
    return getattr(module, name)
