"""What must hold between the keys of a config: each rule by itself, so that all broken ones can be told."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from replayfilter.errors import ConfigError
from replayfilter.formats.fields import Place, parse_field
from replayfilter.kafka.client_settings import client_settings
from replayfilter.settings.durations import length_in_units
from replayfilter.settings.messages import shown
from replayfilter.watermark.roster_file import NAME, read_roster

if TYPE_CHECKING:
    from replayfilter.service.config.model import Config

VARIABLE = re.compile(r"\$\{([^}]*)\}")

# Spark's connector and this config have their own words for these; the rest is refused by kafka/settings.py.
_ELSEWHERE = {"metadata.broker.list": "kafka.bootstrap", "auto.offset.reset": "input.starting"}


class Broken(NamedTuple):
    """A broken rule: the key to change, the sentence, and the other keys that the rule looked at."""

    path: str
    text: str
    reads: tuple[str, ...] = ()


def cross_check(config: Config, bad: frozenset[str]) -> Iterator[tuple[str, str]]:
    """(path, sentence) of each broken rule, but none that read a key in ``bad``, whose value is a guess."""
    for check in (_required, _fields, _lengths, _watermark, _stamps, _topics, _variables, _options, _avro):
        for broken in check(config):
            if not any(_related(path, key) for path in bad for key in (broken.path, *broken.reads)):
                yield broken.path, broken.text


def _related(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _required(config: Config) -> Iterator[Broken]:
    dedup = config.dedup
    paths = ["service.name", "service.checkpoint", "kafka.bootstrap", "input.topics"]
    if dedup.enabled:
        paths += ["dedup.key", *(("dedup.expiry_key", "dedup.period") if config.expires else ())]
    if config.input.format == "avro":
        paths.append("avro.registry" if config.avro.encoding == "confluent" else "avro.schemas")
    for path in [*paths, *config.output_topics()]:
        if config.value_of(path) in ("", []):
            section, example = path.split(".")[0], config.example_of(path)
            text = f"{path}: missing; set it under [{section}], for example {example}"
            yield Broken(path, text, ("dedup.enabled", "dedup.clock", "input.format", "avro.encoding"))


def _watermark(config: Config) -> Iterator[Broken]:
    mark, raw = config.watermark, config.input.format == "raw"
    if config.dedup.enabled and config.dedup.clock == "watermark" and not mark.enabled:
        setting = shown("dedup.clock", "watermark")
        text = f"{setting}: no watermark is kept; set watermark.enabled = true and say whom it counts"
        yield Broken("dedup.clock", text, ("watermark.enabled", "dedup.enabled"))
    if not mark.enabled:
        return
    if mark.origin and (wrong := _wrong_field(mark.origin, raw, (Place.KEY, Place.HEADER))):
        yield Broken("watermark.origin", f"watermark.origin: {wrong}", ("input.format",))
    if mark.time and (wrong := _wrong_field(mark.time, raw, (Place.TIMESTAMP,))):
        yield Broken("watermark.time", f"watermark.time: {wrong}", ("input.format",))
    given = [name for name in ("origin", "time", "roster") if config.value_of(f"watermark.{name}")]
    for name in ("origin", "time", "roster") if given else ():
        if name not in given:
            text = (
                f"watermark.{name}: missing, where {given[0]} is set; set it too, for example "
                f"{config.example_of(f'watermark.{name}')}, or none of the three to take the watermark that "
                "the input carries"
            )
            yield Broken(f"watermark.{name}", text, ("watermark.enabled",))
    for name, names in (("roster", mark.roster), ("idle", mark.idle)):
        path = f"watermark.{name}"
        if isinstance(names, str) and names:
            try:
                read_roster(Path(names), may_be_empty=name == "idle")
            except ValueError as error:
                yield Broken(path, f"{path}: {error}")
        for origin in names if isinstance(names, list) else ():
            if not NAME.fullmatch(origin):
                yield Broken(path, f"{shown(path, origin[:40])}: no origin's name; use 1 to 256 characters")
                break
    if mark.idle and not mark.roster:
        text = "watermark.idle: no origins are counted; set watermark.roster too, or leave it out"
        yield Broken("watermark.idle", text, ("watermark.enabled", "watermark.roster"))
    for name in VARIABLE.findall(mark.token):
        if name not in os.environ:
            text = f"watermark.token: there is no variable {name} in the environment; set it"
            yield Broken("watermark.token", text)


def _fields(config: Config) -> Iterator[Broken]:
    dedup = config.dedup
    if not dedup.enabled:
        return
    raw = config.input.format == "raw"
    for place, text in enumerate(dedup.key):
        path = f"dedup.key.{place}"
        if wrong := _wrong_field(text, raw, (Place.KEY, Place.VALUE, Place.HEADER)):
            yield Broken(path, f"{path}: {wrong}", ("input.format",))
        if text == "@key" and config.input.stamp == "key":
            yield Broken(
                path,
                f"{shown(path, text)}: the record's key is its stamp, which no two records share; "
                'choose fields of the value, or set input.stamp = "header"',
                ("input.stamp",),
            )
    if dedup.expiry_key and (wrong := _wrong_field(dedup.expiry_key, raw, (Place.TIMESTAMP,))):
        yield Broken("dedup.expiry_key", f"dedup.expiry_key: {wrong}", ("input.format",))


def _wrong_field(text: str, raw: bool, allowed: tuple[Place, ...]) -> str | None:
    try:
        place = parse_field(text).place
    except ValueError as error:
        return str(error)
    choices = ", ".join(f'"{place.value}"' for place in allowed)
    if place is Place.PATH:
        return f'"{text}" is a field, and input.format "raw" has none; use {choices}' if raw else None
    return None if place in allowed else f'"{text}" can\'t be used here; use a field or {choices}'


def _lengths(config: Config) -> Iterator[Broken]:
    dedup = config.dedup
    if not config.expires:
        if dedup.enabled and dedup.match == "bucket":
            text = 'with clock = "none" there are no buckets of time; leave it out'
            yield Broken("dedup.match", f"{shown('dedup.match', 'bucket')}: {text}", ("dedup.clock",))
        return
    if dedup.unit == "integer" and dedup.clock in ("tuple", "system", "watermark"):
        text = f'clock = "{dedup.clock}" needs a unit of time; use s, ms, us, ns or iso8601'
        yield Broken("dedup.unit", f"{shown('dedup.unit', 'integer')}: {text}", ("dedup.clock",))
        return
    if dedup.max_jump is not None and dedup.clock != "ordered":
        text = 'only clock = "ordered" has it; leave it out (for time, max_future does the same)'
        yield Broken("dedup.max_jump", f"{shown('dedup.max_jump', dedup.max_jump)}: {text}", ("dedup.clock",))
    if dedup.bucket_span != "" and dedup.clock == "categorical":
        text = "a bucket is a category there; leave it out"
        setting = shown("dedup.bucket_span", dedup.bucket_span)
        yield Broken("dedup.bucket_span", f"{setting}: {text}", ("dedup.clock",))
    lengths: dict[str, int] = {}
    for path in ("dedup.period", "dedup.bucket_span"):
        value = config.value_of(path)
        if value == "":
            continue
        try:
            lengths[path] = length_in_units(value, config.length_unit)
            if not lengths[path] and dedup.clock != "categorical":
                raise ValueError("must be more than zero; lengthen it")
        except ValueError as error:
            yield Broken(path, f"{shown(path, value)}: {error}", ("dedup.clock", "dedup.unit"))
    span, period = lengths.get("dedup.bucket_span", 0), lengths.get("dedup.period", 2**63)
    if span > period:
        text = f"longer than dedup.period = {json.dumps(dedup.period)}; shorten it or leave it out"
        setting = shown("dedup.bucket_span", dedup.bucket_span)
        yield Broken("dedup.bucket_span", f"{setting}: {text}", ("dedup.clock", "dedup.unit", "dedup.period"))


def _stamps(config: Config) -> Iterator[Broken]:
    if config.input.stamp == "none" and config.replay.enabled:
        text = (
            f'{shown("replay.enabled", True)}: with input.stamp = "none" nothing tells replays; '
            'set replay.enabled = false, or input.stamp = "key" or "header"'
        )
        yield Broken("replay.enabled", text, ("input.stamp",))


def _topics(config: Config) -> Iterator[Broken]:
    topics = config.input.topics
    if len(set(topics)) < len(topics):
        yield Broken("input.topics", f"{shown('input.topics', topics)}: names a topic twice; name each once")
    taken = dict.fromkeys(topics, "input.topics")
    for path, topic in config.output_topics().items():
        if topic and topic in taken:
            text = f"{shown(path, topic)}: {taken[topic]} names that topic too; give each its own"
            yield Broken(path, text, (taken[topic],))
        taken.setdefault(topic, path)


def _variables(config: Config) -> Iterator[Broken]:
    for section, options in (("kafka", config.kafka.options), ("avro", config.avro.options)):
        for name, text in options.items():
            path = f"{section}.options.{name}"
            missing = [variable for variable in VARIABLE.findall(text) if variable not in os.environ]
            if missing:
                names = ", ".join(missing)
                yield Broken(
                    path, f"{path}: needs the environment variable {names}, which is not set; set it first"
                )


def _options(config: Config) -> Iterator[Broken]:
    options = config.kafka.options
    for name, text in options.items():
        path = f"kafka.options.{name}"
        if name in _ELSEWHERE:
            yield Broken(
                path, f"{shown(path, text)}: not to be set here; set {_ELSEWHERE[name]} and remove it"
            )
    for produces in (True, False):
        try:
            client_settings("", options, produces=produces)
        except ConfigError as error:
            for fault in error.faults:
                yield Broken(next(word for word in fault.split() if word.startswith("kafka.options.")), fault)


def _avro(config: Config) -> Iterator[Broken]:
    """What reading Avro needs: its packages, a registry's settings, files that hold schemas."""
    if config.input.format != "avro":
        return
    try:
        yield from _registry(config) if config.avro.encoding == "confluent" else _schema_files(config)
    except ImportError as error:
        text = f'{shown("input.format", "avro")}: needs {error.name}; pip install "replayfilter[avro]"'
        yield Broken("input.format", text)


def _registry(config: Config) -> Iterator[Broken]:
    from replayfilter.formats.avro.registry import Registry

    if config.avro.registry and not any(_variables(config)):
        try:
            Registry(config.avro.registry, config.client_options("avro"))
        except ConfigError as error:
            yield Broken("avro.options", error.faults[0], ("avro.registry",))


def _schema_files(config: Config) -> Iterator[Broken]:
    from replayfilter.formats.avro.shape import SchemaError, shape_of

    paths = config.avro.schemas
    if config.avro.encoding == "plain" and len(paths) > 1:
        text = "plain values don't say which schema is theirs; name the one, or use another encoding"
        yield Broken("avro.schemas", f"{shown('avro.schemas', paths)}: {text}", ("avro.encoding",))
    for place, path in enumerate(paths):
        key = f"avro.schemas.{place}"
        try:
            shape_of((Path(path).read_text("utf-8"),), {})
        except (OSError, UnicodeDecodeError) as error:
            yield Broken(key, f"{shown(key, path)}: can't be read ({error}); check the path")
        except SchemaError as error:
            yield Broken(key, f"{shown(key, path)}: {error}; mend the file")
