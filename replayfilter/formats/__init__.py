"""Extracts dedup keys and expiry keys from records: JSON, Avro, Protobuf, CloudEvents, Debezium, raw.

>>> extract = build_extractor(KeySpec("json", ("id",), "ts", "ms"))
>>> extraction = extract(RecordColumns([b'{"id": "a", "ts": 5}', b"oops"]))
>>> extraction.expiry.tolist(), [(error.row, error.reason.value) for error in extraction.errors]
([5, 0], [(1, 'json')])
"""

from __future__ import annotations

from replayfilter.errors import ConfigError, MissingDependency
from replayfilter.formats.cloudevents import CloudEventsReader, wrong_attribute
from replayfilter.formats.debezium import PASSING, DebeziumReader
from replayfilter.formats.extractor import FieldExtractor, Reader, WatermarkFields
from replayfilter.formats.fields import Field, Location, parse_field
from replayfilter.formats.json import JsonReader
from replayfilter.formats.raw import RawReader
from replayfilter.formats.spec import (
    UNITS,
    AvroSpec,
    Extraction,
    Extractor,
    KeySpec,
    ProtobufSpec,
    Reason,
    RecordColumns,
    RecordError,
)

__all__ = [
    "AvroSpec",
    "Extraction",
    "Extractor",
    "KeySpec",
    "ProtobufSpec",
    "Reason",
    "RecordColumns",
    "RecordError",
    "build_extractor",
]

FORMATS = ("json", "avro", "protobuf", "cloudevents", "debezium", "raw")


def build_extractor(spec: KeySpec) -> Extractor:
    """Build the extractor for a spec.

    Raises :class:`ConfigError` with every problem of the spec, and :class:`MissingDependency` if a package
    for Avro, Protobuf or the schema registry is not installed.
    """
    errors: list[str] = []
    key = [field for text in spec.key if (field := _parse("dedup.key", text, errors))]
    expiry = None if spec.expiry_key is None else _parse("dedup.expiry_key", spec.expiry_key, errors)

    origin = None if spec.origin is None else _parse("watermark.origin", spec.origin, errors)
    time = None if spec.time is None else _parse("watermark.time", spec.time, errors)
    content = [field for text in spec.content if (field := _parse("dedup.conflict_fields", text, errors))]

    if spec.format not in FORMATS:
        errors.append(f'input.format: "{spec.format}" is unknown; use one of {", ".join(FORMATS)}')
    if spec.unit not in UNITS:
        errors.append(f'dedup.unit: "{spec.unit}" is unknown; use one of {", ".join(UNITS)}')
    compared = [("dedup.key", field) for field in key]
    compared += [("dedup.conflict_fields", field) for field in content]
    errors += _misplaced_fields(compared, expiry)
    if spec.format == "raw":
        errors += _paths_in_raw(compared, expiry)
    if spec.format == "cloudevents":
        named = [*compared, ("dedup.expiry_key", expiry)] if expiry else compared
        named += [("watermark.origin", origin)] if origin else []
        named += [("watermark.time", time)] if time else []
        errors += [f"{setting}: {wrong}" for setting, field in named if (wrong := wrong_attribute(field))]
    if spec.format == "avro" and spec.avro is None:
        errors.append('input.format: "avro" needs schemas; set avro.encoding')
    if spec.format == "protobuf" and spec.protobuf is None:
        errors.append(
            'input.format: "protobuf" needs the types of messages; set protobuf.registry, or '
            "protobuf.descriptors and protobuf.message"
        )
    if spec.format == "debezium" and spec.on_null != "unique":
        errors.append('input.format: "debezium" needs input.on_null = "unique"')
    if errors:
        raise ConfigError(errors)

    passing = [PASSING] if spec.format == "debezium" else []
    fields = [*key, *(field for field in (expiry, origin, time) if field), *content, *passing]
    paths = [field for field in fields if field.location is Location.PATH]
    reader: Reader
    if spec.avro is not None:
        reader = _avro_reader(paths, spec.avro)
    elif spec.protobuf is not None:
        reader = _protobuf_reader(paths, spec.protobuf)
    elif spec.format == "cloudevents":
        reader = CloudEventsReader(paths)
    elif spec.format == "debezium":
        reader = DebeziumReader(paths)
    else:
        reader = JsonReader(paths) if spec.format == "json" else RawReader()
    watermark = WatermarkFields(origin, time, spec.time_unit) if origin and time else None
    return FieldExtractor(
        key, expiry, spec.unit, reader, watermark, spec.on_null, content, lets_pass=bool(passing)
    )


def _avro_reader(paths: list[Field], spec: AvroSpec) -> Reader:
    try:
        from replayfilter.formats.avro.values import AvroReader

        return AvroReader(paths, spec)
    except ImportError as error:
        raise MissingDependency(
            f'input.format = "avro" needs {error.name}, which is not installed: '
            'pip install "replayfilter[avro]"'
        ) from None


def _protobuf_reader(paths: list[Field], spec: ProtobufSpec) -> Reader:
    try:
        from replayfilter.formats.protobuf.message_reader import ProtobufReader
        from replayfilter.formats.protobuf.message_type import MessageTypeError

        return ProtobufReader(paths, spec)
    except ImportError as error:
        raise MissingDependency(
            f'input.format = "protobuf" needs {error.name}, which is not installed: '
            'pip install "replayfilter[protobuf]"'
        ) from None
    except MessageTypeError as error:
        raise ConfigError([f"protobuf.message: {error}"]) from None


def _parse(setting: str, text: str, errors: list[str]) -> Field | None:
    try:
        return parse_field(text)
    except ValueError as error:
        errors.append(f"{setting}: {error}")
        return None


def _misplaced_fields(compared: list[tuple[str, Field]], expiry: Field | None) -> list[str]:
    errors = []
    seen = set()
    for setting, field in compared:
        if field.location is Location.TIMESTAMP:
            errors.append(f'{setting}: "@timestamp" can only be the expiry key; name fields of the record')
        if (where := (setting, field.location, field.names)) in seen:
            errors.append(f'{setting}: "{field.text}" is listed twice; list it once')
        seen.add(where)
    if expiry and expiry.location in (Location.KEY, Location.VALUE):
        errors.append(
            f'dedup.expiry_key: "{expiry.text}" has no order; use a field path, "@timestamp" or '
            '"@header:NAME"'
        )
    return errors


def _paths_in_raw(compared: list[tuple[str, Field]], expiry: Field | None) -> list[str]:
    remedy = 'but format "raw" has no fields; use'
    errors = [
        f'{setting}: "{field.text}" is a field path, {remedy} "@key", "@value" or "@header:NAME", or "json"'
        for setting, field in compared
        if field.location is Location.PATH
    ]
    if expiry and expiry.location is Location.PATH:
        errors.append(
            f'dedup.expiry_key: "{expiry.text}" is a field path, {remedy} "@timestamp" or "@header:NAME", '
            'or format "json"'
        )
    return errors
