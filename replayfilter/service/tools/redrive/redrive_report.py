"""What ``replayfilter redrive`` prints: what is chosen or was written, what is left out, and other jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from rich.console import Console
from rich.table import Table

from replayfilter.service.tools.redrive.redrive_job import JobState
from replayfilter.service.tools.redrive.request import Done
from replayfilter.service.tools.redrive.selection import EXPLANATIONS, Summary

SHOWN_JOBS = 5
_COLUMNS = ("reason", "partition", "records", "offsets", "oldest", "newest", "message of the first")
_NUMBERS = {"partition", "records", "offsets"}


def print_summary(console: Console, source: str, summary: Summary, verb: str) -> None:
    """Print a row for each reason and partition, and a line for each kind of record that is left out.

    ``verb`` says what is done with the records: "to write" or "written".
    """
    console.print(
        f"{source}: {summary.read:,} records read, {summary.written:,} {verb}", highlight=False, markup=False
    )
    if summary.groups:
        console.print(_table(summary))
    for why, count in summary.left_out.items():
        line = f"left out: {count:,} {EXPLANATIONS[why]}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for topic, count in summary.destinations.items():
        console.print(f"{verb}: {count:,} to {topic}", highlight=False, markup=False, soft_wrap=True)


def print_jobs(console: Console, own: Done, others: Sequence[JobState]) -> None:
    """Print what this job and other jobs on the same topic have done."""
    if own.seconds:
        line = (
            f"this job: {own.written:,} records written and {own.left_out:,} left out so far, at {own.time}"
        )
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for job in others[:SHOWN_JOBS]:
        done = job.done
        asked = done.request.describe() if done.request else ""
        line = f"another job: {done.written:,} records written, at {done.time}: {asked}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if len(others) > SHOWN_JOBS:
        console.print(f"and {len(others) - SHOWN_JOBS:,} earlier jobs", highlight=False)


def _table(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in _COLUMNS:
        justify: Literal["left", "right"] = "right" if name in _NUMBERS else "left"
        table.add_column(name, justify=justify, no_wrap=name != _COLUMNS[-1])
    for (reason, partition), group in sorted(summary.groups.items()):
        offsets = f"{group.first_offset}-{group.last_offset}"
        times = (_time(group.oldest_ms), _time(group.newest_ms))
        table.add_row(reason, str(partition), f"{group.records:,}", offsets, *times, group.example)
    return table


def _time(time_ms: int | None) -> str:
    """ISO 8601 to the second; the number for times that no calendar has."""
    if time_ms is None:
        return "-"
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
