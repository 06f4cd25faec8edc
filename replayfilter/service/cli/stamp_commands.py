"""Commands about stamped topics: doctor and publish."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from replayfilter.service.cli.terminal import (
    FAILED,
    INTERRUPTED,
    Bootstrap,
    Options,
    client_options,
    wide_console,
)
from replayfilter.settings.variables import expanded


class StampLocation(StrEnum):
    """Where a record carries its stamp."""

    key = "key"
    header = "header"


Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to check.")]
Stamp = Annotated[StampLocation, typer.Option(help="Where a record carries its stamp.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(doctor)
    app.command()(publish)


def doctor(
    topic: Topic,
    bootstrap: Bootstrap,
    stamp: Stamp = StampLocation.key,
    records: Annotated[
        int, typer.Option(min=0, help="How many of the last records to read; 0: all.")
    ] = 100_000,
    option: Options = None,
) -> None:
    """Check a sample of a stamped topic: sources, gaps, replays, and what would break replay filtering."""
    from replayfilter.service.tools import doctor as tool

    options = expanded("--option", client_options(option))
    if not tool.doctor(wide_console(), topic, bootstrap, options, stamp.value, records):
        raise typer.Exit(FAILED)


def publish(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file. Each line becomes a record.")],
    bootstrap: Bootstrap,
    topic: Annotated[str, typer.Option(help="The topic to write to.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep publishing lines that are added; follows log rotation.")
    ] = False,
    job: Annotated[str, typer.Option(help="The publisher's name in the pid.")] = "publish",
    identity: Annotated[
        str,
        typer.Option(help="The file's name in the pid; by default its host, device, inode and first line."),
    ] = "",
    partition: Annotated[
        int, typer.Option(min=0, help="The file's number; it goes to partition number % partitions.")
    ] = 0,
    stamp: Stamp = StampLocation.key,
    option: Options = None,
) -> None:
    """Publish a file's lines as stamped records. After a crash run it again: replays are filtered later."""
    from replayfilter.service.tools.publish import Publisher

    console = wide_console()
    publisher = Publisher(
        file, bootstrap, topic, expanded("--option", client_options(option)),
        job=job, identity=identity, stamp=stamp.value, partition=partition, console=console,
    )  # fmt: skip
    try:
        publisher.run(follow)
    except KeyboardInterrupt:
        console.print("interrupted; run it again: no line will count twice", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    console.print(
        f"{file}: {publisher.records:,} records published to {topic}", highlight=False, soft_wrap=True
    )
