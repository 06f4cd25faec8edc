"""The command that writes error or expired records again: redrive."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from replayfilter.service.cli.terminal import INTERRUPTED, ConfigFile, wide_console
from replayfilter.service.config.loader import load

MAX_REDRIVEN = 3  # as in the tool, which is imported when the command is used


class Refused(StrEnum):
    """The topics that records are redriven from."""

    ERROR = "error"
    EXPIRED = "expired"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(redrive)


def redrive(
    path: ConfigFile,
    execute: Annotated[
        bool, typer.Option("--execute", help="Write the records. Without it nothing is written.")
    ] = False,
    from_: Annotated[Refused, typer.Option("--from", help="Which output to read.")] = Refused.ERROR,
    to: Annotated[
        str, typer.Option(metavar="TOPIC", help="Where to write; by default, where each record came from.")
    ] = "",
    reason: Annotated[
        list[str] | None, typer.Option(help="Only errors with this rf-reason; repeatable.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only records with this timestamp or a later one.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only records with an earlier timestamp.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=VALUE]", help="Only records with this header; of several, all must be there."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Write at most this many records now; 0: all.")] = 0,
    max_redriven: Annotated[
        int, typer.Option(min=1, help="Leave out records that have been redriven this often.")
    ] = MAX_REDRIVEN,
    job: Annotated[
        str, typer.Option(help="A name for a job of its own, which also writes what others have written.")
    ] = "",
) -> None:
    """Write error or expired records to the input again, exactly once. Without --execute: show which."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from replayfilter.service.tools.redrive.redrive_job import Redrive
    from replayfilter.service.tools.redrive.redrive_report import print_jobs, print_summary
    from replayfilter.service.tools.redrive.request import Request
    from replayfilter.service.tools.redrive.selection import parse_selection

    config, console = load(path), wide_console()
    expired = from_ is Refused.EXPIRED
    selection = parse_selection(reason or [], since, until, header or [], expired)
    redrive = Redrive(config, Request(from_.value, selection, to, max_redriven, job))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(redrive.source, total=None)
            act = redrive.execute if execute else redrive.preview
            summary = act(limit, lambda done, total: bar.update(task, completed=done, total=total))
    except KeyboardInterrupt:
        console.print(
            "interrupted; run it again: it continues where it was, and writes nothing twice", soft_wrap=True
        )
        raise typer.Exit(INTERRUPTED) from None
    print_summary(console, redrive.source, summary, "written" if execute else "to write")
    print_jobs(console, redrive.done(), redrive.others())
    if not execute:
        console.print("nothing was written; --execute writes", highlight=False)
