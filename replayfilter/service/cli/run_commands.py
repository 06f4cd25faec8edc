"""Commands that prepare and run a service: run, check, topics, advise and rebuild."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from replayfilter.errors import CheckpointError, StorageError
from replayfilter.service.cli.terminal import (
    FAILED,
    INTERRUPTED,
    PRINT_ERRORS,
    Bootstrap,
    ConfigFile,
    Options,
    client_options,
    print_errors,
    wants_debug,
    wide_console,
)
from replayfilter.service.config.loader import load


class LogFormat(StrEnum):
    """The format of the output of ``run``."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


class Uncommitted(StrEnum):
    """Where to begin in input partitions without a committed offset."""

    EARLIEST = "earliest"
    LATEST = "latest"


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(run)
    app.command()(check)
    app.command()(topics)
    app.command()(advise)
    app.command()(rebuild)


def run(
    context: typer.Context,
    path: ConfigFile,
    once: Annotated[
        bool, typer.Option("--once", help="Process all records that are there now, then exit.")
    ] = False,
    from_committed: Annotated[
        bool,
        typer.Option(
            "--from-committed",
            help="For a lost checkpoint: continue at the committed offsets, with an empty state.",
        ),
    ] = False,
    uncommitted: Annotated[
        Uncommitted | None,
        typer.Option(
            "--uncommitted",
            help="With --from-committed: where to begin in partitions without a committed offset.",
        ),
    ] = None,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            "--log-format", help="text, json (one object per line), or auto: text on a terminal, else json."
        ),
    ] = LogFormat.AUTO,
) -> None:
    """Run the service. SIGTERM or Ctrl-C: finish the current batch, then exit."""
    from replayfilter.service.runtime.checkpoint import IDENTITY, open_checkpoint, owned
    from replayfilter.service.runtime.plan import pipeline_settings_of
    from replayfilter.service.runtime.preflight import inspect
    from replayfilter.service.runtime.reporting.console import Reporter
    from replayfilter.service.runtime.reporting.json_log import JsonLog
    from replayfilter.service.runtime.run import serve
    from replayfilter.service.runtime.supervision import StopSignals
    from replayfilter.service.tools.state_command import read_changes

    warnings: list[str] = []
    config, console = load(path, warnings.append), Console()
    as_json = log_format is LogFormat.JSON or (log_format is LogFormat.AUTO and not console.is_terminal)
    reporter = JsonLog(config.service.name) if as_json else Reporter(console)
    context.meta[PRINT_ERRORS] = reporter.error
    level = "warn" if wants_debug(context) else "off"
    with ExitStack() as running:
        signals = running.enter_context(StopSignals())
        errors: list[str] = []
        try:
            checkpoint = open_checkpoint(config, level)
            shared = running.enter_context(owned(config, checkpoint))
        except (CheckpointError, StorageError) as error:  # reported together with the other errors
            errors.append(str(error))
        findings = inspect(config, from_committed, uncommitted)
        for text in [*warnings, *findings.warnings]:
            reporter.warning(f"warning: {text}")
        if errors := list(dict.fromkeys([*errors, *findings.errors])):
            reporter.error(*(text.replace("CONFIG", str(path)) for text in errors))
            raise typer.Exit(FAILED)
        assert findings.identity is not None
        checkpoint.write(IDENTITY, findings.identity.to_bytes())
        plan = replace(
            pipeline_settings_of(config, findings), log_level=level, mark_changes=read_changes(checkpoint)
        )
        serve(config, plan, findings, checkpoint, reporter, signals, once, shared)


def check(path: ConfigFile) -> None:
    """Check a config and report all its errors. Doesn't connect to Kafka or read the checkpoint."""
    load(path, lambda text: print_errors(f"warning: {text}"))
    typer.echo(f"{path}: no errors found")


def topics(path: ConfigFile) -> None:
    """Create the missing output topics, with as many partitions as the input topics have."""
    from replayfilter.service.tools.topics import create_output_topics

    for line in create_output_topics(load(path)):
        typer.echo(line)


def advise(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to filter.")],
    bootstrap: Bootstrap,
    records: Annotated[
        int, typer.Option(min=0, help="About how many of the last records to read; 0: all.")
    ] = 1_000_000,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="A field of the dedup key, instead of a proposal; repeatable."),
    ] = None,
    expiry_key: Annotated[
        str, typer.Option("--expiry-key", metavar="FIELD", help="The expiry key, instead of a proposal.")
    ] = "",
    registry: Annotated[
        str, typer.Option(metavar="URL", help="The schema registry of Avro and Protobuf values.")
    ] = "",
    registry_option: Annotated[
        list[str] | None,
        typer.Option(
            "--registry-option",
            metavar="NAME=VALUE",
            help="A setting of the registry's client under its own name; repeatable.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a config to start from to this new file.")
    ] = None,
    option: Options = None,
) -> None:
    """Read a sample of a topic, and propose key, expiry key and period with what each period would cost."""
    from replayfilter.service.tools.advise import Request, advise_on

    request = Request(
        topic, bootstrap, client_options(option), records, tuple(key or ()), expiry_key,
        registry, client_options(registry_option, "--registry-option"), output,
    )  # fmt: skip
    console = wide_console()
    try:
        advise_on(request, console)
    except KeyboardInterrupt:
        console.print("interrupted; nothing was written", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None


def rebuild(
    context: typer.Context,
    path: ConfigFile,
    uncommitted: Annotated[
        Uncommitted | None,
        typer.Option("--uncommitted", help="Where to begin in partitions without a committed offset."),
    ] = None,
    foreign: Annotated[
        bool,
        typer.Option("--foreign", help="Remember records of other programs in the output topics, too."),
    ] = False,
) -> None:
    """Write a new checkpoint that remembers what the service has delivered, from the topics."""
    from replayfilter.service.runtime.checkpoint import open_checkpoint, owned
    from replayfilter.service.runtime.preflight import inspect
    from replayfilter.service.tools.rebuild import rebuild_job as job

    config, console = load(path), Console()
    job.check_rebuildable(config, foreign)
    level = "warn" if wants_debug(context) else "off"
    checkpoint = open_checkpoint(config, level)
    with owned(config, checkpoint) as shared:
        job.prepare_checkpoint(checkpoint)
        findings = inspect(config, from_committed=True, uncommitted=uncommitted)
        if findings.errors:
            print_errors(*(text.replace("CONFIG", str(path)) for text in findings.errors))
            raise typer.Exit(FAILED)
        job.rebuild(config, findings, checkpoint, console, shared, level, foreign)
