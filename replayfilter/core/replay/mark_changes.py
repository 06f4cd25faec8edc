"""Edits of marks by hand: each is applied once, at a batch that was fixed when it was written.

An edit names the first batch that it counts for: the one after the last that Spark has planned. So a batch
that was planned before, and perhaps delivered in part, decides as it did when it is tried again; and one
planned later always sees the edit, since the state before it tells which edits it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from replayfilter.core.columns import Columns
from replayfilter.core.replay.marks import MARK_DTYPES, Marks


class MarkChange(NamedTuple):
    """``number`` counts from 1; ``batch`` is the first that it counts for; ``mark`` None: forget."""

    number: int
    batch: int
    pid: int
    partition: int
    mark: int | None


def due_changes(mark_changes: Sequence[MarkChange], applied: int, batch: int) -> list[MarkChange]:
    """Those that a state with ``applied`` edits doesn't have yet, though ``batch`` is to see them."""
    return [edit for edit in mark_changes if edit.number > applied and edit.batch <= batch]


def apply_changes(marks: Marks, mark_changes: Sequence[MarkChange], batch_time_us: int) -> Marks:
    """The marks after these edits; one that is set counts as seen at the batch's time.

    >>> edited(Marks.empty(), [Edit(1, 0, 7, 2, 99)], 0).as_dict()
    {(7, 2): 99}
    """
    for edit in mark_changes:
        same = (marks.pid == edit.pid) & (marks.partition == edit.partition)
        rest, old = marks.take(~same), marks.take(same)
        if edit.mark is None:
            marks = rest
            continue
        row: Columns = {name: np.zeros(1, dtype) for name, dtype in MARK_DTYPES.items()}
        if len(old.mark):
            row = {name: column.copy() for name, column in old.columns().items()}
        row["pid"][0], row["partition"][0] = edit.pid, edit.partition
        row["mark"][0], row["seen"][0] = edit.mark, batch_time_us
        joined = {name: np.concatenate([column, row[name]]) for name, column in rest.columns().items()}
        marks = Marks(**joined).take(np.lexsort((joined["partition"], joined["pid"])))
    return marks
