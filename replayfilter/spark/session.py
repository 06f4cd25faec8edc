"""The Spark session, set up for this one plan. Each setting is either required or was measured to help."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from replayfilter.errors import MissingDependency
from replayfilter.jvm import class_archive
from replayfilter.jvm.jars import s3a_jars
from replayfilter.jvm.java import java
from replayfilter.settings.value_types import HADOOP_SCHEMES
from replayfilter.spark import s3_files
from replayfilter.spark.local_files import use_local_files
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.scratch import take_folder

_TASK_ATTEMPTS = 4  # with plain local[n], Spark doesn't retry a failed task
_ARROW_BATCH_BYTES = 16 << 20  # 4,000 records of 1 MB would be more than Arrow can hold
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
# For local files only: renames as atomically as the default, and writes each log of a batch 25 ms faster.
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_LOCAL_FILES = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"

# When a small file is closed, the name node often doesn't know yet that a data node has its block. By default
# the client asks again after 400 ms, for each file of a batch. These settings wait as long in all.
_HDFS_CONF = {
    "spark.hadoop.dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "10",
    "spark.hadoop.dfs.client.block.write.locateFollowingBlock.retries": "11",
}

_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",  # would plan each batch again, without any gain
    "spark.sql.session.timeZone": "UTC",
    # A batch has few and large rows. Generating code for them, in each task, costs more than it saves.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.ui.explainMode": "simple",  # each batch's plan becomes a text that nobody sees: a short one
    # Arrow: frames of about 100 kB cost the JVM least
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(_ARROW_BATCH_BYTES),
    "spark.sql.execution.arrow.transformWithStateInPandas.maxRecordsPerBatch": "64",  # frames, not records
    # the state
    "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",  # a read for each write
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.minBatchesToRetain": "10",
    # the query; the check forbids sorting, because order doesn't hold across batches: we sort within a batch
    "spark.sql.streaming.unsupportedOperationCheck": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    # Python: one daemon and one set of workers for all stages. Spark has separate workers for each set of
    # environment variables, and simplified tracebacks set one that not all stages have.
    "spark.python.worker.reuse": "true",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    "spark.python.daemon.module": "replayfilter.spark.daemon",
}
_LOCAL_CONF = {
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.shuffle.compress": "false",  # shuffle files stay in the page cache
    "spark.shuffle.checksum.enabled": "false",  # it only explains a failed read, and costs a tenth of the JVM
}

# Lines that Spark prints at every start, at any log level; the second comes from a Python worker.
_NOISE = re.compile(
    rb"WARNING: Using incubator modules: jdk\.incubator|.*Streaming TransformWithStateInPandas Python|\s*$"
)


def start_session(settings: PipelineSettings, shared: Sequence[int] = ()) -> SparkSession:
    """The process's Spark session, which the first call starts; later calls return the same one.

    The JVM keeps the file descriptors ``shared`` open. Raises MissingDependency without Java.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    conf = session_settings(settings.service, settings.checkpoint, settings.master, settings.log_level)
    jvm = start_jvm(conf, shared)
    if _on_s3(settings.checkpoint):
        jars = [conf.get("spark.jars"), str(s3_files.compiled_jar(jvm))]
        conf.set("spark.jars", ",".join(filter(None, jars)))
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    use_local_files(session)
    # When the JVM is killed, PySpark's accumulator server prints a traceback; we raise SparkLost instead.
    # Its method is replaced for that, which the types forbid.
    session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    return session


def session_settings(service: str, checkpoint: str, master: str, log_level: str) -> SparkConf:
    """The settings of a session; the arguments are those of PipelineSettings.

    Raises MissingDependency without the jars that the checkpoint's file system needs.
    """
    conf = SparkConf(loadDefaults=False).setAppName(service).setMaster(_master(master))
    conf.setAll(list(_CONF.items()))
    if master.startswith("local"):
        conf.setAll(list(_LOCAL_CONF.items()))
    if manager := _file_manager(checkpoint):
        conf.set(FILE_MANAGER, manager)
    if checkpoint.lower().startswith("hdfs:"):
        conf.setAll(list(_HDFS_CONF.items()))
    if _on_s3(checkpoint) and (jars := s3a_jars()):
        conf.set("spark.jars", ",".join(map(str, jars)))
    return conf.set("spark.driver.extraJavaOptions", java_options(log_level))


def start_jvm(conf: SparkConf, shared: Sequence[int] = ()) -> Any:
    """This process's JVM, as py4j shows it, without a Spark session. The first call starts it.

    It keeps the file descriptors ``shared`` open. Raises MissingDependency without Java.
    """
    if SparkContext._gateway is None:
        os.environ["PYSPARK_PYTHON"] = sys.executable  # the stateful stage reads no other setting
        os.environ.setdefault("JAVA_HOME", str(java().resolve().parent.parent))
        folder, lock = take_folder()
        options = conf.get("spark.driver.extraJavaOptions", "")
        conf.set("spark.driver.extraJavaOptions", f'{options} "-Djava.io.tmpdir={folder}"')
        try:
            _launch_jvm(conf, "replayfilter.log=off" in str(options), [*shared, lock])
        finally:
            os.close(lock)  # the JVM holds it
        SparkContext._jvm.java.io.File(str(folder)).deleteOnExit()  # type: ignore[union-attr]  # it has started
    return SparkContext._jvm


def hadoop_settings(jvm: Any, checkpoint: str) -> Any:
    """Hadoop's Configuration as a session of this JVM has it, also before there is one."""
    conf = jvm.org.apache.hadoop.conf.Configuration(jvm.org.apache.spark.deploy.SparkHadoopUtil.get().conf())
    if manager := _file_manager(checkpoint):
        conf.set(FILE_MANAGER, manager)
    if _on_s3(checkpoint):
        s3_files.compiled_jar(jvm)
    return conf


def _on_s3(checkpoint: str) -> bool:
    return checkpoint.lower().startswith("s3a:")


def _file_manager(checkpoint: str) -> str | None:
    """The class with which Spark writes the checkpoint's files; None for Spark's choice, which renames."""
    if _on_s3(checkpoint):
        return s3_files.CLASS
    return None if checkpoint.partition(":")[0].lower() in HADOOP_SCHEMES else _LOCAL_FILES


def java_options(log_level: str) -> str:
    """Java options for the JVM of a driver: compiler, logging, and the class archive if there is one."""
    logging = files("replayfilter.spark").joinpath("log4j2.properties")
    log = f"-Dlog4j2.configurationFile=file:{logging} -Dreplayfilter.log={log_level}"
    return f"-XX:+UseParallelGC {_FIRST_COMPILER} {class_archive.read_options()} {log}"


# Java's second compiler is busy for many minutes and gains nothing at full speed (docs/internals.md). Without
# it Java would also reserve less memory for compiled code; this is its usual limit.
_FIRST_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"


def _launch_jvm(conf: SparkConf, quiet: bool, shared: Sequence[int]) -> None:
    """Start the JVM, its stderr piped through this process, which leaves out the noise if ``quiet``.

    The JVM keeps ``shared`` open. The Python workers don't: Java closes descriptors in what it starts.
    """
    read_end, write_end = os.pipe()
    threading.Thread(target=_relay, args=(read_end, quiet), name="jvm-stderr", daemon=True).start()
    try:
        # PySpark has no types for it
        gateway = launch_gateway(conf, {"stderr": write_end, "pass_fds": shared})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        raise MissingDependency(
            "Spark's JVM ended while starting, and printed the reason above: check JAVA_HOME, and that 2 GB "
            "of memory are free"
        ) from error
    finally:
        os.close(write_end)
    SparkContext._ensure_initialized(gateway=gateway)


def _relay(read_end: int, quiet: bool) -> None:
    with os.fdopen(read_end, "rb") as lines:
        for line in lines:
            if not (quiet and _NOISE.match(line)):
                sys.stderr.buffer.write(line)
                sys.stderr.flush()


def _master(master: str) -> str:
    """The master as Spark gets it: a local one with task retries.

    >>> _master("local[*]"), _master("local"), _master("local[2, 1]")
    ('local[*,4]', 'local[1,4]', 'local[2, 1]')
    """
    if master == "local":
        return f"local[1,{_TASK_ATTEMPTS}]"
    if master.startswith("local[") and "," not in master:
        return f"{master[:-1]},{_TASK_ATTEMPTS}]"
    return master
