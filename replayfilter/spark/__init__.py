"""The pipeline on Spark; and ``stamp`` and ``filter_replays``, for Spark jobs of your own."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replayfilter.spark.jobs import filter_replays, stamp

__all__ = ["filter_replays", "stamp"]


def __getattr__(name: str) -> Any:  # imports PySpark only when one of them is used
    if name not in __all__:
        raise AttributeError(f"module 'replayfilter.spark' has no attribute {name!r}")
    return getattr(import_module("replayfilter.spark.jobs"), name)
