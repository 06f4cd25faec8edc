"""Whether a failure comes from a full disk: nothing but room helps then, and with room all goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from replayfilter.errors import DiskFull
from replayfilter.spark.checkpoint_damage import causes, local_path

_CODES = (errno.ENOSPC, errno.EDQUOT)
_LITTLE = 16 << 20  # bytes: what failed has often freed some when its error arrives here


def full_disk(thrown: Any, checkpoint: str) -> DiskFull | None:
    """The error that says which disk is full; None if what Java has thrown is something else.

    The operating system's text for it is all that is left of an error of a task, or of RocksDB.
    ``checkpoint``: the path or URL of Spark's checkpoint.
    """
    texts = [os.strerror(code) for code in _CODES]
    lines = (line.strip() for each in causes(thrown) for line in str(each.getMessage()).splitlines())
    reasons = [line for line in lines if any(text in line for text in texts)]
    return _error(min(reasons, key=len), checkpoint) if reasons else None


@contextlib.contextmanager
def full_disk_errors(checkpoint: str) -> Iterator[None]:
    """Raise DiskFull if this process can't write a file because a disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _CODES:
            raise
        raise _error(str(error), checkpoint) from error


def _error(reason: str, checkpoint: str) -> DiskFull:
    folders = {"service.checkpoint": local_path(checkpoint), "temporary files": Path(tempfile.gettempdir())}
    free = {f"{what} in {at}": shutil.disk_usage(at).free for what, at in folders.items() if at is not None}
    small = {name: size for name, size in free.items() if size < _LITTLE} or free
    found = ", ".join(f"{name}: {size:,} bytes free" for name, size in small.items())
    return DiskFull(
        f"no room is left on a disk ({reason}); {found}; make room there: the service then goes on"
    )
