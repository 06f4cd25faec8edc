"""A faster start: Spark's classes, read and checked before, in a file that the JVM maps (class data sharing).

A service's JVM loads 15,000 classes until its first batch is through, which takes two cores a quarter of a
minute. `replayfilter prepare` keeps them beside the installed packages, whose jars they belong to. Java looks
itself whether the file fits this Java and these jars, and does without it if not.
"""

from __future__ import annotations

import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix, "share", "replayfilter", "classes.jsa")
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"  # what is left out, or does not fit, is no news for a user


def reading() -> str:
    """Java options for a JVM that uses the archive; none if there is no archive."""
    return f"-XX:SharedArchiveFile={ARCHIVE} {_QUIET}" if ARCHIVE.exists() else ""


def writing(archive: Path) -> str:
    """Java options for a JVM that writes its classes to ``archive`` when it ends."""
    return f"-XX:ArchiveClassesAtExit={archive} {_QUIET}"
