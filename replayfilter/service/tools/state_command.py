"""``replayfilter state``: prints the marks and the size of a stopped service's state, and changes marks.

A mark change takes effect at the next start. Changes are appended as lines of JSON to ``edits.jsonl``, beside
Spark's checkpoint; this file is also a log of what was changed, when, by whom, and what the mark was before.
The command never writes to the state itself.
"""

from __future__ import annotations

import getpass
import json
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from replayfilter.core.replay.mark_changes import MarkChange, after_changes, due_changes
from replayfilter.core.replay.marks import Marks
from replayfilter.core.state import ShardState
from replayfilter.errors import CheckpointError, ConfigError
from replayfilter.service.monitor.storage import LOCATIONS, Storage
from replayfilter.service.runtime.checkpoint import SPARK
from replayfilter.spark.checkpoint_folder import CheckpointFolder

EDITS = "edits.jsonl"
ANY_BATCH = 1 << 62  # higher than the number of any batch


class ChangeRequest(NamedTuple):
    """A change that a user asks for: set the mark of a source, or forget it if ``mark`` is None."""

    pid: int
    partition: int
    mark: int | None


def read_changes(files: CheckpointFolder) -> tuple[MarkChange, ...]:
    """Return the mark changes in a checkpoint. Raises CheckpointError if their file is damaged."""
    lines = (files.read(EDITS) or b"").decode("utf-8", "replace").splitlines()
    try:
        rows = [json.loads(line) for line in lines]
        changes = tuple(MarkChange(*(row[name] for name in MarkChange._fields)) for row in rows)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{EDITS} in the checkpoint is damaged ({error}): restore it") from None
    if [change.number for change in changes] != list(range(1, len(changes) + 1)):
        raise CheckpointError(f"{EDITS} in the checkpoint has missing or additional lines: restore it")
    return changes


def parse_changes(to_set: list[str], to_forget: list[str]) -> list[ChangeRequest]:
    """Parse texts ``PID/PARTITION=OFFSET`` (to set) and ``PID/PARTITION`` (to forget).

    Raises ConfigError with one error for each text that is wrong.

    >>> parse_changes(["-5/3=99"], ["7/0"])
    [ChangeRequest(pid=-5, partition=3, mark=99), ChangeRequest(pid=7, partition=0, mark=None)]
    """
    found, errors = [], []
    for option, form, texts in (
        ("--set", "PID/PARTITION=OFFSET", to_set), ("--forget", "PID/PARTITION", to_forget),
    ):  # fmt: skip
        for text in texts:
            source, equals, mark = text.partition("=")
            pid, _, partition = source.partition("/")
            try:
                if bool(equals) != (option == "--set"):
                    raise ValueError
                request = ChangeRequest(int(pid), int(partition), int(mark) if equals else None)
            except ValueError:
                errors.append(f"{option} {text}: write {form}, with the numbers that `state` prints")
                continue
            if not (-(1 << 63) <= request.pid < 1 << 63 and -(1 << 31) <= request.partition < 1 << 31):
                errors.append(f"{option} {text}: PID must be an int64 and PARTITION an int32")
            elif request.mark is not None and not -(1 << 63) <= request.mark < 1 << 63:
                errors.append(f"{option} {text}: OFFSET must be an int64")
            found.append(request)
    if errors:
        raise ConfigError(errors)
    return found


def current_marks(
    shards: list[ShardState], changes: tuple[MarkChange, ...]
) -> tuple[ShardState, list[MarkChange]]:
    """Return a shard with the current marks, and the changes that they don't include yet.

    All shards keep all marks; the shard whose marks were updated last is returned.
    """
    newest = max(shards, key=lambda shard: shard.mark_time_us, default=ShardState.empty())
    return newest, due_changes(changes, newest.applied_changes, ANY_BATCH)


def add_changes(
    files: CheckpointFolder, requests: list[ChangeRequest], marks: Marks, pending: list[MarkChange]
) -> list[str]:
    """Append the changes to the file, and return a sentence about each.

    They take effect at the first batch that Spark hasn't planned yet, so that a batch that is tried again
    decides as it did before.
    """
    batches = [int(name) for name in files.names(f"{SPARK}/offsets") if name.isdecimal()]
    first = max(batches, default=-1) + 1
    number = len(read_changes(files))
    known = after_changes(marks.as_dict(), pending)
    lines, descriptions = (files.read(EDITS) or b"").decode(), []
    for request in requests:
        number += 1
        before = known.get(request[:2])
        row = MarkChange(number, first, *request)._asdict() | {
            "before": before,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "by": getpass.getuser(),
        }
        lines += json.dumps(row) + "\n"
        descriptions.append(describe(request, before))
    files.write(EDITS, lines.encode())
    return descriptions


def describe(request: ChangeRequest, before: int | None) -> str:
    """Return a sentence about what the change does; ``before`` is the current mark, if there is one."""
    source = f"source {request.pid}/{request.partition}"
    current = "it has no mark" if before is None else f"its mark is {before}"
    if request.mark is None:
        return f"{source}: forget its mark ({current}); its next record passes, whatever its offset"
    effect = ""
    if before is not None and request.mark < before:
        effect = f"; records {request.mark + 1} to {before} would pass a second time"
    elif before is not None and request.mark > before + 1:
        effect = f"; records {before + 1} to {request.mark} would be taken for replays"
    return f"{source}: set its mark to {request.mark} ({current}){effect}"


def print_marks(console: Console, shard: ShardState, pending: list[MarkChange]) -> None:
    """Print the marks, and the changes that take effect at the next start."""
    marks, table = shard.marks.recent, Table(box=None, pad_edge=False)
    for name in ("pid", "partition", "mark", "idle", "gaps", "in several partitions"):
        table.add_column(name, justify="right", no_wrap=True)
    columns = (marks.pid, marks.partition, marks.mark, marks.seen, marks.gaps, marks.spread)
    for pid, partition, mark, seen, gaps, spread in zip(*(c.tolist() for c in columns), strict=True):
        idle = str(timedelta(seconds=(shard.mark_time_us - seen) // 10**6))
        table.add_row(str(pid), str(partition), str(mark), idle, f"{gaps:,}", "yes" if spread else "")
    console.print(f"{len(marks.mark):,} sources", highlight=False)
    if len(marks.mark):
        console.print(table)
    for change in pending:
        action = "forgotten" if change.mark is None else f"set to {change.mark}"
        console.print(f"at the next start: {change.pid}/{change.partition} {action}", highlight=False)


def print_sizes(console: Console, shards: list[ShardState], storage: Storage) -> None:
    """Print the number of keys and the size of the state, in bytes and in bytes per key."""
    keys = sum(shard.keys for shard in shards)
    console.print(f"{keys:,} keys in {len(shards)} shards", highlight=False)
    table = Table(box=None, pad_edge=False)
    for name in ("state", "bytes", "per key"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    sizes = {"memory": sum(shard.memory for shard in shards)} | storage.sizes
    for location, size in sizes.items():
        table.add_row(LOCATIONS[location], f"{size:,}", f"{size / keys:,.1f}" if keys else "-")
    console.print(table)
