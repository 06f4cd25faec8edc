"""Reads the state of a stopped service, with Spark's own reader of state stores.

Spark 4.0's reader only knows the old names of state files, ``7.zip`` and ``7.changelog``. A service's files
are called ``7_<id>.zip``. A batch that was tried again leaves several, and the commit log says which id is
valid. Therefore the reader gets a folder of links under the old names, and never the checkpoint itself.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from pyspark import SparkConf
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from replayfilter.core.buckets import RunStore
from replayfilter.core.replay.mark_table import MarkTable
from replayfilter.core.state import ShardState
from replayfilter.errors import CheckpointError
from replayfilter.spark.checkpoint_folder import CheckpointFolder
from replayfilter.spark.session import FILE_MANAGER, STATE_STORE, java_options, start_jvm

_OPERATOR = "0"  # the plan has one stage with state
# Spark's default, since the JVM may have been started for S3. Schemas are opened where they were written.
_FILES = "org.apache.spark.sql.execution.streaming.FileContextBasedCheckpointFileManager"
_NAMED = re.compile(r"(\d+)_([0-9a-f-]+)\.(zip|changelog)")


def read_shards(checkpoint: CheckpointFolder, spark: str) -> list[ShardState]:
    """The state of every shard after the last finished batch, with all marks in it; as :func:`read_state`."""
    return read_state(checkpoint, spark, lambda _: [])[0]


def read_state(
    checkpoint: CheckpointFolder, spark: str, wanted: Callable[[list[ShardState]], Iterable[str]]
) -> tuple[list[ShardState], RunStore]:
    """The state of every shard after the last finished batch, and a store of the runs that are ``wanted``.

    Starts and stops Spark. The states have all marks in them. ``wanted`` gets them as they are stored, and
    returns the names of runs. ``spark``: the name of Spark's own folder in the checkpoint. From another file
    system than the local one, the whole state is copied into a temporary folder first. Raises CheckpointError
    if the state can't be read, StorageError if its file system can't, and MissingDependency without Java.
    """
    with tempfile.TemporaryDirectory(prefix="replayfilter-state-") as folder:
        local = checkpoint.on_disk(spark, Path(folder))
        try:
            _link(local, Path(folder, "view"))
            return _read(Path(folder, "view"), wanted)
        except (PySparkException, OSError, ValueError, KeyError) as error:
            first = (str(error).strip().splitlines() or ["no reason given"])[0]
            raise CheckpointError(
                f"the state in {checkpoint.location} can't be read: {first}; restore it from a backup, or "
                "set a new service.checkpoint and fill it with: replayfilter rebuild CONFIG"
            ) from error


class StoredRuns:
    """The runs that were read, as the store that they were written to."""

    def __init__(self, runs: dict[str, bytes]) -> None:
        self._runs = runs

    def read(self, name: str) -> bytes:
        """The run with this name; KeyError if it was not read."""
        return self._runs[name]

    def write(self, name: str, data: bytes) -> None:
        """Not possible."""
        raise NotImplementedError("the state of a stopped service is only read")

    def drop(self, name: str) -> None:
        """Not possible."""
        raise NotImplementedError("the state of a stopped service is only read")


def _read(
    view: Path, wanted: Callable[[list[ShardState]], Iterable[str]]
) -> tuple[list[ShardState], RunStore]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options("off"),
        "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        FILE_MANAGER: _FILES,
    }
    conf = SparkConf(loadDefaults=False).setMaster("local[1]").setAll(list(settings.items()))
    start_jvm(conf)
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    try:
        reader = spark.read.format("statestore")
        states = reader.option("stateVarName", "shard").load(f"file:{view}").select("value.state")
        shards = [ShardState.from_bytes(bytes(row[0])) for row in states.collect()]
        names = {bytes.fromhex(entry.name) for shard in shards for entry in shard.marks.runs}
        names |= {bytes.fromhex(name) for name in wanted(shards)}
        store = StoredRuns({})
        if names:
            runs = reader.option("stateVarName", "runs").load(f"file:{view}")
            found = runs.select("user_map_key.name", "user_map_value.run").where(f.col("name").isin([*names]))
            store = StoredRuns({bytes(name).hex(): bytes(run) for name, run in found.collect()})
        return [replace(shard, marks=MarkTable.of(shard.marks.all(store))) for shard in shards], store
    finally:
        spark.stop()


def _link(checkpoint: Path, view: Path) -> None:
    """Fill ``view`` with copies and links under the names that Spark's reader knows."""
    state = Path("state", _OPERATOR)
    for part in ("metadata", "offsets", state / "_metadata", state / "_stateSchema"):
        if (checkpoint / part).is_dir():
            shutil.copytree(checkpoint / part, view / part)
        elif (checkpoint / part).exists():
            view.mkdir(parents=True, exist_ok=True)
            shutil.copy(checkpoint / part, view / part)
    ids: dict[tuple[int, int], str] = {}  # (partition, version) -> the valid id
    (view / "commits").mkdir(parents=True)
    for entry in (checkpoint / "commits").glob("[0-9]*"):
        commit = json.loads(entry.read_text("utf-8").splitlines()[-1])
        shutil.copy(entry, view / "commits")
        for partition, stores in enumerate((commit.get("stateUniqueIds") or {}).get(_OPERATOR, ())):
            ids[partition, int(entry.name) + 1] = stores[0]
    for folder in (checkpoint / state).glob("[0-9]*"):
        target = view / state / folder.name
        target.mkdir(parents=True)
        for inner in folder.iterdir():
            named = _NAMED.fullmatch(inner.name)
            if named is None:
                if not inner.name.startswith("."):  # skip checksums: they are for the new names
                    (target / inner.name).symlink_to(inner.absolute())
            elif ids.get((int(folder.name), int(named[1])), named[2]) == named[2]:
                (target / f"{named[1]}.{named[3]}").symlink_to(inner.absolute())
