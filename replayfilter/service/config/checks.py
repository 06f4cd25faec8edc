"""The rules between keys of a config. Each is checked by itself, so that all broken ones are reported."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from replayfilter.core.clock.clocks import Clock
from replayfilter.errors import ConfigError
from replayfilter.formats.cloudevents import wrong_attribute
from replayfilter.formats.fields import Location, parse_field
from replayfilter.kafka.client_settings import unusable_options
from replayfilter.service.config.environment import SECTIONS_WITH_OPTIONS
from replayfilter.service.config.model import Config
from replayfilter.settings.durations import length_in_units
from replayfilter.settings.messages import format_setting
from replayfilter.settings.variables import expand, unset_variables
from replayfilter.watermark.roster_file import ORIGIN_NAME, read_roster

# Options that this config sets under other names. client_settings.py refuses the rest.
_SET_ELSEWHERE = {"metadata.broker.list": "kafka.bootstrap", "auto.offset.reset": "input.starting"}
_REQUIRED_BY = (
    "dedup.enabled", "dedup.clock", "input.format", "avro.encoding",
    "protobuf.encoding", "protobuf.descriptors",
)  # fmt: skip


class Problem(NamedTuple):
    """A broken rule: the path of the key to change, the message, and the other keys that the rule reads."""

    path: str
    message: str
    reads: tuple[str, ...] = ()


def broken_rules(config: Config, wrong: frozenset[str]) -> Iterator[tuple[str, str]]:
    """The path and the message of each broken rule.

    ``wrong`` holds the paths whose values were wrong and are replaced by defaults in ``config``. A rule
    that reads one of them is left out: its outcome means nothing.
    """
    for rule in (
        _required,
        _interval,
        _fields,
        _nulls,
        _lengths,
        _refresh,
        _watermark,
        _stamps,
        _topics,
        _variables,
        _options,
        _avro,
        _protobuf,
    ):
        for problem in rule(config):
            paths = (problem.path, *problem.reads)
            if not any(_is_within(path, other) for path in paths for other in wrong):
                yield problem.path, problem.message


def _is_within(path: str, other: str) -> bool:
    """Whether one of the two paths is a part of the other's table or list, or they are equal."""
    return f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.")


def _required(config: Config) -> Iterator[Problem]:
    dedup = config.dedup
    paths = ["service.name", "service.checkpoint", "kafka.bootstrap", "input.topics"]
    if dedup.enabled:
        paths += ["dedup.key", *(("dedup.expiry_key", "dedup.period") if config.expires else ())]
    if config.input.format == "avro":
        paths.append("avro.registry" if config.avro.encoding == "confluent" else "avro.schemas")
    if config.input.format == "protobuf":
        described = config.protobuf.descriptors or config.protobuf.encoding == "plain"
        paths += ["protobuf.descriptors", "protobuf.message"] if described else ["protobuf.registry"]
    for path in [*paths, *config.output_topics()]:
        if config.value_of(path) in ("", []):
            section, example = path.split(".")[0], config.example_of(path)
            message = f"{path}: missing; set it under [{section}], for example {example}"
            yield Problem(path, message, _REQUIRED_BY)


def _interval(config: Config) -> Iterator[Problem]:
    if config.service.interval >= config.http.stale_after:
        message = (
            "service.interval: not shorter than http.stale_after, so /readyz would fail between two batches; "
            "shorten it, or lengthen http.stale_after"
        )
        yield Problem("service.interval", message, ("http.stale_after",))


def _watermark(config: Config) -> Iterator[Problem]:
    watermark, form = config.watermark, config.input.format
    if config.dedup.enabled and config.clock is Clock.WATERMARK and not watermark.enabled:
        setting = format_setting("dedup.clock", "watermark")
        message = f"{setting}: there is no watermark; set watermark.enabled = true, and its origins"
        yield Problem("dedup.clock", message, ("watermark.enabled", "dedup.enabled"))
    if not watermark.enabled:
        return
    if watermark.origin and (wrong := _wrong_field(watermark.origin, form, (Location.KEY, Location.HEADER))):
        yield Problem("watermark.origin", f"watermark.origin: {wrong}", ("input.format",))
    if watermark.time and (wrong := _wrong_field(watermark.time, form, (Location.TIMESTAMP,))):
        yield Problem("watermark.time", f"watermark.time: {wrong}", ("input.format",))
    given = [name for name in ("origin", "time", "roster") if config.value_of(f"watermark.{name}")]
    for name in ("origin", "time", "roster") if given else ():
        if name not in given:
            message = (
                f"watermark.{name}: missing, but watermark.{given[0]} is set; set it too, for example "
                f"{config.example_of(f'watermark.{name}')}, or set none of origin, time and roster to use "
                "the watermark that the input records carry"
            )
            yield Problem(f"watermark.{name}", message, ("watermark.enabled",))
    yield from _rosters(config)
    if watermark.idle and not watermark.roster:
        message = "watermark.idle: no origins are expected; set watermark.roster too, or remove it"
        yield Problem("watermark.idle", message, ("watermark.enabled", "watermark.roster"))
    for variable in unset_variables(watermark.token):
        message = f"watermark.token: there is no variable {variable} in the environment; set it"
        yield Problem("watermark.token", message)


def _rosters(config: Config) -> Iterator[Problem]:
    for key, names in (("roster", config.watermark.roster), ("idle", config.watermark.idle)):
        path = f"watermark.{key}"
        if isinstance(names, str) and names:
            try:
                read_roster(Path(names), may_be_empty=key == "idle")
            except ValueError as error:
                yield Problem(path, f"{path}: {error}")
        for origin in names if isinstance(names, list) else ():
            if not ORIGIN_NAME.fullmatch(origin):
                setting = format_setting(path, origin[:40])
                yield Problem(path, f"{setting}: not an origin name; use 1 to 256 printable characters")
                break


def _fields(config: Config) -> Iterator[Problem]:
    dedup = config.dedup
    if not dedup.enabled:
        return
    form = config.input.format
    compared = {f"dedup.key.{index}": text for index, text in enumerate(dedup.key)}
    compared |= _conflict_fields(config)
    for path, text in compared.items():
        if wrong := _wrong_field(text, form, (Location.KEY, Location.VALUE, Location.HEADER)):
            yield Problem(path, f"{path}: {wrong}", ("input.format",))
        if text == "@key" and config.input.stamp == "key":
            message = (
                f"{format_setting(path, text)}: the record's key is its stamp, which is different for each "
                'record; choose fields of the value, or set input.stamp = "header"'
            )
            yield Problem(path, message, ("input.stamp",))
    for path, fields in (("dedup.key", dedup.key), ("dedup.conflict_fields", config.compared_fields)):
        if len(set(fields)) < len(fields):
            message = f"{format_setting(path, fields)}: names a field twice; name each once"
            yield Problem(path, message, ("dedup.conflict",))
    if dedup.conflict != "off" and not dedup.conflict_fields:
        message = 'dedup.conflict_fields: empty; name what to compare, "@value" for the whole value'
        yield Problem("dedup.conflict_fields", message, ("dedup.conflict",))
    ages = (Location.TIMESTAMP, Location.HEADER)
    if dedup.expiry_key and (wrong := _wrong_field(dedup.expiry_key, form, ages)):
        yield Problem("dedup.expiry_key", f"dedup.expiry_key: {wrong}", ("input.format",))


def _conflict_fields(config: Config) -> dict[str, str]:
    return {f"dedup.conflict_fields.{index}": text for index, text in enumerate(config.compared_fields)}


def _nulls(config: Config) -> Iterator[Problem]:
    on_null = config.input.on_null
    setting = format_setting("input.on_null", on_null)
    if on_null != "error" and config.input.format == "raw":
        message = f'{setting}: with input.format = "raw" a null is a value like any other; remove it'
        yield Problem("input.on_null", message, ("input.format",))
    if on_null != "unique" and config.input.format == "debezium":
        message = f'{setting}: with input.format = "debezium" null values are tombstones and pass; remove it'
        yield Problem("input.on_null", message, ("input.format",))
        return
    if on_null == "key" and config.input.stamp == "key":
        message = (
            f'{setting}: the record\'s key is its stamp, which is different for each record; use "unique", '
            'or set input.stamp = "header"'
        )
        yield Problem("input.on_null", message, ("input.stamp",))
    if on_null == "key" and config.dedup.enabled and config.clock is Clock.CATEGORICAL:
        message = f'{setting}: with clock = "categorical" a null value is in no category; use "unique"'
        yield Problem("input.on_null", message, ("dedup.clock",))


def _wrong_field(text: str, form: str, allowed: tuple[Location, ...]) -> str | None:
    """What is wrong with a field's name; ``allowed`` are the locations besides a path into the value."""
    try:
        field = parse_field(text)
        location = field.location
    except ValueError as error:
        return str(error)
    if form == "cloudevents" and (wrong := wrong_attribute(field)):
        return wrong
    choices = ", ".join(f'"{each.value}"' for each in allowed)
    if location is Location.PATH:
        return (
            f'"{text}" is a field, and input.format "raw" has none; use {choices}' if form == "raw" else None
        )
    return None if location in allowed else f'"{text}" can\'t be used here; use a field or {choices}'


def _lengths(config: Config) -> Iterator[Problem]:
    dedup = config.dedup
    if not config.expires:
        if dedup.enabled and dedup.match == "bucket":
            setting = format_setting("dedup.match", "bucket")
            message = f'{setting}: with clock = "none" there are no buckets of time; remove it'
            yield Problem("dedup.match", message, ("dedup.clock",))
        return
    if dedup.unit == "integer" and config.clock.reads_time:
        setting = format_setting("dedup.unit", "integer")
        message = f'{setting}: clock = "{dedup.clock}" needs a unit of time; use s, ms, us, ns or iso8601'
        yield Problem("dedup.unit", message, ("dedup.clock",))
        return
    if dedup.max_jump is not None and not config.clock.limits_jumps:
        setting = format_setting("dedup.max_jump", dedup.max_jump)
        message = f'{setting}: only clock = "ordered" uses it; remove it (for times, use dedup.max_future)'
        yield Problem("dedup.max_jump", message, ("dedup.clock",))
    if dedup.bucket_span != "" and config.clock is Clock.CATEGORICAL:
        setting = format_setting("dedup.bucket_span", dedup.bucket_span)
        message = f'{setting}: with clock = "categorical" a bucket is a category; remove it'
        yield Problem("dedup.bucket_span", message, ("dedup.clock",))
    lengths: dict[str, int] = {}
    for path in ("dedup.period", "dedup.bucket_span"):
        value = config.value_of(path)
        if value == "":
            continue
        try:
            lengths[path] = length_in_units(value, config.length_unit)
            if not lengths[path] and config.clock is not Clock.CATEGORICAL:
                raise ValueError("must be more than zero; increase it")
        except ValueError as error:
            yield Problem(path, f"{format_setting(path, value)}: {error}", ("dedup.clock", "dedup.unit"))
    span, period = lengths.get("dedup.bucket_span", 0), lengths.get("dedup.period", 2**63)
    if span > period:
        setting = format_setting("dedup.bucket_span", dedup.bucket_span)
        message = f"{setting}: longer than dedup.period = {json.dumps(dedup.period)}; shorten or remove it"
        yield Problem("dedup.bucket_span", message, ("dedup.clock", "dedup.unit", "dedup.period"))


def _refresh(config: Config) -> Iterator[Problem]:
    dedup = config.dedup
    if not (dedup.enabled and dedup.refresh):
        return
    setting = format_setting("dedup.refresh", True)
    if not config.clock.has_latest_point:
        message = f'{setting}: with clock = "{dedup.clock}" no period starts again; remove it'
        yield Problem("dedup.refresh", message, ("dedup.clock",))
    elif dedup.match == "bucket":
        message = f'{setting}: with match = "bucket" a key counts in its own bucket only; set dedup.match'
        yield Problem("dedup.refresh", f'{message} = "window", or remove it', ("dedup.match", "dedup.clock"))


def _stamps(config: Config) -> Iterator[Problem]:
    if config.input.stamp == "none" and config.replay.enabled:
        message = (
            f'{format_setting("replay.enabled", True)}: with input.stamp = "none" replays can\'t be '
            'recognized; set replay.enabled = false, or input.stamp = "key" or "header"'
        )
        yield Problem("replay.enabled", message, ("input.stamp",))


def _topics(config: Config) -> Iterator[Problem]:
    topics = config.input.topics
    if len(set(topics)) < len(topics):
        setting = format_setting("input.topics", topics)
        yield Problem("input.topics", f"{setting}: names a topic twice; name each once")
    used = dict.fromkeys(topics, "input.topics")
    for path, topic in config.output_topics().items():
        if topic and topic in used:
            message = f"{format_setting(path, topic)}: {used[topic]} names that topic too; give each its own"
            yield Problem(path, message, (used[topic],))
        used.setdefault(topic, path)


def _variables(config: Config) -> Iterator[Problem]:
    for section in SECTIONS_WITH_OPTIONS:
        for name, text in getattr(config, section).options.items():
            path = f"{section}.options.{name}"
            if missing := ", ".join(unset_variables(text)):
                message = f"{path}: needs the environment variable {missing}, which is not set; set it first"
                yield Problem(path, message)


def _options(config: Config) -> Iterator[Problem]:
    options = config.kafka.options
    for name, text in options.items():
        path = f"kafka.options.{name}"
        if name in _SET_ELSEWHERE:
            setting = format_setting(path, text)
            yield Problem(path, f"{setting}: can't be set here; set {_SET_ELSEWHERE[name]} and remove it")
    usable = {name: expand(text) for name, text in options.items() if not unset_variables(text)}
    for produces in (True, False):
        for name, message in unusable_options(usable, produces=produces).items():
            yield Problem(f"kafka.options.{name}", message)


def _avro(config: Config) -> Iterator[Problem]:
    """Needed to read Avro: its packages, and a registry's settings or schema files that can be read."""
    if config.input.format != "avro":
        return
    try:
        importlib.import_module("fastavro")
        registered = config.avro.encoding == "confluent"
        yield from _registry(config, "avro") if registered else _schema_files(config)
    except ImportError as error:
        setting = format_setting("input.format", "avro")
        yield Problem("input.format", f'{setting}: needs {error.name}; pip install "replayfilter[avro]"')


def _registry(config: Config, section: str) -> Iterator[Problem]:
    from replayfilter.formats.registry import Registry

    url = config.value_of(f"{section}.registry")
    if url and not any(_variables(config)):
        try:
            Registry(section, url, config.client_options(section))
        except ConfigError as error:
            yield Problem(f"{section}.options", error.errors[0], (f"{section}.registry",))


def _schema_files(config: Config) -> Iterator[Problem]:
    from replayfilter.formats.avro.shape import shape_of
    from replayfilter.formats.definition import Definition, SchemaError

    paths = config.avro.schemas
    if config.avro.encoding == "plain" and len(paths) > 1:
        setting = format_setting("avro.schemas", paths)
        message = f"{setting}: plain values don't name their schema; give only one, or use another encoding"
        yield Problem("avro.schemas", message, ("avro.encoding",))
    for index, path in enumerate(paths):
        key = f"avro.schemas.{index}"
        try:
            shape_of(Definition(Path(path).read_text("utf-8")), {})
        except (OSError, UnicodeDecodeError) as error:
            yield Problem(key, f"{format_setting(key, path)}: can't be read ({error}); check the path")
        except SchemaError as error:
            yield Problem(key, f"{format_setting(key, path)}: {error}; correct the file")


def _protobuf(config: Config) -> Iterator[Problem]:
    """Needed to read Protobuf: a registry's settings, or descriptors that have the message and each field."""
    if config.input.format != "protobuf":
        return
    try:
        if config.protobuf.descriptors:
            yield from _described(config)
        elif config.protobuf.encoding == "confluent":
            importlib.import_module("google.type.date_pb2")
            yield from _registry(config, "protobuf")
    except ImportError as error:
        setting = format_setting("input.format", "protobuf")
        yield Problem("input.format", f'{setting}: needs {error.name}; pip install "replayfilter[protobuf]"')


def _described(config: Config) -> Iterator[Problem]:
    from replayfilter.formats.protobuf.message_type import MessageTypeError, described_type

    protobuf, dedup, watermark = config.protobuf, config.dedup, config.watermark
    if protobuf.registry:
        setting = format_setting("protobuf.descriptors", protobuf.descriptors)
        remedy = "the registry has descriptors, too; remove this, or protobuf.registry"
        yield Problem("protobuf.descriptors", f"{setting}: {remedy}", ("protobuf.registry",))
    if not protobuf.message:
        return
    try:
        message = described_type(Path(protobuf.descriptors).read_bytes(), protobuf.message)
    except OSError as error:
        setting = format_setting("protobuf.descriptors", protobuf.descriptors)
        yield Problem("protobuf.descriptors", f"{setting}: can't be read ({error}); check the path")
        return
    except MessageTypeError as error:
        setting = format_setting("protobuf.message", protobuf.message)
        yield Problem("protobuf.message", f"{setting}: {error}", ("protobuf.descriptors",))
        return
    fields = {f"dedup.key.{at}": text for at, text in enumerate(dedup.key)} if dedup.enabled else {}
    fields |= {"dedup.expiry_key": dedup.expiry_key} if config.expires else {}
    fields |= _conflict_fields(config)
    if watermark.enabled:
        fields |= {"watermark.origin": watermark.origin, "watermark.time": watermark.time}
    for path, text in fields.items():
        if text and not _wrong_field(text, "protobuf", tuple(Location)):
            field = parse_field(text)
            if field.location is Location.PATH and (wrong := message.wrong_path(field.names)):
                yield Problem(path, f"{path}: {wrong}", ("input.format", "protobuf.message"))
