"""The commands about transactions that are open: transactions list and transactions abort."""

from __future__ import annotations

from typing import Annotated

import typer

from replayfilter.service.cli.terminal import FAILED, ConfigFile, wide_console
from replayfilter.service.config.loader import load

_group = typer.Typer(no_args_is_help=True, help="Shows open transactions, and ends those of a dead service.")


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(_group, name="transactions")


@_group.command("list")
def list_(path: ConfigFile) -> None:
    """Show which transactions are open in the service's topics, whose they are, and what they hold back."""
    from replayfilter.service.tools.transactions.transactions_report import list_transactions

    list_transactions(load(path), wide_console())


@_group.command()
def abort(
    path: ConfigFile,
    yes: Annotated[bool, typer.Option("--yes", help="Abort them without asking.")] = False,
) -> None:
    """End the transactions that a dead service has left open, as its next start would."""
    from replayfilter.service.tools.transactions.transactions_report import abort_transactions

    if not abort_transactions(load(path), wide_console(), lambda text: yes or typer.confirm(text)):
        raise typer.Exit(FAILED)
