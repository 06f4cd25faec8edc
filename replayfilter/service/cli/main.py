"""The ``replayfilter`` command. docs/reference/cli.md describes it.

Exit codes: 0 done, 1 failed at run time, 2 bad usage or config. Spark and the broker are imported by the
commands that need them, so that ``check`` answers at once.
"""

from __future__ import annotations

import signal
import traceback
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from replayfilter.errors import BrokerError, CheckpointError, ConfigError, ReplayfilterError
from replayfilter.service.cli import stamp_commands
from replayfilter.service.config.model import load
from replayfilter.watermark.commands import app as watermark

DONE, FAILED, USAGE = 0, 1, 2
DEMO_RECORDS = 200_000
COMPLAIN = "replayfilter.complain"  # in a context's meta: who tells errors, if not complain()


class LogFormat(StrEnum):
    """How ``run`` says what it does."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


class Commands(TyperGroup):
    """Says errors in words and turns them into exit codes, for every command alike."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what it raises goes to stderr, with a traceback if --debug asks for it."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if type(error).__module__.startswith(("click.", "typer.")):  # wrong usage, which they tell best
                raise
            if _debugs(ctx):
                traceback.print_exc()
            else:
                ctx.meta.get(COMPLAIN, complain)(*_words(error))
            raise typer.Exit(USAGE if isinstance(error, ConfigError) else FAILED) from error


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Makes a dirty Kafka stream exact: each record goes to unique, duplicate, expired or error, once.",
)

app.add_typer(watermark, name="watermark")

ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The TOML file: see docs/reference/configuration.md.")
]
stamp_commands.add_to(app)


def main() -> None:
    """The entry point of the ``replayfilter`` command."""
    app(prog_name="replayfilter")


def complain(*sentences: str) -> None:
    """Errors and warnings go to stderr, one line each."""
    console = Console(stderr=True)
    for sentence in sentences:
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def _debugs(context: Any) -> bool:
    return bool(context.find_root().params.get("debug"))


def _words(error: Exception) -> list[str]:
    if isinstance(error, ConfigError):
        return error.errors
    if isinstance(error, ReplayfilterError):
        return [str(error)]
    first = (str(error).strip() or "no message").splitlines()[0]
    return [f"{type(error).__name__}: {first}; not foreseen: run `replayfilter --debug ...` to see where"]


def _version(asked: bool) -> None:
    if asked:
        from replayfilter import __version__

        typer.echo(f"replayfilter {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error, and what Spark logs.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Options of every command stand before its name."""


@app.command()
def demo() -> None:
    """Run the whole thing on a broker of its own, from nothing, and check every record."""
    from replayfilter.demo.walkthrough import run_demo

    if not run_demo(DEMO_RECORDS, Console()):
        raise typer.Exit(FAILED)


@app.command()
def prepare() -> None:
    """Fetch the jars, and keep Spark's classes ready: a service then starts in two thirds of the time."""
    from replayfilter.service.tools.prepare import prepare as get_ready

    Console().print(f"kept in {get_ready()}", soft_wrap=True, highlight=False)


@app.command()
def run(
    context: typer.Context,
    path: ConfigFile,
    once: Annotated[bool, typer.Option("--once", help="Handle all there is now, then end.")] = False,
    from_committed: Annotated[
        bool,
        typer.Option(
            "--from-committed",
            help="The checkpoint is lost: go on where delivery ended. What was remembered is gone.",
        ),
    ] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option("--log-format", help="text, or one JSON object a line; auto: text on a terminal."),
    ] = LogFormat.AUTO,
) -> None:
    """Run the service. SIGTERM or Ctrl-C: finish the batch in hand and end."""
    from replayfilter.service.runtime.checkpoint import IDENTITY, CheckpointFolder, local_folder, locked
    from replayfilter.service.runtime.console import Reporter
    from replayfilter.service.runtime.json_log import JsonLog
    from replayfilter.service.runtime.plan import pipeline_settings_of
    from replayfilter.service.runtime.preflight import inspect
    from replayfilter.service.runtime.run import serve
    from replayfilter.service.runtime.supervision import StopSignals
    from replayfilter.service.tools.marks import read_changes

    config, console = load(path), Console()
    as_json = log_format is LogFormat.JSON or (log_format is LogFormat.AUTO and not console.is_terminal)
    reporter = JsonLog(config.service.name) if as_json else Reporter(console)
    context.meta[COMPLAIN] = reporter.error
    folder = local_folder(config.service.checkpoint)
    if folder is None:
        raise CheckpointError(
            f"service.checkpoint = {config.service.checkpoint}: only local folders work so far; use a path"
        )
    with ExitStack() as held:
        signals = held.enter_context(StopSignals())
        faults, lock = [], -1
        try:
            lock = held.enter_context(locked(folder))
        except CheckpointError as error:  # told together with what else is wrong
            faults.append(str(error))
        findings = inspect(config, from_committed)
        for text in findings.warnings:
            reporter.warning(f"warning: {text}")
        faults = list(dict.fromkeys([*faults, *findings.errors]))
        if faults:
            reporter.error(*(text.replace("CONFIG", str(path)) for text in faults))
            raise typer.Exit(FAILED)
        assert findings.identity is not None
        files = CheckpointFolder(folder)
        files.write(IDENTITY, findings.identity.to_bytes())
        level = "warn" if _debugs(context) else "off"
        plan = replace(
            pipeline_settings_of(config, findings), log_level=level, mark_changes=read_changes(files)
        )
        serve(config, plan, findings, files, reporter, signals, once, lock)


@app.command()
def check(path: ConfigFile) -> None:
    """Check a config and tell all its faults at once; touches neither Kafka nor the checkpoint."""
    load(path)
    typer.echo(f"{path}: no faults")


@app.command()
def topics(path: ConfigFile) -> None:
    """Create the output topics that are missing, with as many partitions as the input has."""
    from replayfilter.kafka.admin import Cluster
    from replayfilter.service.tools.topics import output_settings

    config = load(path)
    outputs = list(config.output_topics().values())
    cluster = Cluster(config.kafka.bootstrap, config.client_options())
    there = cluster.topics([*config.input.topics, *outputs])
    missing = [name for name in config.input.topics if name not in there]
    if missing:
        raise BrokerError(
            f"input.topics: there is no topic {', '.join(missing)} at {config.kafka.bootstrap}, and how many "
            "partitions it should have is its producer's choice; create it first"
        )
    partitions = max(there[name].partitions for name in config.input.topics)
    settings = output_settings(list(cluster.settings(config.input.topics).values()))
    wanted = {name: partitions for name in outputs if name not in there}
    created = cluster.create(wanted, settings=settings)
    for name in outputs:
        if name in created:
            typer.echo(f"{name}: created with {partitions} partitions")
        elif name in there and there[name].partitions != partitions:
            typer.echo(
                f"{name}: there already, with {there[name].partitions} partitions; the input has {partitions}"
            )
        else:
            typer.echo(f"{name}: there already")


@app.command()
def top(
    path: ConfigFile, once: Annotated[bool, typer.Option("--once", help="Show it a single time.")] = False
) -> None:
    """Show what a running service does, live; needs http.port. Ctrl-C ends it."""
    from replayfilter.service.monitor.top import watch

    try:
        watch(load(path), Console(), once)
    except KeyboardInterrupt:
        return


@app.command()
def verify(path: ConfigFile) -> None:
    """Check in Kafka that each input record is in exactly one output, unchanged and in order."""
    from replayfilter.service.tools.verify import verify as verified

    if not verified(load(path), Console()):
        raise typer.Exit(FAILED)


@app.command()
def broker(
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any that is free.")] = 0,
    data: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Where topics are kept; else they go with the broker."),
    ] = None,
) -> None:
    """Run a development broker in the foreground: a real Kafka of one node, on 127.0.0.1 only."""
    from replayfilter.devbroker import DevBroker

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with DevBroker(port, data) as kafka:
            typer.echo(f"bootstrap: {kafka.bootstrap}")
            code = kafka.wait()
    except KeyboardInterrupt:
        return
    raise BrokerError(
        f"The broker ended by itself, with code {code}; broker.log in its data folder says why."
    )
