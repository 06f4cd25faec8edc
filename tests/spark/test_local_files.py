"""The JVM's local files: no process for each, and the permissions that Hadoop gives them."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines import Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILES = 50


def cpu_ticks_of_ended_children(pid: int) -> int:
    """The CPU time that a process's children have used, as far as they have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[13]) + int(fields[14])


def test_a_file_is_written_without_a_process(bootstrap: str, tmp_path: Path) -> None:
    session = Pipeline(bootstrap, tmp_path, "files").session()
    jvm: Any = session._jvm
    pid = jvm.java.lang.ProcessHandle.current().pid()
    hadoop = jvm.org.apache.hadoop.fs
    path = hadoop.Path(tmp_path.as_uri())
    local = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())

    def cpu_ticks_of_children() -> int:
        before = cpu_ticks_of_ended_children(pid)
        for number in range(FILES):
            local.create(hadoop.Path(path, str(number)), True).close()
        return cpu_ticks_of_ended_children(pid) - before

    # A process of an earlier test may end in one of the rounds.
    assert min(cpu_ticks_of_children() for _ in range(3)) == 0
    modes = {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir() if each.is_file()}
    assert modes == {0o644}
    assert len(os.listdir(tmp_path)) >= 2 * FILES, "each has a checksum"
    local.setPermission(hadoop.Path(path, "0"), hadoop.permission.FsPermission("750"))
    assert stat.S_IMODE((tmp_path / "0").stat().st_mode) == 0o750
