"""The Spark session, set up for this one plan; each setting is needed, or was measured."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Sequence
from importlib.resources import files

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from replayfilter.errors import MissingDependency
from replayfilter.jvm import class_archive as classes
from replayfilter.jvm.jars import spark_jars
from replayfilter.jvm.java import java
from replayfilter.spark.pipeline_settings import PipelineSettings

_TASK_ATTEMPTS = 4  # plain local[n] never tries a failed task again
_BATCH_BYTES = 16 << 20  # of one Arrow batch: 4,000 records of 1 MB would be more than Arrow can hold
_STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
# Renames as atomically as the default one where files are local, 25 ms sooner at each of a batch's two steps.
_LOCAL_FILES = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"

_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",  # plans each batch anew, for nothing
    "spark.sql.session.timeZone": "UTC",
    # Arrow: frames of some 100 kB are cheapest for the JVM
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(_BATCH_BYTES),
    "spark.sql.execution.arrow.transformWithStateInPandas.maxRecordsPerBatch": "64",  # frames, not records
    # the state
    "spark.sql.streaming.stateStore.providerClass": _STATE_STORE,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",  # a read for each write
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.checkpointFileManagerClass": _LOCAL_FILES,
    # the query; the check forbids to sort, as no order holds from batch to batch: ours is within a batch
    "spark.sql.streaming.unsupportedOperationCheck": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    # Python: one daemon and one set of workers for all stages. Spark keeps workers apart by environment, and
    # simplified tracebacks, which not all stages know, are a variable in it.
    "spark.python.worker.reuse": "true",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    "spark.python.daemon.module": "replayfilter.spark.daemon",
}
_LOCAL_CONF = {
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.shuffle.compress": "false",  # what stays in the page cache needs no packing
}

# What Spark says at every start, whatever its log level; the second is a Python worker's.
_CHATTER = re.compile(
    rb"WARNING: Using incubator modules: jdk\.incubator|.*Streaming TransformWithStateInPandas Python|\s*$"
)


def start_session(settings: PipelineSettings, shared: Sequence[int] = ()) -> SparkSession:
    """The process's Spark session, started if need be; its JVM then holds the descriptors ``shared``, too.

    Raises MissingDependency without Java or jars. A process has one session, as its first call set it up.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    os.environ["PYSPARK_PYTHON"] = sys.executable  # for the workers; the stateful stage looks only here
    os.environ.setdefault("JAVA_HOME", str(java().resolve().parent.parent))
    conf = SparkConf(loadDefaults=False).setAppName(settings.service).setMaster(_master(settings.master))
    conf.setAll(list(_CONF.items()))
    if settings.master.startswith("local"):
        conf.setAll(list(_LOCAL_CONF.items()))
    conf.set("spark.driver.extraJavaOptions", java_options(settings.log_level))
    conf.set("spark.jars", ",".join(str(jar) for jar in spark_jars()))
    if SparkContext._gateway is None:
        _launch_jvm(conf, settings.log_level == "off", shared)
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    # When the JVM is killed, PySpark's own server of accumulators prints a traceback; we say it in words.
    # A method is replaced for that, which types forbid.
    session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    return session


def java_options(log_level: str) -> str:
    """For the JVM of any driver: what it logs, and the classes that are kept for it."""
    logging = files("replayfilter.spark").joinpath("log4j2.properties")
    log = f"-Dlog4j2.configurationFile=file:{logging} -Dreplayfilter.log={log_level}"
    return f"-XX:+UseParallelGC {classes.reading()} {log}"


def _launch_jvm(conf: SparkConf, quiet: bool, shared: Sequence[int]) -> None:
    """Start the JVM; its stderr comes through us, so that we can leave out the chatter.

    It keeps ``shared`` as long as it lives; Java closes them in whatever it starts, so Python workers don't.
    """
    read_end, write_end = os.pipe()
    threading.Thread(target=_relay, args=(read_end, quiet), name="jvm-stderr", daemon=True).start()
    try:
        # PySpark has no types for it
        gateway = launch_gateway(conf, {"stderr": write_end, "pass_fds": shared})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        raise MissingDependency(
            "Spark's JVM ended while starting, and said why above: check JAVA_HOME, and that 2 GB of memory "
            "are free"
        ) from error
    finally:
        os.close(write_end)
    SparkContext._ensure_initialized(gateway=gateway)


def _relay(read_end: int, quiet: bool) -> None:
    with os.fdopen(read_end, "rb") as lines:
        for line in lines:
            if not (quiet and _CHATTER.match(line)):
                sys.stderr.buffer.write(line)
                sys.stderr.flush()


def _master(master: str) -> str:
    """With retries for a local one.

    >>> _master("local[*]"), _master("local"), _master("local[2, 1]")
    ('local[*,4]', 'local[1,4]', 'local[2, 1]')
    """
    if master == "local":
        return f"local[1,{_TASK_ATTEMPTS}]"
    if master.startswith("local[") and "," not in master:
        return f"{master[:-1]},{_TASK_ATTEMPTS}]"
    return master
