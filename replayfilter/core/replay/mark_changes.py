"""Mark changes: manual changes to marks, each applied once, at a batch that is fixed when it is written.

A mark change names the first batch that it applies to: the one after the last batch that Spark has planned.
A batch that was planned before, and perhaps delivered in part, is decided as before when it is tried again.
A later batch always has the change, because the state counts the changes that were applied to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Source = tuple[int, int]  # pid and source partition


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


def after_changes(marks: Mapping[Source, int], changes: Sequence[MarkChange]) -> dict[Source, int]:
    """The marks by source after these changes.

    >>> after_changes({(7, 1): 5}, [MarkChange(1, 0, 7, 2, 99), MarkChange(2, 0, 7, 1, None)])
    {(7, 2): 99}
    """
    after = dict(marks)
    for change in changes:
        after.pop((change.pid, change.partition), None)
        if change.mark is not None:
            after[change.pid, change.partition] = change.mark
    return after
