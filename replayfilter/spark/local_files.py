"""Local files of the JVM, written without a process for each.

Hadoop starts ``chmod`` for every file that it creates, and again for its checksum. A batch writes an entry of
each of Spark's two logs and a changelog per shard. Measured with one file after the other: 8.5 ms of CPU for
each, and 1.3 without the processes.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from pyspark.sql import SparkSession

CLASS = "LocalFiles"


def use_local_files(session: SparkSession) -> None:
    """Let this JVM set permissions by itself: the class in LocalFiles.java writes all its local files.

    Spark's own compiler compiles it, since not every Java comes with one. Hadoop keeps one object for all
    local files, so it is enough to replace that one. Executors on other machines don't have it.
    """
    jvm: Any = session._jvm  # PySpark has no types for it
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(files("replayfilter.spark").joinpath(f"{CLASS}.java").read_text("utf-8"))
    conf = jvm.org.apache.hadoop.conf.Configuration(session.sparkContext._jsc.hadoopConfiguration())
    conf.setClassLoader(compiler.getClassLoader())
    conf.set("fs.file.impl", CLASS)
    hadoop, local = jvm.org.apache.hadoop.fs.FileSystem, jvm.java.net.URI("file:///")
    hadoop.get(local, conf).close()  # the one that Spark has used while it started; Hadoop drops it
    hadoop.get(local, conf)
