"""Reads a configuration file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from replayfilter.errors import ConfigError


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of the TOML file ``path``; ConfigError if it can't be read or is not TOML."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        error = f"{path}: there is no such file; give the path of a TOML config"
    except OSError as failure:
        error = f"{path}: can't be read ({failure.strerror}); check the path and its permissions"
    except UnicodeDecodeError as failure:
        error = f"{path}: not UTF-8 at byte {failure.start}; save it as UTF-8"
    except tomllib.TOMLDecodeError as failure:
        error = f"{path}: not TOML: {failure}; correct it there (https://toml.io)"
    raise ConfigError([error])
