"""The ``replayfilter`` command. docs/reference/cli.md describes it.

Exit codes: 0 success, 1 failed at run time, 2 wrong usage or config, 4 replaced by another service of the
same name, 5 the checkpoint is damaged. Commands that need Spark or Kafka import them when they run, so that
``check`` is fast.
"""

from __future__ import annotations

import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from replayfilter.errors import CheckpointDamaged, ConfigError, ReplayfilterError, ServiceReplaced
from replayfilter.service.cli import (
    demo_commands,
    inspect_commands,
    redrive_commands,
    run_commands,
    stamp_commands,
    transaction_commands,
)
from replayfilter.service.cli.terminal import (
    DAMAGED,
    FAILED,
    PRINT_ERRORS,
    REPLACED,
    USAGE,
    print_errors,
    wants_debug,
)
from replayfilter.watermark.commands import app as watermark


class Commands(TyperGroup):
    """Turns the errors of all commands into messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Errors go to stderr, with a traceback if the user gave --debug."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if type(error).__module__.startswith(("click.", "typer.")):  # wrong usage: typer prints it
                raise
            if wants_debug(ctx):
                traceback.print_exc()
            else:
                ctx.meta.get(PRINT_ERRORS, print_errors)(*_messages(error), cause=error)
            raise typer.Exit(_exit_code(error)) from error


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Reads Kafka topics in which records may appear twice, and writes each record exactly once to "
    "unique, duplicate, expired or error.",
)
for commands in (
    run_commands,
    inspect_commands,
    redrive_commands,
    transaction_commands,
    stamp_commands,
    demo_commands,
):
    commands.add_to(app)
app.add_typer(watermark, name="watermark")


def main() -> None:
    """The entry point of the ``replayfilter`` command."""
    app(prog_name="replayfilter")


def _exit_code(error: Exception) -> int:
    if isinstance(error, ConfigError):
        return USAGE
    if isinstance(error, CheckpointDamaged):
        return DAMAGED
    return REPLACED if isinstance(error, ServiceReplaced) else FAILED


def _messages(error: Exception) -> list[str]:
    if isinstance(error, ConfigError):
        return error.errors
    if isinstance(error, ReplayfilterError):
        return [str(error)]
    first = (str(error).strip() or "no message").splitlines()[0]
    return [f"{type(error).__name__}: {first}; unexpected: `replayfilter --debug ...` shows where"]


def _print_version(asked: bool) -> None:
    if asked:
        from replayfilter import __version__

        typer.echo(f"replayfilter {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error, and Spark's log.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Options of all commands. They go before the name of the command."""
