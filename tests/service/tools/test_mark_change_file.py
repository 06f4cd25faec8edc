"""The file of mark changes in a checkpoint: written in full, and read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replayfilter.core.replay.mark_changes import MarkChange
from replayfilter.core.replay.mark_table import MarkTable
from replayfilter.core.state import ShardState
from replayfilter.errors import CheckpointError, ConfigError
from replayfilter.service.tools.state_command import (
    EDITS,
    add_changes,
    current_marks,
    parse_changes,
    read_changes,
)
from replayfilter.spark.checkpoint_folder import LocalFolder
from tests.support.core_run import MemoryStore

MARKS = MarkTable().with_changes([MarkChange(0, 0, 7, 1, 10)], 10**15, MemoryStore())


def test_changes_are_written_with_the_mark_before_and_the_time(tmp_path: Path) -> None:
    files = LocalFolder(tmp_path)
    for batch in ("0", "1", "2", ".2.crc"):
        (tmp_path / "spark" / "offsets").mkdir(parents=True, exist_ok=True)
        (tmp_path / "spark" / "offsets" / batch).touch()
    state = ShardState(0, MARKS).at(10**15)
    shard, pending = current_marks([ShardState.empty(), state], read_changes(files))
    assert pending == []
    described = add_changes(files, parse_changes(["7/1=4"], []), shard.marks.recent, pending)
    assert "records 5 to 10 would pass a second time" in described[0]
    shard, pending = current_marks([state], read_changes(files))
    assert pending == [MarkChange(1, 3, 7, 1, 4)]
    add_changes(files, parse_changes([], ["7/1"]), shard.marks.recent, pending)
    rows = [json.loads(line) for line in (tmp_path / EDITS).read_text().splitlines()]
    assert [(row["number"], row["batch"], row["mark"], row["before"]) for row in rows] == [
        (1, 3, 4, 10),
        (2, 3, None, 4),
    ]
    assert all(row["time"] and row["by"] for row in rows)


def test_a_damaged_file_and_wrong_requests_are_refused(tmp_path: Path) -> None:
    files = LocalFolder(tmp_path)
    for text in ("{", '{"number": 2, "batch": 1, "pid": 1, "partition": 1, "mark": 1}\n', "[]"):
        files.write(EDITS, text.encode())
        with pytest.raises(CheckpointError, match="restore it"):
            read_changes(files)
    with pytest.raises(ConfigError) as caught:
        parse_changes(["7/1", "x/1=2", f"{1 << 63}/1=2"], ["7", "7/1=3"])
    assert len(caught.value.errors) == 5
