"""A checkpoint on one of Hadoop's file systems: the service's own files, by the JVM and client of Spark.

So a checkpoint has one set of settings and credentials, and whatever Spark reaches is reached here too.
Spark's checkpoint file manager writes the files: it knows how each file system replaces a file at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

from replayfilter.errors import StorageError
from replayfilter.spark.checkpoint_damage import damage
from replayfilter.spark.failures import jvm_errors
from replayfilter.spark.full_disk import full_disk

_STREAMING = "org.apache.spark.sql.execution.streaming"


class HadoopFolder:
    """A checkpoint at ``url``, such as ``hdfs://name-node/checkpoints/orders``.

    ``jvm``: Spark's, as py4j shows it. ``conf``: a Hadoop Configuration. Raises StorageError if the file
    system can't be used.
    """

    def __init__(self, url: str, jvm: Any, conf: Any) -> None:
        self._jvm, self.location, self._exists = jvm, url, False
        managers = getattr(getattr(jvm, f"{_STREAMING}.CheckpointFileManager$"), "MODULE$")
        with storage_errors(self.location):
            self._files = managers.create(self._path(), conf)
            self._system = self._path().getFileSystem(conf)

    def _path(self, *names: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path("/".join([self.location, *filter(None, names)]))

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if the file does not exist."""
        with contextlib.suppress(FileNotFoundError), storage_errors(self.location):
            stream = self._files.open(self._path(name))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()
        return None

    def write(self, name: str, content: bytes) -> None:
        """Replace a file atomically: a reader finds the old content or the new."""
        with storage_errors(self.location):
            if not self._exists:
                self._files.mkdirs(self._path())
                self._exists = True
            stream = self._files.createAtomic(self._path(name), True)
            try:
                stream.write(content)
            except BaseException:
                stream.cancel()
                raise
            stream.close()

    def remove(self, name: str) -> None:
        """Remove a file, or a subfolder with all that is in it."""
        with storage_errors(self.location):
            self._files.delete(self._path(name))

    def names(self, folder: str) -> list[str]:
        """The names in a subfolder; empty if the subfolder does not exist."""
        with contextlib.suppress(FileNotFoundError), storage_errors(self.location):
            return [status.getPath().getName() for status in self._files.list(self._path(folder))]
        return []

    def sizes(self, folder: str) -> dict[str, int]:
        """The bytes of each file in a subfolder and below, by its name relative to the subfolder."""
        root, found = self._path(folder), {}
        with contextlib.suppress(FileNotFoundError), storage_errors(self.location):
            prefix = self._system.makeQualified(root).toString() + "/"
            files = self._system.listFiles(root, True)
            while files.hasNext():
                status = files.next()
                found[status.getPath().toString().removeprefix(prefix)] = status.getLen()
        return found

    def on_disk(self, folder: str, scratch: Path) -> Path:
        """A copy of the subfolder in ``scratch``."""
        with storage_errors(self.location):
            target = self._jvm.org.apache.hadoop.fs.Path(f"file:{scratch}/")
            self._system.copyToLocalFile(False, self._path(folder), target, True)
        return scratch / folder.rpartition("/")[2]


@contextlib.contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Raise what Java throws as StorageError in one sentence, and FileNotFoundError for a missing file.

    Raises CheckpointDamaged for a file with the wrong content, DiskFull, and SparkLost if the JVM has ended.
    """
    try:
        with jvm_errors():
            yield
    except Py4JJavaError as error:
        thrown = [error.java_exception]
        if thrown[0].getClass().getName() == "java.io.FileNotFoundException":
            raise FileNotFoundError(str(thrown[0].getMessage())) from None
        if (known := full_disk(thrown[0], url) or damage(thrown[0], url)) is not None:
            raise known from None
        while thrown[-1].getCause() is not None:
            thrown.append(thrown[-1].getCause())
        kinds = [each.getClass().getSimpleName() for each in thrown]
        reason = str(thrown[-1].getMessage() or kinds[-1]).strip().splitlines()[0]
        remedy = next((text for kind, text in _REMEDIES.items() if kind in kinds), _ANY_REMEDY)
        what = f"service.checkpoint: {url} can't be used ({kinds[-1]}: {reason})"
        raise StorageError(f"{what}; {remedy}") from None


_ANSWERS = "check the address in service.checkpoint, and that its servers are up"
_PERMISSION = "grant this user the permission to read and write there, or set another location"
_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
_REMEDIES = {  # the first that is among the causes
    "NoAuthWithAWSException": _CREDENTIALS,
    "NoAwsCredentialsException": _CREDENTIALS,
    "AccessControlException": _PERMISSION,
    "AccessDeniedException": _PERMISSION,
    "ConnectException": _ANSWERS,
    "NoRouteToHostException": _ANSWERS,
    "SafeModeException": "wait until the name node has left its safe mode",
    "SocketTimeoutException": _ANSWERS,
    "UnknownHostException": _ANSWERS,
    "UnknownStoreException": "create the bucket, or correct its name",
}
_ANY_REMEDY = "find the reason in the logs of the file system, or set another location"
