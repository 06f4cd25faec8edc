"""``replayfilter prepare``: fetches the jars, and makes a class archive with which every start is faster."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from replayfilter.demo.kafka_io import create_topic, publish
from replayfilter.demo.stream import OUTPUTS, generate
from replayfilter.demo.walkthrough import INPUT, PARTITIONS, write_config
from replayfilter.devbroker import DevBroker
from replayfilter.errors import MissingDependency
from replayfilter.jvm import class_archive as classes
from replayfilter.jvm.java import java

RECORDS = 4_000  # enough for a batch that has records of every route
RUN_SECONDS = 300.0  # the service takes 40 s on two cores, a third of that to write the archive
_JVM_OPTIONS = "SPARK_SUBMIT_OPTS"  # Spark's environment variable for options of the driver's JVM


def prepare() -> Path:
    """Fetch the jars and write the class archive; return the archive's path.

    The archive holds the classes that the JVM loads while the service handles a short stream from a
    development broker. An archive that exists is replaced.

    Raises MissingDependency if Java or a jar is missing, if the service fails, or if the archive can't be
    written beside the installed packages.
    """
    archive = classes.ARCHIVE
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        archive.unlink(missing_ok=True)  # a JVM that uses an archive can't write another
    except OSError as error:
        raise MissingDependency(
            f"{archive} can't be written ({error.strerror}): install replayfilter into a virtual environment "
            "of your own. The archive is optional: without it a service only starts more slowly"
        ) from error
    with tempfile.TemporaryDirectory(prefix="replayfilter-prepare-") as name, DevBroker() as broker:
        config = _publish_stream(Path(name), broker.bootstrap)
        temporary = archive.with_suffix(f".{os.getpid()}")
        try:
            _run_service(config, temporary)
            _check(temporary)
            temporary.replace(archive)
        finally:
            temporary.unlink(missing_ok=True)
    return archive


def _publish_stream(folder: Path, bootstrap: str) -> Path:
    """Create the topics, publish the input, and write a config; return the config's path."""
    for topic in (INPUT, *(f"{INPUT}.{route}" for route in OUTPUTS)):
        create_topic(bootstrap, topic, PARTITIONS)
    publish(bootstrap, INPUT, generate(RECORDS, end_ms=int(time.time() * 1000), partitions=PARTITIONS))
    return write_config(folder, bootstrap)


def _run_service(config: Path, archive: Path) -> None:
    """Let the service handle the stream while its JVM writes the archive."""
    options = f"{os.environ.get(_JVM_OPTIONS, '')} {classes.write_options(archive)}"
    # This waits until the JVM has closed its output too; the archive is complete only then.
    ended = subprocess.run(
        [sys.executable, "-m", "replayfilter", "run", str(config), "--once"],
        env=os.environ | {_JVM_OPTIONS: options},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    if not archive.exists():
        raise MissingDependency(
            f"the service ended with exit code {ended.returncode} and Java wrote no class archive:\n"
            f"{(ended.stdout + ended.stderr)[-2000:]}"
        )


def _check(archive: Path) -> None:
    """Check that Java can use the archive, and flush it to the disk.

    A truncated archive (the disk was full) would end every later start with a SIGBUS.
    """
    # The first option stops a crashing JVM from leaving a report in the working folder.
    command = [str(java()), "-XX:+SuppressFatalErrorMessage", f"-XX:SharedArchiveFile={archive}", "-version"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    if ended.returncode:
        raise MissingDependency(
            f"Java can't use the class archive of {archive.stat().st_size} bytes that it wrote for "
            f"{classes.ARCHIVE}; is the disk full? It ended with exit code {ended.returncode}: "
            f"{(ended.stdout + ended.stderr)[-500:]}"
        )
    with archive.open("rb") as file:
        os.fsync(file.fileno())
