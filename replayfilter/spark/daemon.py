"""Spark's worker daemon with our imports done: workers are forks of it, so that each has them at once.

They take a worker 1.2 s of CPU time, mostly pandas'. Spark runs this by ``spark.python.daemon.module``,
and its workers do two things after each task that cost more than a small task itself:

- They look anew at every archive that modules came from: 60 ms for Spark's own ones. So PySpark is taken
  from where it was installed, if it was.
- They collect garbage, 150 ms over all that was ever imported. So what is there before the fork is frozen.
"""

from __future__ import annotations

import gc
import sys
from importlib.machinery import PathFinder


def leave_archives() -> None:
    """Take archives off the module search path, if PySpark is elsewhere on it too."""
    places = [place for place in sys.path if not _is_archive(place)]
    if PathFinder.find_spec("pyspark", places) and PathFinder.find_spec("py4j", places):
        sys.path[:] = places
        for place in filter(_is_archive, [*sys.path_importer_cache]):
            del sys.path_importer_cache[place]


def _is_archive(place: str) -> bool:
    return ".zip" in place or ".jar" in place


def main() -> None:
    """Serve until Spark closes standard input."""
    leave_archives()
    import pandas  # noqa: F401
    import pyspark.daemon
    import pyspark.sql.pandas.serializers

    from replayfilter.spark import decode, deliver, route  # noqa: F401

    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]  # PySpark has no types for it


if __name__ == "__main__":
    main()
