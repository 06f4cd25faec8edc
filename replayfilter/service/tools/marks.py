"""``replayfilter state``: the marks of a stopped service, edits of them for its next start, and its size.

The edits are lines of JSON in ``edits.jsonl`` beside Spark's checkpoint, which are a log as well: what was
edited, when, by whom, and what was there before. The state itself is never written to by hand.
"""

from __future__ import annotations

import getpass
import json
from datetime import UTC, datetime
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from replayfilter.core.replay.mark_changes import MarkChange, apply_changes, due_changes
from replayfilter.core.replay.marks import Marks
from replayfilter.core.routing import ShardState
from replayfilter.errors import CheckpointError, ConfigError
from replayfilter.service.monitor.storage import PLACES, Storage
from replayfilter.service.runtime.checkpoint import SPARK, Files

EDITS = "edits.jsonl"


class ChangeRequest(NamedTuple):
    """What to do to the mark of a source; ``mark`` None: forget it."""

    pid: int
    partition: int
    mark: int | None


def read_changes(files: Files) -> tuple[MarkChange, ...]:
    """The edits of a checkpoint, for the plan. CheckpointError if the file is damaged."""
    lines = (files.read(EDITS) or b"").decode("utf-8", "replace").splitlines()
    try:
        rows = [json.loads(line) for line in lines]
        mark_changes = tuple(MarkChange(*(row[name] for name in MarkChange._fields)) for row in rows)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{EDITS} in the checkpoint is damaged ({error}): restore it") from None
    if [edit.number for edit in mark_changes] != list(range(1, len(mark_changes) + 1)):
        raise CheckpointError(f"{EDITS} in the checkpoint has lines too few or too many: restore it")
    return mark_changes


def parse_changes(given: list[str], forgotten: list[str]) -> list[ChangeRequest]:
    """``PID/PARTITION=OFFSET`` and ``PID/PARTITION`` in numbers; ConfigError with each that is wrong.

    >>> wishes_of(["-5/3=99"], ["7/0"])
    [Wish(pid=-5, partition=3, mark=99), Wish(pid=7, partition=0, mark=None)]
    """
    found, faults = [], []
    for option, form, texts in (
        ("--set", "PID/PARTITION=OFFSET", given), ("--forget", "PID/PARTITION", forgotten),
    ):  # fmt: skip
        for text in texts:
            source, equals, mark = text.partition("=")
            pid, _, partition = source.partition("/")
            try:
                if bool(equals) != (option == "--set"):
                    raise ValueError
                wish = ChangeRequest(int(pid), int(partition), int(mark) if equals else None)
            except ValueError:
                faults.append(f"{option} {text}: write {form}, as `state` shows them")
                continue
            if not (-(1 << 63) <= wish.pid < 1 << 63 and -(1 << 31) <= wish.partition < 1 << 31):
                faults.append(f"{option} {text}: PID is an int64, PARTITION an int32")
            elif wish.mark is not None and not -(1 << 63) <= wish.mark < 1 << 63:
                faults.append(f"{option} {text}: OFFSET is an int64")
            found.append(wish)
    if faults:
        raise ConfigError(faults)
    return found


def current_marks(
    shards: list[ShardState], mark_changes: tuple[MarkChange, ...]
) -> tuple[Marks, list[MarkChange]]:
    """The marks, of the shard that has seen most, and the edits that it hasn't seen yet."""
    newest = max(shards, key=lambda shard: int(shard.marks.seen.max(initial=0)), default=ShardState.empty())
    return newest.marks, due_changes(mark_changes, newest.mark_changes, 1 << 62)


def add_changes(
    files: Files, wishes: list[ChangeRequest], marks: Marks, pending: list[MarkChange]
) -> list[str]:
    """Write the edits down, to count from the first batch that is not planned yet; a sentence for each."""
    batches = [int(name) for name in files.names(f"{SPARK}/offsets") if name.isdecimal()]
    first = max(batches, default=-1) + 1
    number = len(read_changes(files))
    known = apply_changes(marks, pending, 0).as_dict()
    lines, told = (files.read(EDITS) or b"").decode(), []
    for wish in wishes:
        number += 1
        before = known.get(wish[:2])
        row = MarkChange(number, first, *wish)._asdict() | {
            "before": before,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "by": getpass.getuser(),
        }
        lines += json.dumps(row) + "\n"
        told.append(describe(wish, before))
    files.write(EDITS, lines.encode())
    return told


def describe(wish: ChangeRequest, before: int | None) -> str:
    """What a wish does."""
    source = f"source {wish.pid}/{wish.partition}"
    was = "it has no mark" if before is None else f"its mark is {before}"
    if wish.mark is None:
        return f"{source}: forget its mark ({was}); the next record of it passes, whatever its offset"
    more = ""
    if before is not None and wish.mark < before:
        more = f"; records {wish.mark + 1} to {before} would pass a second time"
    elif before is not None and wish.mark > before + 1:
        more = f"; records {before + 1} to {wish.mark} would be taken for replays"
    return f"{source}: set its mark to {wish.mark} ({was}){more}"


def show(console: Console, marks: Marks, pending: list[MarkChange]) -> None:
    """Print the marks, and the edits that wait for the next start."""
    table = Table(box=None, pad_edge=False)
    for name in ("pid", "partition", "mark", "last seen", "gaps", "in several partitions"):
        table.add_column(name, justify="right", no_wrap=True)
    columns = (marks.pid, marks.partition, marks.mark, marks.seen, marks.gaps, marks.spread)
    for pid, partition, mark, seen, gaps, spread in zip(*(c.tolist() for c in columns), strict=True):
        at = datetime.fromtimestamp(seen / 1e6, UTC).isoformat(sep=" ", timespec="seconds")
        table.add_row(str(pid), str(partition), str(mark), at, f"{gaps:,}", "yes" if spread else "")
    console.print(f"{len(marks.mark):,} sources", highlight=False)
    if len(marks.mark):
        console.print(table)
    for edit in pending:
        what = "forgotten" if edit.mark is None else f"set to {edit.mark}"
        console.print(f"at the next start: {edit.pid}/{edit.partition} {what}", highlight=False)


def show_sizes(console: Console, shards: list[ShardState], storage: Storage) -> None:
    """Print the number of keys, and what all that is remembered takes, in bytes and for each key."""
    keys = sum(shard.keys for shard in shards)
    console.print(f"{keys:,} keys in {len(shards)} shards", highlight=False)
    table = Table(box=None, pad_edge=False)
    for name in ("state", "bytes", "a key"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    sizes = {"memory": sum(shard.memory for shard in shards)} | storage.sizes
    for place, size in sizes.items():
        table.add_row(PLACES[place], f"{size:,}", f"{size / keys:,.1f}" if keys else "-")
    console.print(table)
