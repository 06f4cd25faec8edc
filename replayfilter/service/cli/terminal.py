"""What the commands share: exit codes, common arguments, and output to the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from replayfilter.errors import ConfigError

FAILED, USAGE, REPLACED, DAMAGED, INTERRUPTED = 1, 2, 4, 5, 130  # exit codes
PRINT_ERRORS = "replayfilter.print_errors"  # the key in a context's meta of a replacement for print_errors()
_TABLE_WIDTH = 140

ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The TOML file: see docs/reference/configuration.md.")
]

Bootstrap = Annotated[
    str, typer.Option(help="Brokers to connect to first: host:port, several separated by commas.")
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="A client setting under Kafka's own name; ${NAME} is an environment variable. Repeatable.",
    ),
]


def print_errors(*messages: str, cause: BaseException | None = None) -> None:
    """Print errors or warnings to stderr, one per line."""
    console = Console(stderr=True)
    for message in messages:
        console.print(message, highlight=False, markup=False, soft_wrap=True)


def wants_debug(context: Any) -> bool:
    """Whether the user gave --debug."""
    return bool(context.find_root().params.get("debug"))


def wide_console() -> Console:
    """A console that is wide enough for a table, even if the terminal is not."""
    console = Console()
    return console if console.width >= _TABLE_WIDTH else Console(width=_TABLE_WIDTH)


def client_options(given: list[str] | None, option: str = "--option") -> dict[str, str]:
    """``NAME=VALUE`` texts as a dict; ConfigError for one without "="."""
    pairs = [each.partition("=") for each in given or ()]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise ConfigError([f"{option} {name}: write NAME=VALUE" for name in wrong])
    return {name: value for name, _, value in pairs}
