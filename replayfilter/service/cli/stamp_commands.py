"""The commands around stamps: doctor, publish and state."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from replayfilter.core.replay.mark_changes import apply_changes
from replayfilter.errors import CheckpointError, ConfigError

TABLE_WIDTH = 140


class Where(StrEnum):
    """Where a stamp stands."""

    key = "key"
    header = "header"


Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to look at.")]
Bootstrap = Annotated[str, typer.Option(help="Brokers to ask first: host:port, several with commas.")]
Stamped = Annotated[Where, typer.Option(help="Where the stamp is.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="A client setting by Kafka's own name; repeatable."),
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(doctor)
    app.command()(publish)
    app.command()(state)


def doctor(
    topic: Topic,
    bootstrap: Bootstrap,
    stamp: Stamped = Where.key,
    records: Annotated[int, typer.Option(min=0, help="How many, the last ones; 0: all.")] = 100_000,
    option: Options = None,
) -> None:
    """Look at a sample of a stamped topic: sources, gaps, replays, and what would make filtering go wrong."""
    from replayfilter.service.tools import doctor as surgery

    if not surgery.doctor(_console(), topic, bootstrap, client_options(option), stamp.value, records):
        raise typer.Exit(1)


def publish(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Its lines become records.")],
    bootstrap: Bootstrap,
    topic: Annotated[str, typer.Option(help="Where they go.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on when the file grows or is rotated.")
    ] = False,
    job: Annotated[str, typer.Option(help="Names who publishes, in the pid.")] = "publish",
    identity: Annotated[
        str, typer.Option(help="Names the file in the pid; else its host, device, inode and first line do.")
    ] = "",
    partition: Annotated[
        int, typer.Option(min=0, help="The file's number; it goes to partition number % partitions.")
    ] = 0,
    stamp: Stamped = Where.key,
    option: Options = None,
) -> None:
    """Publish a file's lines, stamped; run it again after a crash, its replays are filtered downstream."""
    from replayfilter.service.tools.publish import Publisher

    console = _console()
    publisher = Publisher(
        file, bootstrap, topic, client_options(option),
        job=job, identity=identity, stamp=stamp.value, partition=partition, console=console,
    )  # fmt: skip
    try:
        publisher.run(follow)
    except KeyboardInterrupt:
        console.print("interrupted: run it again, nothing will count twice", soft_wrap=True)
        raise typer.Exit(130) from None
    console.print(
        f"{file}: {publisher.records:,} records published to {topic}", highlight=False, soft_wrap=True
    )


def state(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The service's TOML file.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PID/PARTITION=OFFSET", help="Set a source's mark; repeatable."),
    ] = None,
    forget: Annotated[
        list[str] | None,
        typer.Option("--forget", metavar="PID/PARTITION", help="Forget a source's mark; repeatable."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask before an edit.")] = False,
) -> None:
    """Show the marks of a stopped service and what its state takes; set or forget marks at its next start."""
    from replayfilter.service.config.model import load
    from replayfilter.service.monitor.storage import measure
    from replayfilter.service.runtime.checkpoint import IDENTITY, SPARK, LocalFiles, local_folder, locked
    from replayfilter.service.tools.marks import (
        add_changes,
        current_marks,
        describe,
        parse_changes,
        read_changes,
        show,
        show_sizes,
    )

    wishes = parse_changes(set_ or [], forget or [])
    settings, console = load(config), _console()
    folder = local_folder(settings.service.checkpoint)
    if folder is None or LocalFiles(folder).read(IDENTITY) is None:
        raise CheckpointError(
            f"service.checkpoint = {settings.service.checkpoint}: no service was run there yet; run it"
        )
    with locked(folder):
        from replayfilter.spark.state_reader import read_shards

        files = LocalFiles(folder)
        finished = files.names(f"{SPARK}/commits")
        shards = read_shards(folder / SPARK) if finished else []
        marks, pending = current_marks(shards, read_changes(files))
        if not wishes:
            show(console, marks, pending)
            show_sizes(console, shards, measure(folder / SPARK))
            return
        known = apply_changes(marks, pending, 0).as_dict()
        for wish in wishes:
            console.print(describe(wish, known.get(wish[:2])), highlight=False, soft_wrap=True)
        if not yes and not typer.confirm("Write this down for the next start?"):
            raise typer.Exit(1)
        add_changes(files, wishes, marks, pending)
        console.print("written to edits.jsonl in the checkpoint; the next start applies it", highlight=False)


def _console() -> Console:
    """Wide enough for a table with pids, wherever it is written to."""
    console = Console()
    return console if console.width >= TABLE_WIDTH else Console(width=TABLE_WIDTH)


def client_options(given: list[str] | None) -> dict[str, str]:
    """``NAME=VALUE`` texts as a dict; ConfigError for one without "="."""
    pairs = [each.partition("=") for each in given or ()]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise ConfigError([f"--option {name}: write NAME=VALUE" for name in wrong])
    return {name: value for name, _, value in pairs}
