"""Whether a failure shows that a file of Spark's checkpoint is damaged, which no other attempt repairs.

Spark has no error condition for it: whatever goes wrong while state is loaded is a
``CANNOT_LOAD_STATE_STORE``, also a full disk or a name node that is away. So this looks at the classes of
what Java has thrown, and then at the files:

1. Some are thrown only for a file with the wrong content, such as Hadoop's ChecksumException.
2. Some error conditions say that a file is gone or has another size.
3. Whatever was thrown, a file that Spark goes on from has another size than its checksums are for. An empty
   file is noticed only by what happens later, for example a NullPointerException.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from replayfilter.errors import CheckpointDamaged

_SPARK, _LOADING = "org.apache.spark.SparkException", "CANNOT_LOAD_STATE_STORE"
_WRONG_CONTENT = "org.apache.hadoop.fs.ChecksumException"
_WRONG_FILE = {
    f"{_LOADING}.{name}"
    for name in (
        "CANNOT_FIND_BASE_SNAPSHOT_CHECKPOINT",
        "CANNOT_READ_CHECKPOINT",
        "CANNOT_READ_STREAMING_STATE_FILE",
        "UNEXPECTED_FILE_SIZE",
    )
}
_GONE = "java.io.FileNotFoundException"
_CRC_HEADER, _CRC_BYTES = 8, 4  # of a .crc file; the header ends with how many bytes each checksum is for


def damage(thrown: Any, checkpoint: str) -> CheckpointDamaged | None:
    """The error that says which file is damaged; None if nothing shows that one is.

    ``thrown``: a Java exception, as py4j shows it. ``checkpoint``: the path or URL of Spark's checkpoint.
    """
    found = next((text for each in causes(thrown) if (text := _shown_damage(each, checkpoint))), None)
    if found is None and (folder := local_path(checkpoint)) is not None:
        sizes = "another size than when it was written"
        found = next((f"{file} has {file.stat().st_size} bytes, {sizes}" for file in cut_files(folder)), None)
    if found is None:
        return None
    return CheckpointDamaged(
        f"a file of the checkpoint is damaged ({found}); nothing was delivered from it: set a new "
        "service.checkpoint and fill it with: replayfilter rebuild CONFIG, or restore the file if you have a "
        "copy of it"
    )


def causes(thrown: Any) -> Iterator[Any]:
    """A Java exception, its cause, the cause of that, and so on."""
    while thrown is not None:
        yield thrown
        thrown = thrown.getCause()


def _shown_damage(thrown: Any, checkpoint: str) -> str:
    """What is damaged according to one exception; empty if it doesn't say so."""
    name = thrown.getClass().getName()
    message = (str(thrown.getMessage()).strip().splitlines() or [name])[0]
    if name == _SPARK and thrown.getCondition() in _WRONG_FILE:
        return message
    return message if name == _WRONG_CONTENT or (name == _GONE and f"{checkpoint}/state/" in message) else ""


def cut_files(folder: Path) -> list[Path]:
    """The files from which Spark goes on and whose size is not the one that their checksums are for.

    ``folder``: Spark's checkpoint on a local disk. Attempts that failed may have left files half written, so
    a file of the state counts only if a finished batch names it.
    """
    return [file for file in _needed(folder) if not _fits_checksums(file)]


def _needed(folder: Path) -> Iterator[Path]:
    commits = [path for path in folder.glob("commits/*") if path.name.isdecimal()]
    yield from (path for path in [folder / "metadata", *folder.glob("offsets/*"), *commits] if path.is_file())
    yield from (path for path in folder.glob("state/*/_*/*/*") if path.is_file())
    for commit in commits:
        for operator, shards in _state_ids(commit).items():
            for shard, ids in enumerate(shards):
                yield from folder.glob(f"state/{operator}/{shard}/{int(commit.name) + 1}_{ids[0]}.*")


def _state_ids(commit: Path) -> dict[str, list[list[str]]]:
    """The ids of the state's files after a batch, by operator and shard; empty if the entry is unreadable."""
    try:
        return dict(json.loads(commit.read_text("utf-8").splitlines()[-1]).get("stateUniqueIds") or {})
    except (ValueError, IndexError, AttributeError):
        return {}


def _fits_checksums(file: Path) -> bool:
    try:
        size, checksums = file.stat().st_size, file.with_name(f".{file.name}.crc").read_bytes()
    except OSError:  # gone meanwhile, or without checksums
        return True
    each = int.from_bytes(checksums[_CRC_BYTES:_CRC_HEADER])
    return each == 0 or -(-size // each) == (len(checksums) - _CRC_HEADER) // _CRC_BYTES


def local_path(checkpoint: str) -> Path | None:
    """The folder that a checkpoint's path or URL names; None if it is on another file system."""
    parts = urlsplit(checkpoint)
    return Path(unquote(parts.path)) if parts.scheme in ("", "file") else None
