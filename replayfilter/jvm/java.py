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
_REMEDY = (
    "install a Java 17 or 21 runtime (Spark 4.0 runs on these) and put it on PATH or name it in JAVA_HOME"
)


@cache
def java() -> Path:
    """Find the `java` command: JAVA_HOME's if that is set, else the one on PATH.

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
    """The feature release, 17 for "17.0.15"; None if the command doesn't answer as Java does."""
    answer = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=60, check=False)
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(version[1]) if version else None
