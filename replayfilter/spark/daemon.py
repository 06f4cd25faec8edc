"""Spark's worker daemon, with our modules already imported. Workers are forks of it and have them at once.

The imports take 1.2 s of CPU time, mostly for pandas. Spark starts this module because of the setting
``spark.python.daemon.module``. After each task its workers do two things that cost more than a small task:

- They read every archive on the module search path again, which takes 60 ms for Spark's own archives.
  Therefore PySpark is imported from its installed package, if there is one.
- They collect garbage, which takes 150 ms over everything that was ever imported. Therefore all objects that
  exist before the fork are frozen.
"""

from __future__ import annotations

import gc
import sys
from importlib.machinery import PathFinder


def leave_archives() -> None:
    """Remove archives from the module search path, if PySpark is also installed outside of them."""
    paths = [path for path in sys.path if not _is_archive(path)]
    if PathFinder.find_spec("pyspark", paths) and PathFinder.find_spec("py4j", paths):
        sys.path[:] = paths
        for path in filter(_is_archive, [*sys.path_importer_cache]):
            del sys.path_importer_cache[path]


def _is_archive(path: str) -> bool:
    return ".zip" in path or ".jar" in path


def main() -> None:
    """Run the daemon until Spark closes standard input."""
    leave_archives()
    import pandas  # noqa: F401
    import pyspark.daemon
    import pyspark.sql.pandas.serializers

    from replayfilter.spark import deliver, router, source  # noqa: F401

    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]  # PySpark has no types for it


if __name__ == "__main__":
    main()
