"""Mark changes: manual changes to marks, each applied once, at a batch that is fixed when it is written.

A mark change names the first batch that it applies to: the one after the last batch that Spark has planned.
A batch that was planned before, and perhaps delivered in part, is decided as before when it is tried again.
A later batch always has the change, because the state counts the changes that were applied to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from replayfilter.core.replay.marks import Marks


class MarkChange(NamedTuple):
    """A change to the mark of the source (``pid``, ``partition``).

    ``number``: 1 for the first change of a checkpoint. ``batch``: the first batch it applies to.
    ``mark``: the new mark, None to forget the mark.
    """

    number: int
    batch: int
    pid: int
    partition: int
    mark: int | None


def due_changes(changes: Sequence[MarkChange], applied: int, batch: int) -> list[MarkChange]:
    """The changes for ``batch`` and earlier batches, without the first ``applied`` ones."""
    return [change for change in changes if change.number > applied and change.batch <= batch]


def apply_changes(marks: Marks, changes: Sequence[MarkChange], mark_time_us: int) -> Marks:
    """The marks after these changes; a source whose mark is set counts as seen now.

    >>> apply_changes(Marks.empty(), [MarkChange(1, 0, 7, 2, 99)], 0).as_dict()
    {(7, 2): 99}
    """
    for change in changes:
        same = (marks.pid == change.pid) & (marks.partition == change.partition)
        marks, old = marks.take(~same), marks.take(same)
        if change.mark is None:
            continue
        new = old if len(old.mark) else Marks.zeros(1)
        new.pid[0], new.partition[0] = change.pid, change.partition
        new.mark[0], new.seen[0] = change.mark, mark_time_us
        marks = Marks.joined([marks, new])
        marks = marks.take(np.lexsort((marks.partition, marks.pid)))
    return marks
