"""`replayfilter prepare`: whatever a first start would fetch, and what makes every start faster."""

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
from replayfilter.jvm.jars import spark_jars
from replayfilter.jvm.java import java

RECORDS = 4_000  # a batch that goes all the way, and has every route
RUN_SECONDS = 300.0  # the run takes 40 s on two cores, a third of it for writing the file
_BY_LAUNCHER = "SPARK_SUBMIT_OPTS"  # Spark's own variable for options of the driver's JVM


def prepare() -> Path:
    """Fetch the jars, and run a short stream through a development broker to keep the JVM's classes.

    Returns the file that holds them, made anew. Raises MissingDependency if Java or a jar is missing, if the
    run fails, or if the file can't be written beside the installed packages.
    """
    spark_jars()
    archive = classes.ARCHIVE
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        archive.unlink(missing_ok=True)  # a JVM that reads one can't write the next
    except OSError as error:
        raise MissingDependency(
            f"{archive} can't be written ({error.strerror}): install replayfilter into a virtual environment "
            "of your own, or do without; a service then starts as it does, only later"
        ) from error
    with tempfile.TemporaryDirectory(prefix="replayfilter-prepare-") as name, DevBroker() as broker:
        config, made = _scene(Path(name), broker.bootstrap), archive.with_suffix(f".{os.getpid()}")
        try:
            _run(config, made)
            _check(made)
            made.replace(archive)
        finally:
            made.unlink(missing_ok=True)
    return archive


def _scene(folder: Path, bootstrap: str) -> Path:
    for topic in (INPUT, *(f"{INPUT}.{route}" for route in OUTPUTS)):
        create_topic(bootstrap, topic, PARTITIONS)
    publish(bootstrap, INPUT, generate(RECORDS, end_ms=int(time.time() * 1000), partitions=PARTITIONS))
    return write_config(folder, bootstrap)


def _run(config: Path, made: Path) -> None:
    options = f"{os.environ.get(_BY_LAUNCHER, '')} {classes.writing(made)}"
    ended = subprocess.run(  # until its JVM has closed the output, too: the file is whole then
        [sys.executable, "-m", "replayfilter", "run", str(config), "--once"],
        env=os.environ | {_BY_LAUNCHER: options},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    if not made.exists():
        raise MissingDependency(
            f"the run that was to show Spark's classes ended with {ended.returncode} and left none:\n"
            f"{(ended.stdout + ended.stderr)[-2000:]}"
        )


def _check(made: Path) -> None:
    """Java ends with a SIGBUS on a file that is cut off: so let it try, and let the disk have it all."""
    # without the report of a crash, which Java would leave in the working folder
    command = [str(java()), "-XX:+SuppressFatalErrorMessage", f"-XX:SharedArchiveFile={made}", "-version"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    if ended.returncode:
        raise MissingDependency(
            f"Java can't use the {made.stat().st_size} bytes of classes that it wrote for {classes.ARCHIVE}: "
            f"is the disk full? It ended with {ended.returncode}: {(ended.stdout + ended.stderr)[-500:]}"
        )
    with made.open("rb") as file:
        os.fsync(file.fileno())
