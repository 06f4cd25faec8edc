"""Roster files: the names of origins, one per line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

ORIGIN_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,256}")


def read_roster(path: Path, may_be_empty: bool = False) -> list[str]:
    """The origins in a roster file. Blank lines and lines that start with # are ignored.

    Raises ValueError, with a message, if the file can't be read, if a line is not a name, or if there is no
    name and the file may not be empty.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ValueError(
            f"{path}: can't be read ({error.strerror}); check the path and its permissions"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    return checked_names([(f"{path}:{number}", name) for number, name in names_in(text)], path, may_be_empty)


def names_in(text: str) -> list[tuple[int, str]]:
    """The names in a text with one per line, each with the number of its line."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    return [(number, name) for number, name in lines if name and not name.startswith("#")]


def checked_names(
    names: Iterable[tuple[str, str]], roster: str | Path, may_be_empty: bool = False
) -> list[str]:
    """Names without repetitions, from pairs of where each is and the name; ValueError as of read_roster."""
    found: dict[str, None] = {}
    for where, name in names:
        if not ORIGIN_NAME.fullmatch(name):
            raise ValueError(f"{where}: {name[:40]!r} is not an origin name; use up to 256 characters")
        found[name] = None
    if not found and not may_be_empty:
        raise ValueError(f"{roster}: names no origin, but a roster needs at least one; add the names")
    return list(found)
