"""The Java that Spark and the development broker run on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from replayfilter.errors import MissingDependency

SUPPORTED = (17, 21)
_REMEDY = "install a Java 17 or 21 runtime, which Spark 4.0 needs, and put it on PATH or set JAVA_HOME to it"


@cache
def java() -> Path:
    """The `java` command: the one in JAVA_HOME if that is set, otherwise the one on PATH.

    Raises MissingDependency if there is none, or if it is neither Java 17 nor Java 21.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if found is None:
        where = f"in JAVA_HOME ({home})" if home else "on PATH"
        raise MissingDependency(f"There is no java command {where}: {_REMEDY}.")
    release = _release(found)
    if release not in SUPPORTED:
        raise MissingDependency(f"{found} is Java {release or 'of an unknown release'}: {_REMEDY}.")
    return Path(found)


def _release(command: str) -> int | None:
    """The feature release, for example 17 for "17.0.15"; None if the output is not Java's."""
    ended = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=60, check=False)
    version = re.search(r'version "(?:1\.)?(\d+)', ended.stderr + ended.stdout)
    return int(version[1]) if version else None
