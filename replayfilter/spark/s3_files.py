"""How Spark writes the files of a checkpoint on S3: by the class in S3Files.java.

Neither of Spark's own classes will do. The default one renames each file, which S3 can't: that takes 22
requests, and a file that is replaced is gone in between. The one of spark-hadoop-cloud only logs that an
upload has failed, so a batch would count as finished although its state is lost. Neither lets S3 itself
refuse to replace an entry of a log (`If-None-Match`), and without that a service that was frozen and goes on
could replace one of its successor.
"""

from __future__ import annotations

import tempfile
import zipfile
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

CLASS = "S3Files"


@cache
def compiled_jar(jvm: Any) -> Path:
    """A jar with the class, for executors; this JVM can use it from now on.

    Spark's own compiler compiles it, since not every Java comes with one.
    """
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(files("replayfilter.spark").joinpath(f"{CLASS}.java").read_text("utf-8"))
    folder = tempfile.TemporaryDirectory(prefix="replayfilter-s3-")
    _FOLDERS.append(folder)
    jar = Path(folder.name, f"{CLASS}.jar")
    with zipfile.ZipFile(jar, "w") as archive:
        for name, code in compiler.getBytecodes().items():
            archive.writestr(f"{name}.class", bytes(code))
    jvm.java.lang.Thread.currentThread().getContextClassLoader().addURL(jvm.java.net.URL(f"file:{jar}"))
    return jar


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # removed when this process ends
