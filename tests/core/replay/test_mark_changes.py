"""Mark changes: each is applied once, and in the same way when a batch is tried again."""

from __future__ import annotations

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.replay.mark_changes import MarkChange, due_changes
from replayfilter.core.replay.mark_table import MarkTable
from replayfilter.core.replay.marks import Marks
from replayfilter.core.routing import route_batch
from replayfilter.core.rules import Rules
from replayfilter.core.state import ShardState
from tests.support.core_run import MemoryStore

NOW = 10**15


def marks(*changes: tuple[int, int, int | None]) -> MarkTable:
    return MarkTable().with_changes([MarkChange(0, 0, *change) for change in changes], NOW, MemoryStore())


def test_set_replaces_or_adds_and_forget_removes() -> None:
    store = MemoryStore()
    table = marks((7, 1, 10), (-3, 0, 5), (7, 0, 8))
    found = table.all(store)
    assert list(found.as_dict().items()) == [((-3, 0), 5), ((7, 0), 8), ((7, 1), 10)]
    found.gaps[2] = 4
    changes = [MarkChange(1, 0, 7, 1, 2), MarkChange(2, 0, -3, 0, None), MarkChange(3, 0, 9, 9, None)]
    again = MarkTable.of(found).with_changes(changes, NOW + 5, store).all(store)
    assert again.as_dict() == {(7, 0): 8, (7, 1): 2}
    assert again.gaps.tolist() == [0, 4], "the gaps counted so far are kept"
    assert again.seen.tolist() == [NOW, NOW + 5]
    assert {name: column.dtype for name, column in again.columns().items()} == {
        name: column.dtype for name, column in Marks.empty().columns().items()
    }


def test_a_change_is_applied_once_from_its_batch_on() -> None:
    changes = [MarkChange(1, 5, 1, 0, 1), MarkChange(2, 5, 1, 0, 2), MarkChange(3, 9, 1, 0, 3)]
    assert due_changes(changes, 0, 4) == [], (
        "a batch that was planned before the change is tried again without it"
    )
    assert due_changes(changes, 0, 5) == due_changes(changes, 0, 5) == changes[:2]
    assert due_changes(changes, 0, 8) == changes[:2], "a shard without records in batches 5 to 7"
    assert due_changes(changes, 2, 8) == []
    assert due_changes(changes, 2, 9) == changes[2:]


def test_the_state_counts_the_changes_applied_to_it() -> None:
    state, store = ShardState(0, marks((7, 1, 10)), applied_changes=3), MemoryStore()
    assert ShardState.from_bytes(state.to_bytes()).applied_changes == 3
    changes = [MarkChange(number, 2 * number, 7, 1, number) for number in range(1, 7)]
    for batch, mark, applied in ((9, 4, 4), (10, 5, 5), (10, 5, 5)):
        state = state.with_changes(changes, batch, NOW, store)
        assert (state.marks.all(store).as_dict(), state.applied_changes) == ({(7, 1): mark}, applied)
    assert route_batch([], Rules(), state, store, BatchFacts.at(NOW)).state.applied_changes == 5
