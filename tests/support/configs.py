"""The example config with changes, and the errors that they cause."""

from __future__ import annotations

import copy
import tomllib
from typing import Any

import pytest

from replayfilter.errors import ConfigError
from replayfilter.service.config.loader import config_from
from replayfilter.service.config.model import Config
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "orders.toml"


def config_with(**sections: dict[str, object] | None) -> Config:
    """The example with some keys changed; None removes a key or a section."""
    tables: dict[str, Any] = copy.deepcopy(tomllib.loads(EXAMPLE.read_text()))
    for section, keys in sections.items():
        if keys is None:
            del tables[section]
            continue
        for key, value in keys.items():
            tables.setdefault(section, {})[key] = value
            if value is None:
                del tables[section][key]
    return config_from(tables)


def errors_of(**sections: dict[str, object] | None) -> list[str]:
    """The errors of the example with some keys changed."""
    with pytest.raises(ConfigError) as caught:
        config_with(**sections)
    return caught.value.errors
