"""A faster start of Spark by class data sharing: a file of loaded and verified classes that the JVM maps.

Until the first batch is finished, a service's JVM loads 15,000 classes, which takes two cores 15 seconds.
`replayfilter prepare` writes them into a file beside the installed packages. Java itself checks that the file
fits this Java and these jars, and ignores it if not.
"""

from __future__ import annotations

import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix, "share", "replayfilter", "classes.jsa")
_QUIET = (
    "-Xlog:cds=off -Xlog:cds+dynamic=off"  # no warnings about classes left out or an archive that doesn't fit
)


def read_options() -> str:
    """Java options for a JVM that uses the archive; empty if there is no archive."""
    return f"-XX:SharedArchiveFile={ARCHIVE} {_QUIET}" if ARCHIVE.exists() else ""


def write_options(archive: Path) -> str:
    """Java options for a JVM that writes its classes to ``archive`` when it ends."""
    return f"-XX:ArchiveClassesAtExit={archive} {_QUIET}"
