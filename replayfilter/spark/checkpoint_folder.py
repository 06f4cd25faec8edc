"""The service's own files in its checkpoint, wherever that is: a few operations, and those on local files.

The same operations on Hadoop's file systems are in hadoop_folder.py.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Protocol


class CheckpointFolder(Protocol):
    """Reads and writes files of a checkpoint. Names are relative to it, with "/" between parts.

    If a request fails, a local folder raises OSError; one elsewhere StorageError, or SparkLost without a JVM.
    """

    @property
    def location(self) -> str:
        """The path or URL of the checkpoint."""

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if the file does not exist."""

    def write(self, name: str, content: bytes) -> None:
        """Replace a file atomically: a reader finds the old content or the new."""

    def remove(self, name: str) -> None:
        """Remove a file, or a subfolder with all that is in it."""

    def names(self, folder: str) -> list[str]:
        """The names in a subfolder; empty if the subfolder does not exist."""

    def sizes(self, folder: str) -> dict[str, int]:
        """The bytes of each file in a subfolder and below, by its name relative to the subfolder."""

    def on_disk(self, folder: str, scratch: Path) -> Path:
        """A subfolder as a local folder: itself, or a copy of it in ``scratch``."""


class LocalFolder:
    """A checkpoint in a local folder, or in one that all machines mount. What is written is on the disk."""

    def __init__(self, path: Path) -> None:
        self.path, self.location = path, str(path)

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if the file does not exist."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Replace a file atomically: a reader finds the old content or the new."""
        self.path.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=self.path)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path / name)
        except BaseException:
            os.unlink(temporary)
            raise

    def remove(self, name: str) -> None:
        """Remove a file, or a subfolder with all that is in it."""
        path = self.path / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    def names(self, folder: str) -> list[str]:
        """The names in a subfolder; empty if the subfolder does not exist."""
        try:
            return os.listdir(self.path / folder)
        except FileNotFoundError:
            return []

    def sizes(self, folder: str) -> dict[str, int]:
        """The bytes of each file in a subfolder and below, by its name relative to the subfolder.

        Spark may remove files meanwhile; these are left out.
        """
        root, found = self.path / folder, {}
        for parent, _, names in os.walk(root):
            for path in (Path(parent, name) for name in names):
                try:
                    found[path.relative_to(root).as_posix()] = path.stat().st_size
                except OSError:
                    continue
        return found

    def on_disk(self, folder: str, scratch: Path) -> Path:
        """The subfolder itself."""
        return self.path / folder
