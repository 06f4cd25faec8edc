"""Roster files: the origins to expect, one a line."""

from __future__ import annotations

import re
from pathlib import Path

NAME = re.compile(r"[^\x00-\x1f\x7f]{1,256}")


def read_roster(path: Path, may_be_empty: bool = False) -> list[str]:
    """The origins in a roster file: one a line, blank lines and those that start with # left out.

    ValueError, with a sentence, if it can't be read, has a line that is no name, or is empty and may not be.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"{path}: can't be read ({error.strerror}); check the path and its rights") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    named = [(at, line.strip()) for at, line in enumerate(lines, 1)]
    origins = {name: at for at, name in named if name and not name.startswith("#")}
    for name, at in origins.items():
        if not NAME.fullmatch(name):
            shortened = name[:40]
            raise ValueError(
                f"{path}:{at}: {shortened!r} is no origin's name; write one of up to 256 characters a line"
            )
    if not origins and not may_be_empty:
        raise ValueError(f"{path}: names no origin, which is never meant; write one name a line")
    return list(origins)
