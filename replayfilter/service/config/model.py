"""The service's configuration: a TOML file, each key of which an environment variable may override.

``load(path)`` gives a checked ``Config``, or raises ``ConfigError`` with every fault that there is, so that
nobody mends a file one message at a time. docs/reference/configuration.md describes each key.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from replayfilter.errors import ConfigError
from replayfilter.service.config.checks import VARIABLE, cross_check
from replayfilter.service.config.types import (
    Avro,
    Dedup,
    Http,
    Input,
    Kafka,
    Output,
    Replay,
    Section,
    Service,
    Watermark,
)
from replayfilter.settings.durations import length_in_units
from replayfilter.settings.messages import PREFIX, explain, in_order, unknown_variables

_WITH_OPTIONS = ("kafka", "avro")


class Config(BaseSettings):
    """A service's whole configuration, checked; ``load`` makes it."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    service: Service = Field(default_factory=Service)
    kafka: Kafka = Field(default_factory=Kafka)
    input: Input = Field(default_factory=Input)
    avro: Avro = Field(default_factory=Avro)
    replay: Replay = Field(default_factory=Replay)
    dedup: Dedup = Field(default_factory=Dedup)
    watermark: Watermark = Field(default_factory=Watermark)
    output: Output = Field(default_factory=Output)
    http: Http = Field(default_factory=Http)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return _Environment(settings_cls), init_settings  # the first one wins

    @model_validator(mode="wrap")
    @classmethod
    def _tell_all_faults(cls, data: Any, handler: ModelWrapValidatorHandler[Config]) -> Config:
        """What is wrong is left out and the rest checked all the same, so that every fault is found."""
        keys, data = keys_by_section(), _with_flat_options(data)
        faults = unknown_variables(keys)
        try:
            config = handler(data)
        except ValidationError as error:
            found = error.errors()
            faults |= dict(explain(fault, keys) for fault in found)
            config = handler(_without(data, [fault["loc"] for fault in found]))
        for path, text in cross_check(config, frozenset(faults)):
            faults.setdefault(path, text)
        if faults:
            raise ConfigError(in_order(faults, keys))
        return config

    @property
    def expires(self) -> bool:
        """Whether records can be too old."""
        return self.dedup.enabled and self.dedup.clock != "none"

    @property
    def length_unit(self) -> str:
        """The unit of period and bucket span: the expiry key's, or "integer" where that is no time."""
        return "integer" if self.dedup.clock in ("ordered", "categorical") else self.dedup.unit

    @property
    def period_units(self) -> int:
        """The period in units of the expiry key; 0 where nothing expires."""
        return length_in_units(self.dedup.period, self.length_unit) if self.expires else 0

    @property
    def expiry_unit(self) -> str:
        """What unit the expiry key is read in; "category" where it has no order."""
        return "category" if self.dedup.clock == "categorical" else self.length_unit

    @property
    def span_units(self) -> int:
        """A bucket's width in units of the expiry key: as set, else a twelfth of the period, at least 1."""
        if self.expires and self.dedup.bucket_span != "":
            return length_in_units(self.dedup.bucket_span, self.length_unit)
        return max(1, self.period_units // 12)

    def output_topics(self) -> dict[str, str]:
        """The topics that records may go to, by the key that names each: {"output.unique": "orders"}."""
        paths = ["output.unique"]
        paths += ["output.duplicate"] * self.dedup.enabled + ["output.expired"] * self.expires
        paths += ["output.error"] + ["replay.topic"] * bool(self.replay.enabled and self.replay.topic)
        return {path: self.value_of(path) for path in paths}

    def client_options(self, section: str = "kafka") -> dict[str, str]:
        """A section's options, every ${VARIABLE} replaced by its value: secrets, so never print them."""
        options = getattr(self, section).options.items()
        return {name: VARIABLE.sub(lambda found: os.environ[found[1]], text) for name, text in options}

    def value_of(self, path: str) -> Any:
        """The value at a dotted path, "service.name"."""
        section, key = path.split(".")
        return getattr(getattr(self, section), key)

    def example_of(self, path: str) -> str:
        """A line of TOML that sets ``path``, for a message: name = "orders"."""
        section, key = path.split(".")
        examples = type(getattr(self, section)).model_fields[key].examples
        return f"{key} = {json.dumps(examples[0])}" if examples else f"{key} = ..."


class _Environment(EnvSettingsSource):
    """REPLAYFILTER_SECTION__KEY. In options ``_`` stands for the dot, which a shell can't have in a name."""

    def __call__(self) -> dict[str, Any]:
        values = super().__call__()
        for section in _WITH_OPTIONS:
            table = values.get(section)
            if isinstance(table, dict) and isinstance(options := table.get("options"), dict):
                table["options"] = {name.replace("_", "."): value for name, value in options.items()}
        return values


def load(path: str | Path) -> Config:
    """The configuration in the TOML file ``path``, overridden by the environment.

    ConfigError with all faults if there are any, or if the file can't be read.
    """
    try:
        return Config(**tomllib.loads(Path(path).read_text("utf-8")))
    except FileNotFoundError:
        fault = f"{path}: there is no such file; give the path of a TOML config"
    except OSError as error:
        fault = f"{path}: can't be read ({error.strerror}); check the path and its permissions"
    except UnicodeDecodeError as error:
        fault = f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8"
    except tomllib.TOMLDecodeError as error:
        fault = f"{path}: not TOML: {error}; mend that place (https://toml.io)"
    except SettingsError as error:
        fault = f"environment: {error}; set keys one by one, as {PREFIX}SECTION__KEY"
    raise ConfigError([fault])


def sections() -> dict[str, type[Section]]:
    """Every section there is, in the order of the documentation."""
    return {
        "service": Service,
        "kafka": Kafka,
        "input": Input,
        "avro": Avro,
        "replay": Replay,
        "dedup": Dedup,
        "watermark": Watermark,
        "output": Output,
        "http": Http,
    }


def keys_by_section() -> dict[str, list[str]]:
    """Every key there is, in the order of the documentation: {"service": ["name", ...], ...}."""
    return {name: list(section.model_fields) for name, section in sections().items()}


def _with_flat_options(data: dict[str, Any]) -> dict[str, Any]:
    """security.protocol = "SSL" without quotes is a table in a table to TOML; here it is one name again."""

    def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        names: dict[str, Any] = {}
        for name, value in table.items():
            names |= (
                flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
            )
        return names

    for section in _WITH_OPTIONS:
        table = data.get(section)
        if isinstance(table, dict) and isinstance(options := table.get("options"), dict):
            data = data | {section: table | {"options": flat(options)}}
    return data


def _without(data: dict[str, Any], places: list[tuple[int | str, ...]]) -> dict[str, Any]:
    """``data`` without the values at ``places``; a list with a wrong item goes as a whole."""
    left = {key: _without(value, []) if isinstance(value, dict) else value for key, value in data.items()}
    for place in places:
        table, steps = left, [str(step) for step in place]
        while len(steps) > 1 and isinstance(table.get(steps[0]), dict):
            table = table[steps.pop(0)]
        table.pop(steps[0], None)
    return left
