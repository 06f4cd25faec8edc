"""Spark's worker daemon with our imports done: workers are forks of it, so that each has them at once.

They take a worker 1.2 s of CPU time, mostly pandas'. Spark runs this by ``spark.python.daemon.module``.
"""

from __future__ import annotations

import pandas  # noqa: F401
import pyspark.daemon
import pyspark.sql.pandas.serializers

from replayfilter.spark import decode, deliver, route  # noqa: F401

if __name__ == "__main__":
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]
