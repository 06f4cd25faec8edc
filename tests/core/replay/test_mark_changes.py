"""Edits of marks: once each, the same when a batch is tried again, and written down in full."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replayfilter.core.replay.mark_changes import MarkChange, apply_changes, due_changes
from replayfilter.core.replay.marks import Marks
from replayfilter.core.state import ShardState
from replayfilter.errors import CheckpointError, ConfigError
from replayfilter.service.runtime.checkpoint import CheckpointFolder
from replayfilter.service.tools.state_command import (
    EDITS,
    add_changes,
    current_marks,
    parse_changes,
    read_changes,
)

NOW = 10**15


def marks(*mark_changes: tuple[int, int, int | None]) -> Marks:
    return apply_changes(Marks.empty(), [MarkChange(0, 0, *edit) for edit in mark_changes], NOW)


def test_set_replaces_or_adds_in_order_and_forget_removes() -> None:
    found = marks((7, 1, 10), (-3, 0, 5), (7, 0, 8))
    assert list(found.as_dict().items()) == [((-3, 0), 5), ((7, 0), 8), ((7, 1), 10)]
    found.gaps[2] = 4
    again = apply_changes(
        found,
        [MarkChange(1, 0, 7, 1, 2), MarkChange(2, 0, -3, 0, None), MarkChange(3, 0, 9, 9, None)],
        NOW + 5,
    )
    assert again.as_dict() == {(7, 0): 8, (7, 1): 2}
    assert again.gaps.tolist() == [0, 4], "what was counted stays"
    assert again.seen.tolist() == [NOW, NOW + 5]
    assert {name: column.dtype for name, column in again.columns().items()} == {
        name: column.dtype for name, column in Marks.empty().columns().items()
    }


def test_an_edit_counts_once_from_its_batch_on() -> None:
    mark_changes = [MarkChange(1, 5, 1, 0, 1), MarkChange(2, 5, 1, 0, 2), MarkChange(3, 9, 1, 0, 3)]
    assert due_changes(mark_changes, 0, 4) == [], "a batch that was planned before is tried again as it was"
    assert due_changes(mark_changes, 0, 5) == due_changes(mark_changes, 0, 5) == mark_changes[:2]
    assert due_changes(mark_changes, 0, 8) == mark_changes[:2], "a shard without records in batches 5 to 7"
    assert due_changes(mark_changes, 2, 8) == []
    assert due_changes(mark_changes, 2, 9) == mark_changes[2:]


def test_the_count_is_kept_in_the_state() -> None:
    state = ShardState(0, marks((7, 1, 10)), applied_changes=3)
    assert ShardState.from_bytes(state.to_bytes()).applied_changes == 3


def test_edits_are_written_with_what_was_there_and_when(tmp_path: Path) -> None:
    files = CheckpointFolder(tmp_path)
    for batch in ("0", "1", "2", ".2.crc"):
        (tmp_path / "spark" / "offsets").mkdir(parents=True, exist_ok=True)
        (tmp_path / "spark" / "offsets" / batch).touch()
    state = ShardState(0, marks((7, 1, 10)))
    kept, pending = current_marks([ShardState.empty(), state], read_changes(files))
    assert pending == []
    told = add_changes(files, parse_changes(["7/1=4"], []), kept, pending)
    assert "records 5 to 10 would pass a second time" in told[0]
    kept, pending = current_marks([state], read_changes(files))
    assert pending == [MarkChange(1, 3, 7, 1, 4)]
    add_changes(files, parse_changes([], ["7/1"]), kept, pending)
    rows = [json.loads(line) for line in (tmp_path / EDITS).read_text().splitlines()]
    assert [(row["number"], row["batch"], row["mark"], row["before"]) for row in rows] == [
        (1, 3, 4, 10),
        (2, 3, None, 4),
    ]
    assert all(row["time"] and row["by"] for row in rows)


def test_a_damaged_file_and_wrong_wishes_are_told(tmp_path: Path) -> None:
    files = CheckpointFolder(tmp_path)
    for text in ("{", '{"number": 2, "batch": 1, "pid": 1, "partition": 1, "mark": 1}\n', "[]"):
        files.write(EDITS, text.encode())
        with pytest.raises(CheckpointError, match="restore it"):
            read_changes(files)
    with pytest.raises(ConfigError) as caught:
        parse_changes(["7/1", "x/1=2", f"{1 << 63}/1=2"], ["7", "7/1=3"])
    assert len(caught.value.errors) == 5
