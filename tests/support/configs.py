"""The example config with changes, and the errors that they cause."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping
from typing import Any

import pytest

from replayfilter.errors import ConfigError
from replayfilter.service.config.loader import config_from
from replayfilter.service.config.model import Config
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "orders.toml"


def config_with(**sections: object) -> Config:
    """The example with some keys changed. A section that is not a table replaces the one of the example.

    None removes a key.
    """
    tables: dict[str, Any] = copy.deepcopy(tomllib.loads(EXAMPLE.read_text()))
    for section, keys in sections.items():
        if not isinstance(keys, Mapping):
            tables[section] = keys
            continue
        table = tables.setdefault(section, {})
        for key, value in keys.items():
            if value is None:
                del table[key]
            else:
                table[key] = value
    return config_from(tables)


def errors_of(**sections: object) -> list[str]:
    """The errors of the example with some keys changed."""
    with pytest.raises(ConfigError) as caught:
        config_with(**sections)
    return caught.value.errors
