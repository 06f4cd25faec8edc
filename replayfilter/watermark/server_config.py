"""The configuration of the watermark server. docs/reference/watermark-server.md describes each key.

``load(path)`` returns a checked ``ServerConfig``, or raises ``ConfigError`` with every error in the file.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from replayfilter.core.watermark.stages import Stages
from replayfilter.errors import ConfigError
from replayfilter.kafka.client_settings import unusable_options
from replayfilter.settings.messages import explain, format_setting, path_of
from replayfilter.settings.toml_file import read_toml
from replayfilter.settings.value_types import Brokers, Bytes, Duration, Options, Share, Topic
from replayfilter.settings.variables import expand, unset_variables
from replayfilter.watermark.api import DEFAULT_APP
from replayfilter.watermark.naming import is_naming_service
from replayfilter.watermark.roster_file import ORIGIN_NAME, read_roster

KAFKA = "kafka:"  # the start of a store that is a topic
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Server(_Section):
    """The address, the store and the limits of the server."""

    host: str = "127.0.0.1"
    port: int = Field(default=8321, ge=0, le=65535)
    store: str = "watermark.db"
    token: str = Field(default="", repr=False)
    max_body: Annotated[Bytes, Field(ge=1_000)] = 4_000_000
    max_origins: int = Field(default=100_000, ge=1)
    lease: Annotated[Duration, Field(ge=300_000)] = 3_000_000
    history: Annotated[Duration, Field(ge=60_000_000)] = 24 * 3600 * 10**6

    @property
    def store_topic(self) -> str | None:
        """The Kafka topic that is the store; None if it is a file."""
        return self.store.removeprefix(KAFKA) if self.store.startswith(KAFKA) else None


class Kafka(_Section):
    """The cluster of a store that is a topic. ``options``: client settings in Kafka's own names."""

    bootstrap: Brokers
    options: Options = Field(default={}, repr=False)

    def expanded_options(self) -> dict[str, str]:
        """The options with ${VARIABLE} replaced. They may have secrets: never print them."""
        return {name: expand(text) for name, text in self.options.items()}


class StageConfig(_Section):
    """A stage: its upstream stages, its roster, and how many of its origins may lag."""

    upstream: list[str] = []
    roster: list[str] | str | None = None
    completeness: Share = "1"
    idle: Literal["declared", "backlog"] = "declared"
    partitions: int = Field(default=0, ge=0, le=1_000_000)

    @property
    def has_roster(self) -> bool:
        """Whether this stage counts origins."""
        return self.roster is not None


class AppConfig(_Section):
    """An application: stages that know nothing of those of other applications."""

    stages: dict[str, StageConfig] = {}


class ServerConfig(_Section):
    """The whole configuration, from ``load``. Relative paths start at the folder of the file.

    ``stages``: those of the default application; ``apps``: all other applications.
    """

    server: Server = Field(default_factory=Server)
    kafka: Kafka | None = None
    stages: dict[str, StageConfig] = {}
    apps: dict[str, AppConfig] = {}

    @property
    def topologies(self) -> dict[str, dict[str, StageConfig]]:
        """The stages of each application."""
        default = {DEFAULT_APP: self.stages} if self.stages else {}
        return default | {name: app.stages for name, app in self.apps.items()}

    def token(self) -> str:
        """The bearer token, with ${VARIABLE} replaced; "" for none. A secret: never print it."""
        return expand(self.server.token)


_KEYS = {
    "server": list(Server.model_fields),
    "kafka": list(Kafka.model_fields),
    "stages": ["<name>"],
    "apps": ["<name>"],
}


def load(path: str | Path) -> ServerConfig:
    """The configuration in the TOML file ``path``. Raises ConfigError with all its errors."""
    path = Path(path)
    data = read_toml(path)
    try:
        config = ServerConfig(**_with_absolute_paths(data, path.absolute().parent))
    except ValidationError as error:
        raise ConfigError([_message(each) for each in error.errors()]) from None
    if errors := list(_cross_check(config)):
        raise ConfigError(errors)
    return config


def _with_absolute_paths(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make paths absolute. Values of a wrong type are left as they are, and pydantic reports them."""
    data = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    server = data.setdefault("server", {})
    if isinstance(server, dict):
        store = server.setdefault("store", Server().store)
        if isinstance(store, str) and not store.startswith(KAFKA):
            server["store"] = str(folder / store)
    data |= _with_absolute_rosters(data, folder)
    if isinstance(apps := data.get("apps"), dict):
        data["apps"] = {
            name: app | _with_absolute_rosters(app, folder) if isinstance(app, dict) else app
            for name, app in apps.items()
        }
    return data


def _with_absolute_rosters(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The stages of a table, with absolute paths; empty if there are none that can be read."""
    stages = table.get("stages")
    if not isinstance(stages, dict):
        return {}
    changed = dict(stages)
    for name, stage in stages.items():
        roster = stage.get("roster") if isinstance(stage, dict) else None
        if isinstance(roster, str) and not is_naming_service(roster):
            changed[name] = stage | {"roster": str(folder / roster)}
    return {"stages": changed}


def _message(error: Any) -> str:
    path = path_of(error)
    if error["type"] == "missing" and error["loc"][0] == "kafka":
        return f'{path}: missing; write where the cluster of server.store is, such as "localhost:9092"'
    if error["type"] == "extra_forbidden" and "stages" in error["loc"][:-1]:
        setting, keys = format_setting(path, error["input"]), ", ".join(StageConfig.model_fields)
        return f"{setting}: no such key; a stage has {keys}"
    if error["type"] == "extra_forbidden" and error["loc"][0] == "apps":
        setting = format_setting(path, error["input"])
        return (
            f"{setting}: no such key; an application has stages, such as [apps.{error['loc'][1]}.stages.web]"
        )
    return explain(error, _KEYS)


def _cross_check(config: ServerConfig) -> Iterator[str]:
    server = config.server
    if not config.topologies:
        yield "stages: missing; declare at least one, for example [stages.web] with roster = [...]"
    for name in unset_variables(server.token):
        yield f"server.token: the environment variable {name} is not set; set it"
    if not server.token and not _is_loopback(server.host):
        yield (
            f'server.host = "{server.host}": reachable from other hosts, but there is no token; set '
            'server.token, for example to "${WATERMARK_TOKEN}", or use 127.0.0.1'
        )
    yield from _store_errors(config)
    for app in config.apps:
        if app == DEFAULT_APP:
            yield f"apps.{app}: its stages are those of [stages]; move them there"
        elif not _NAME.fullmatch(app):
            yield f'apps."{app}": not an application name; use up to 200 of a-z A-Z 0-9 . _ -'
    for app, stages in config.topologies.items():
        yield from _stage_errors("stages" if app == DEFAULT_APP else f"apps.{app}.stages", stages)
    rosters = [stage.roster for each in config.topologies.values() for stage in each.values()]
    total = sum(len(roster) for roster in rosters if isinstance(roster, list))
    if total > server.max_origins:
        yield f"server.max_origins = {server.max_origins}: the rosters have {total} origins; raise it"


def _stage_errors(path: str, stages: dict[str, StageConfig]) -> Iterator[str]:
    if not stages:
        yield f"{path}: missing; declare at least one, for example [{path}.web] with roster = [...]"
    for name, stage in stages.items():
        if not _NAME.fullmatch(name):
            yield f'{path}."{name}": not a stage name; use up to 200 of a-z A-Z 0-9 . _ -'
        yield from _roster_errors(f"{path}.{name}.roster", stage)
    try:
        Stages({name: stage.upstream for name, stage in stages.items()})
    except ValueError as error:
        yield f"{path}: {error}"


def _store_errors(config: ServerConfig) -> Iterator[str]:
    setting = format_setting("server.store", config.server.store)
    if (topic := config.server.store_topic) is not None:
        try:
            TypeAdapter(Topic).validate_python(topic)
        except ValidationError as error:
            yield f"{setting}: {error.errors()[0]['ctx']['error']}"
        if config.kafka is None:
            yield f'{setting}: its cluster is missing; add [kafka] with bootstrap = "host:port"'
    elif config.kafka is not None:
        yield f'[kafka]: {setting} is a file; remove the section, or set server.store to "kafka:TOPIC"'
    usable = {}
    for name, text in config.kafka.options.items() if config.kafka else ():
        if missing := ", ".join(unset_variables(text)):
            yield f"kafka.options.{name}: needs the environment variable {missing}, which is not set; set it"
        else:
            usable[name] = expand(text)
    yield from (unusable_options(usable) | unusable_options(usable, produces=True)).values()


def _roster_errors(path: str, stage: StageConfig) -> Iterator[str]:
    if isinstance(stage.roster, str) and not is_naming_service(stage.roster):
        try:
            read_roster(Path(stage.roster))
        except ValueError as error:
            yield f"{path}: {error}"
    for origin in stage.roster if isinstance(stage.roster, list) else ():
        if not ORIGIN_NAME.fullmatch(origin):
            yield f"{format_setting(path, origin)}: not an origin name; use 1 to 256 characters"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
