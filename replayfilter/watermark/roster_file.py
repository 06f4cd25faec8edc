"""Roster files: the names of origins, one per line."""

from __future__ import annotations

import re
from pathlib import Path

ORIGIN_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,256}")


def read_roster(path: Path, may_be_empty: bool = False) -> list[str]:
    """The origins in a roster file. Blank lines and lines that start with # are ignored.

    Raises ValueError, with a message, if the file can't be read, if a line is not a name, or if there is no
    name and the file may not be empty.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise ValueError(
            f"{path}: can't be read ({error.strerror}); check the path and its permissions"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    origins = {name: number for number, name in numbered if name and not name.startswith("#")}
    for name, number in origins.items():
        if not ORIGIN_NAME.fullmatch(name):
            shortened = name[:40]
            raise ValueError(
                f"{path}:{number}: {shortened!r} is not an origin name; use one line of up to 256 characters"
            )
    if not origins and not may_be_empty:
        raise ValueError(f"{path}: names no origin, but a roster needs at least one; write one name per line")
    return list(origins)
