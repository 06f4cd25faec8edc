"""Reads the environment variables that override keys of the config: REPLAYFILTER_SECTION__KEY."""

from __future__ import annotations

from typing import Any

from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from replayfilter.errors import ConfigError
from replayfilter.service.config.model import Config
from replayfilter.settings.variables import PREFIX

SECTIONS_WITH_OPTIONS = ("kafka", "avro", "protobuf")


def environment_tables() -> dict[str, Any]:
    """What the environment sets, as tables by section; ConfigError for JSON that can't be read.

    A dot can't be part of a variable's name, so ``_`` stands for it in the name of an option:
    REPLAYFILTER_KAFKA__OPTIONS__SECURITY_PROTOCOL sets ``security.protocol``.
    """
    try:
        tables = EnvSettingsSource(_Variables)()
    except SettingsError as error:
        remedy = f"set keys one by one, as {PREFIX}SECTION__KEY"
        raise ConfigError([f"environment: {error}; {remedy}"]) from None
    for section in SECTIONS_WITH_OPTIONS:
        table = tables.get(section)
        if isinstance(table, dict) and isinstance(options := table.get("options"), dict):
            table["options"] = {name.replace("_", "."): value for name, value in options.items()}
    return tables


class _Variables(Config, BaseSettings):
    """Names the variables for pydantic-settings. There is no instance: the loader merges and checks."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__")
