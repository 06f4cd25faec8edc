"""A real HDFS: Hadoop's own name node and data node in one JVM, from its jar for tests."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self
from xml.etree import ElementTree

import pyspark

from replayfilter.jvm.jars import locked_jars
from replayfilter.jvm.java import java
from tests.support.service_process import wait_for

START_SECONDS = 120.0
_MAIN = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
_NEEDED = ("hadoop-client-*", "log4j-*", "slf4j-api-*")  # of PySpark's jars
# Ends Java when the process that holds the other end of the standard input has ended.
ENDS_WITH_US = '"$@" & child=$!; cat; kill -9 $child'


class NameNode:
    """A file system at ``url``, such as hdfs://localhost:41234. It ends with the process that started it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="replayfilter-hdfs-")
        self.url = ""

    def __enter__(self) -> Self:
        folder, pyspark_jars = Path(self._folder.name), Path(pyspark.__file__).with_name("jars")
        jars = [*locked_jars("minicluster"), *(jar for name in _NEEDED for jar in pyspark_jars.glob(name))]
        config, log = folder / "config.xml", folder / "log"
        classes = ":".join(map(str, jars))
        command: list[str | Path] = [java(), "-Xmx512m", "-cp", classes, f"-Dtest.build.data={folder}"]
        command += [_MAIN, "-nomr", "-format", "-nnport", "0", "-writeConfig", config]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", ENDS_WITH_US, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=folder,
            )
        try:
            wait_for(lambda: _is_complete(config), START_SECONDS, "HDFS did not start", 0.2)
        except AssertionError as error:
            self.__exit__(None, None, None)
            raise AssertionError(f"{error}:\n{log.read_text('utf-8', 'replace')[-2000:]}") from None
        found = {each.findtext("name"): each.findtext("value") for each in ElementTree.parse(config).iter()}
        self.url = str(found["fs.defaultFS"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._process.communicate()
        self._folder.cleanup()


def _is_complete(config: Path) -> bool:
    """Whether the cluster has started and written all of its settings."""
    return config.exists() and "</configuration>" in config.read_text("utf-8")
