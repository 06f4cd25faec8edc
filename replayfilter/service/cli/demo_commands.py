"""Commands for a first try and for development: demo, broker and prepare."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from replayfilter.errors import BrokerError
from replayfilter.service.cli.terminal import FAILED

DEMO_RECORDS = 200_000


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(demo)
    app.command()(broker)
    app.command()(prepare)


def demo() -> None:
    """Run the service on a broker of its own, and check every record."""
    from replayfilter.demo.walkthrough import run_demo

    if not run_demo(DEMO_RECORDS, Console()):
        raise typer.Exit(FAILED)


def broker(
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any free one.")] = 9092,
    data: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="The folder for topics; without it they are deleted at the end."),
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
    raise BrokerError(f"The broker has exited with code {code}; broker.log in its data folder says why.")


def prepare() -> None:
    """Fetch the jars and store Spark's classes, so that a service starts in two thirds of the time."""
    from replayfilter.service.tools.prepare import prepare as store_classes

    Console().print(f"stored in {store_classes()}", soft_wrap=True, highlight=False)
