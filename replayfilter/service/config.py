"""The service's configuration: a TOML file, each key of which an environment variable may override.

``load(path)`` gives a checked ``Config``, or raises ``ConfigError`` with every fault that there is, so that
nobody mends a file one message at a time. docs/configuration.md describes each key.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from replayfilter.core.watermark import Completeness
from replayfilter.errors import ConfigError
from replayfilter.service.checks import VARIABLE, cross_check
from replayfilter.service.durations import length_in_units, parse_bytes, parse_duration
from replayfilter.service.faults import PREFIX, explain, in_order, unknown_variables

_TOPIC = r"[A-Za-z0-9._-]{1,249}"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"  # room is left for "-<lane>" in a transactional id
_MASTER = r"local(\[(\*|[1-9][0-9]*)(, ?[1-9][0-9]*)?\])?|yarn|(spark|k8s)://.+"
_SERVER = r" *([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5} *"
_URL = r" *(https?|mock)://[^\s,@]+ *"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):", re.ASCII)


# ---- kinds of values ---------------------------------------------------------------------------------


def _like(pattern: str, complaint: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text, re.ASCII) or text in (".", ".."):
            raise ValueError(complaint)
        return text

    return AfterValidator(check)


def _checkpoint(text: str) -> str:
    scheme = _SCHEME.match(text)
    if scheme and scheme[1].lower() not in ("file", "hdfs", "s3a"):
        raise ValueError("not a place for checkpoints; use a path, or a file:/, hdfs:/ or s3a: URL")
    return text


def _items(value: object) -> object:
    """A list may come as one text, from the environment: JSON, or items with commas between them."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        return [item.strip() for item in value.split(",")]
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('not a JSON list; write ["a", "b"] or a,b') from None


def _option(value: object) -> object:
    """Clients' settings are texts; TOML's numbers and booleans are taken for theirs."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


_NOT_TOPIC = "not a topic's name; use up to 249 of a-z A-Z 0-9 . _ and -"
Topic = Annotated[str, _like(_TOPIC, _NOT_TOPIC)]
TopicOrNone = Annotated[str, _like(f"|{_TOPIC}", f'{_NOT_TOPIC}, or "" for none')]
Duration = Annotated[int, BeforeValidator(parse_duration)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Options = dict[str, Annotated[str, BeforeValidator(_option)]]


# ---- sections ----------------------------------------------------------------------------------------
# "" and [] mean "not set". What must be set depends on other keys, so checks.py says it, not pydantic.


class Section(BaseModel):
    """What all sections share: unknown keys are faults, and nothing changes after the start."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Service(Section):
    """Who the service is, where it remembers, and how much it takes at once."""

    name: Annotated[
        str, _like(_NAME, "not a service's name; use up to 200 of a-z A-Z 0-9 . _ -, first a letter or digit")
    ] = Field(default="", examples=["orders"])
    checkpoint: Annotated[str, AfterValidator(_checkpoint)] = Field(
        default="", examples=["checkpoint/orders"]
    )
    master: Annotated[
        str,
        _like(_MASTER, "not a Spark master; use local[*], local[4], spark://host:7077, yarn or k8s://..."),
    ] = "local[*]"
    shards: int = Field(default=0, ge=0, le=1024)
    batch_records: int = Field(default=1_200_000, ge=1)
    batch_bytes: Annotated[Bytes, Field(ge=1_000_000)] = 512_000_000


class Kafka(Section):
    """The cluster, and client settings by Kafka's own names."""

    bootstrap: Annotated[
        str,
        _like(f"{_SERVER}(,{_SERVER})*", 'not brokers; write "host:port", several with commas between them'),
    ] = Field(default="", examples=["localhost:9092"])
    options: Options = Field(default={}, repr=False)


class Input(Section):
    """What is read, and where its records carry their stamp."""

    topics: Annotated[list[Topic], NoDecode, BeforeValidator(_items)] = Field(
        default=[], examples=[["orders"]]
    )
    format: Literal["json", "avro", "raw"] = "json"
    stamp: Literal["key", "header", "none"] = "key"
    starting: Literal["earliest", "latest"] = "earliest"


class Avro(Section):
    """Where the schemas of Avro values are; read with ``input.format = "avro"``."""

    encoding: Literal["confluent", "single-object", "plain"] = "confluent"
    registry: Annotated[
        str,
        _like(rf"|{_URL}(,{_URL})*", 'not a registry; write "http://host:8081", credentials in avro.options'),
    ] = Field(default="", examples=["http://localhost:8081"])
    options: Options = Field(default={}, repr=False)
    schemas: Annotated[list[str], NoDecode, BeforeValidator(_items)] = Field(
        default=[], examples=[["schemas/order.avsc"]]
    )


class Replay(Section):
    """Dropping what an upstream job wrote again."""

    enabled: bool = True
    mark_ttl: Annotated[Duration, Field(gt=0)] = 48 * 3600 * 10**6
    on_invalid: Literal["pass", "error"] = "pass"
    topic: TopicOrNone = ""


class Dedup(Section):
    """Which records are the same, and for how long that is remembered."""

    enabled: bool = True
    key: Annotated[list[str], NoDecode, BeforeValidator(_items)] = Field(default=[], examples=[["event_id"]])
    expiry_key: str = Field(default="", examples=["ts"])
    unit: Literal["s", "ms", "us", "ns", "iso8601", "integer"] = "ms"
    clock: Literal["tuple", "system", "watermark", "ordered", "categorical", "none"] = "tuple"
    period: str | int = Field(default="", examples=["1h"])
    bucket_span: str | int = Field(default="", examples=["5m"])
    match: Literal["window", "bucket"] = "window"
    max_future: Duration = 600 * 10**6
    max_jump: int | None = Field(default=None, ge=0)
    remember_origin: bool = False
    cache: Annotated[Bytes, Field(ge=1_000_000)] = 2_000_000_000


class Output(Section):
    """Where each kind of record goes."""

    unique: TopicOrNone = Field(default="", examples=["orders.unique"])
    duplicate: TopicOrNone = Field(default="", examples=["orders.duplicate"])
    expired: TopicOrNone = Field(default="", examples=["orders.expired"])
    error: TopicOrNone = Field(default="", examples=["orders.error"])
    key: Literal["stamp", "preserve"] = "stamp"


class Watermark(Section):
    """Counting who is how far, so that it is known when a time is complete."""

    enabled: bool = False
    origin: str = Field(default="", examples=["host"])
    time: str = Field(default="", examples=["ts"])
    unit: Literal["s", "ms", "us", "ns", "iso8601"] = "ms"
    roster: Annotated[list[str] | str, NoDecode] = Field(default="", examples=["hosts.txt"])
    idle: Annotated[list[str] | str, NoDecode] = Field(default="", examples=[["host-7"]])
    completeness: Annotated[str, AfterValidator(lambda text: Completeness(text).text)] = "1"
    servers: Annotated[list[str], NoDecode, BeforeValidator(_items)] = []
    token: str = Field(default="", repr=False)


class Http(Section):
    """Metrics, health and the status page."""

    port: int = Field(default=0, ge=0, le=65535)
    bind: Annotated[
        str, _like(r"[A-Za-z0-9._:-]+", 'not an address; use "127.0.0.1", "0.0.0.0" for all, or a host name')
    ] = "127.0.0.1"
    stale_after: Annotated[Duration, Field(gt=0)] = 120 * 10**6

    @property
    def host(self) -> str:
        """Where this machine reaches it, for a URL."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.bind, self.bind)
        return f"[{host}]" if ":" in host else host


_WITH_OPTIONS = ("kafka", "avro")


# ---- the whole ---------------------------------------------------------------------------------------


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


def keys_by_section() -> dict[str, list[str]]:
    """Every key there is, in the order of the documentation: {"service": ["name", ...], ...}."""
    sections: dict[str, type[Section]] = {
        "service": Service,
        "kafka": Kafka,
        "input": Input,
        "avro": Avro,
        "replay": Replay,
        "dedup": Dedup,
    }
    sections |= {"watermark": Watermark, "output": Output, "http": Http}
    return {name: list(section.model_fields) for name, section in sections.items()}


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
