"""Commands that inspect a service: top, verify, explain and state. ``state`` can also change marks."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from replayfilter.core.replay.mark_changes import after_changes
from replayfilter.errors import CheckpointError
from replayfilter.service.cli.terminal import FAILED, ConfigFile, wide_console
from replayfilter.service.config.loader import load


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(top)
    app.command()(verify)
    app.command()(explain)
    app.command()(state)


def top(
    path: ConfigFile, once: Annotated[bool, typer.Option("--once", help="Show it once, then exit.")] = False
) -> None:
    """Show live what a running service does. Needs http.port. Ctrl-C ends it."""
    from replayfilter.service.monitor.top import watch

    try:
        watch(load(path), Console(), once)
    except KeyboardInterrupt:
        return


def verify(path: ConfigFile) -> None:
    """Check in Kafka that each input record is in exactly one output, unchanged and in order."""
    from replayfilter.service.tools.verify import verify as verify_outputs

    if not verify_outputs(load(path), wide_console()):
        raise typer.Exit(FAILED)


def explain(
    path: ConfigFile,
    record: Annotated[
        str, typer.Option(metavar="TOPIC/PARTITION/OFFSET", help="A record in an input or an output topic.")
    ],
    with_state: Annotated[
        bool, typer.Option("--state/--no-state", help="Read the state too, if the service is stopped.")
    ] = True,
    find_first: Annotated[
        bool,
        typer.Option("--find-first", help="Search the unique topic for the record that a duplicate repeats."),
    ] = False,
) -> None:
    """Explain one record: its stamp and key, where it was written and why, and what the state says now."""
    from replayfilter.service.tools.explain.explain import Explainer
    from replayfilter.service.tools.explain.record_search import parse_address

    address = parse_address(record)
    for line in Explainer(load(path)).lines(address, with_state, find_first):
        typer.echo(f"{line.about:<14}{line.text}")


def state(
    path: ConfigFile,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PID/PARTITION=OFFSET", help="Set the mark of a source; repeatable."),
    ] = None,
    forget: Annotated[
        list[str] | None,
        typer.Option("--forget", metavar="PID/PARTITION", help="Forget the mark of a source; repeatable."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Change marks without asking.")] = False,
) -> None:
    """Show the marks and the state size of a stopped service, or change marks for its next start."""
    from replayfilter.service.monitor.storage import measure
    from replayfilter.service.runtime.checkpoint import (
        IDENTITY,
        SPARK,
        open_checkpoint,
        owned,
    )
    from replayfilter.service.tools.state_command import (
        add_changes,
        current_marks,
        describe,
        parse_changes,
        print_marks,
        print_sizes,
        read_changes,
    )

    requests = parse_changes(set_ or [], forget or [])
    config, console = load(path), wide_console()
    checkpoint = open_checkpoint(config)
    if checkpoint.read(IDENTITY) is None:
        raise CheckpointError(
            f"service.checkpoint = {config.service.checkpoint}: no service has run there; run it first"
        )
    with owned(config, checkpoint):
        from replayfilter.spark.state_reader import read_shards

        finished = checkpoint.names(f"{SPARK}/commits")
        shards = read_shards(checkpoint, SPARK) if finished else []
        shard, pending = current_marks(shards, read_changes(checkpoint))
        if not requests:
            print_marks(console, shard, pending)
            print_sizes(console, shards, measure(checkpoint, SPARK))
            return
        marks = shard.marks.recent
        known = after_changes(marks.as_dict(), pending)
        for request in requests:
            console.print(describe(request, known.get(request[:2])), highlight=False, soft_wrap=True)
        if not yes and not typer.confirm("Save this for the next start?"):
            raise typer.Exit(FAILED)
        add_changes(checkpoint, requests, marks, pending)
        console.print("saved to edits.jsonl in the checkpoint; the next start applies it", highlight=False)
