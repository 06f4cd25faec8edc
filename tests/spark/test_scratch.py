"""Temporary files: those of finished batches are removed, and those of killed processes at the next start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pyspark import SparkContext

from replayfilter.spark.scratch import take_folder
from tests.support.pipelines import Pipeline, order, record

SHUFFLES_OF_A_BATCH = 2
OWNER = """
import time
from replayfilter.spark.scratch import take_folder
folder, _ = take_folder()
(folder / "shuffle").write_bytes(b"x")
print(folder, flush=True)
time.sleep(60)
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_is_not(parent: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        theirs = Path(owner.stdout.readline().strip())
        mine, lock = take_folder()
        assert (theirs / "shuffle").exists()
        owner.kill()
        owner.wait()
        again, lock_of_again = take_folder()
    assert not theirs.exists()
    assert mine.exists()
    assert again != mine
    assert mine.parent == theirs.parent == parent
    os.close(lock)
    os.close(lock_of_again)


def test_what_only_has_such_a_name_is_left_alone(parent: Path) -> None:
    other = parent / "other"
    other.mkdir()
    (other / "kept").touch()
    name = f"replayfilter-spark-{os.getuid()}-x"
    (parent / name).symlink_to(other)
    (parent / f"{name}y").touch()
    folder, lock = take_folder()
    os.close(lock)
    assert {each.name for each in parent.iterdir()} == {"other", name, f"{name}y", folder.name}
    assert (other / "kept").exists()


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_shuffle_files_of_finished_batches_are_removed(bootstrap: str, tmp_path: Path) -> None:
    """Before, the files of all batches were there at the end of this run."""
    pipeline = Pipeline(bootstrap, tmp_path, "shuffled", batch_records=20)
    pipeline.publish([record(order(number, 0)) for number in range(400)])
    pipeline.session()
    before = shuffles_on_disk()
    pipeline.run_once()
    assert len(pipeline.progress) >= 10
    assert len(shuffles_on_disk() - before) <= 3 * SHUFFLES_OF_A_BATCH


def shuffles_on_disk() -> set[str]:
    """The ids of the shuffles that this process's JVM has files of."""
    jvm = SparkContext._jvm
    assert jvm is not None
    folder = Path(jvm.java.lang.System.getProperty("java.io.tmpdir"))
    return {path.name.split("_")[1] for path in folder.rglob("shuffle_*.data")}
