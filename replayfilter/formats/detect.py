"""Finds out what a sample of records is: its format, and the fields that its records have.

A sample is judged by most of its records, so a few broken ones make no difference.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NamedTuple

import msgspec

from replayfilter.core.stamp import STAMP_HEADER, last_header, parse_stamps
from replayfilter.errors import MissingDependency
from replayfilter.formats.cloudevents import CloudEventsReader, wrong_attribute
from replayfilter.formats.debezium import DebeziumReader, is_change_event
from replayfilter.formats.definition import Definition, SchemaError
from replayfilter.formats.extractor import Reader
from replayfilter.formats.fields import Location, metadata_column, parse_field
from replayfilter.formats.json import JsonReader
from replayfilter.formats.raw import RawReader
from replayfilter.formats.schema_header import schema_in_header, shown_id
from replayfilter.formats.spec import (
    MAX_UNKNOWN,
    AvroSpec,
    ProtobufSpec,
    RecordColumns,
    RecordError,
    RegistryAddress,
)

MOST = 0.9  # the share of the records that have a format
MAX_DEPTH = 3  # of a field in a value
MAX_FIELDS = 200
_PREFIX = struct.Struct(">xi")
_SINGLE_OBJECT = b"\xc3\x01"
_CONTENT_TYPE, _MEDIA_TYPE = "content-type", b"application/cloudevents"
# Headers about how a record was sent, not what it is: they differ between copies of one record.
_ABOUT_SENDING = ("rf-", "ce_", "__", "traceparent", "tracestate", "b3", "x-b3-", _CONTENT_TYPE, STAMP_HEADER)


class Detected(NamedTuple):
    """A sample's ``format``, as in the config, and the names of the ``fields`` of its records.

    ``schemas``: the registry of Avro and Protobuf values, with the ids that it doesn't know. ``note``: a
    sentence about what could not be found out, or "".
    """

    format: str
    fields: list[str]
    schemas: AvroSpec | ProtobufSpec | None = None
    note: str = ""


def detect_format(batch: RecordColumns, registry: RegistryAddress | None = None) -> Detected:
    """What most of the records in a sample are; they have keys and headers.

    ``registry``: whom to ask for the schemas of Avro and Protobuf values. Raises RegistryError if it doesn't
    answer, and MissingDependency if a package for it is not installed.
    """
    values = [value for value in batch.values if value]
    headers = _header_fields(batch)
    if _most(map(_is_cloud_event, batch.headers), len(batch.headers)):
        return Detected("cloudevents", _attributes(batch) + headers)
    documents = [document for value in values if isinstance(document := _parse(value), dict)]
    if _most(map(is_change_event, documents), len(values)):
        envelopes = [
            each if "source" in each else each["payload"] for each in documents if is_change_event(each)
        ]
        return Detected("debezium", _names(envelopes) + headers)
    if _most(documents, len(values)):
        return Detected("json", _names(documents) + headers)
    ids = Counter(filter(None, map(_schema_id, batch.values, batch.headers)))
    if not _most(ids.elements(), len(values)):
        note = ""
        if _most((value[:2] == _SINGLE_OBJECT for value in values), len(values)):
            note = (
                "values begin with c3 01, as Avro in the single-object encoding does: to read its fields, "
                'set input.format = "avro" and the files in avro.schemas'
            )
        return Detected("raw", headers, note=note)
    if registry is None:
        shown = ", ".join(map(shown_id, sorted(ids)[:5]))
        note = f"records have ids of schemas ({shown}): to read their fields, give --registry"
        return Detected("raw", headers, note=note)
    return _by_registry(ids, registry, headers)


def stamp_location(batch: RecordColumns) -> str:
    """Where at least half of the records have a stamp: "key", "header", or "none".

    A key of 20 bytes is a stamp only if its numbers can be those of a stamp.
    """
    headers = [last_header(pairs, STAMP_HEADER) for pairs in batch.headers]
    for where, column in (("header", headers), ("key", batch.keys)):
        stamps = parse_stamps(column)
        likely = stamps.valid & (stamps.partitions >= 0) & (stamps.partitions < 1_000_000)
        if 2 * int((likely & (stamps.offsets >= 0)).sum()) >= max(1, len(column)):
            return where
    return "none"


def columns_of(detected: Detected, batch: RecordColumns) -> tuple[list[int], dict[str, list[object]]]:
    """The rows that can be read, and in these the value of each field; MISSING where there is none.

    ``@key`` is a field, too.
    """
    fields = [parse_field(name) for name in detected.fields]
    paths = [field for field in fields if field.location is Location.PATH]
    reader: Reader = RawReader()
    if detected.format == "cloudevents":
        reader = CloudEventsReader(paths)
    elif detected.format == "json":
        reader = JsonReader(paths)
    elif detected.format == "debezium":
        reader = DebeziumReader(paths)
    elif isinstance(detected.schemas, AvroSpec):
        from replayfilter.formats.avro.values import AvroReader

        reader = AvroReader(paths, detected.schemas)
    elif isinstance(detected.schemas, ProtobufSpec):
        from replayfilter.formats.protobuf.message_reader import ProtobufReader

        reader = ProtobufReader(paths, detected.schemas)
    errors: dict[int, RecordError] = {}
    found = reader(batch, errors)
    columns = {field.text: column for field, column in zip(paths, found, strict=True)}
    for field in [*fields, parse_field("@key")]:
        if field.location is not Location.PATH:
            columns[field.text] = metadata_column(field, batch)
    rows = [row for row in range(len(batch.values)) if row not in errors]
    return rows, {name: [column[row] for row in rows] for name, column in columns.items()}


def _most(found: Iterable[object], of: int) -> bool:
    return of > 0 and sum(map(bool, found)) >= MOST * of


def _parse(value: bytes) -> object:
    """The JSON in a value, with or without the prefix of Confluent's serializer; None if there is none."""
    try:
        return msgspec.json.decode(value[_PREFIX.size :] if value[0] == 0 else value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _is_cloud_event(pairs: Sequence[tuple[str, bytes | None]] | None) -> bool:
    headers = dict(pairs or ())
    structured = (headers.get(_CONTENT_TYPE) or b"")[: len(_MEDIA_TYPE)].lower() == _MEDIA_TYPE
    return structured or {"ce_id", "ce_source", "ce_specversion"} <= headers.keys()


def _attributes(batch: RecordColumns) -> list[str]:
    names: dict[str, None] = {"source": None, "id": None}
    for value, pairs in zip(batch.values, batch.headers, strict=True):
        names |= {name[3:]: None for name, _ in pairs or () if name.startswith("ce_")}
        if (dict(pairs or ()).get(_CONTENT_TYPE) or b"").lower().startswith(_MEDIA_TYPE):
            document = _parse(value) if value else None
            names |= dict.fromkeys(document) if isinstance(document, dict) else {}
        if len(names) > MAX_FIELDS:
            break
    return [name for name in names if _is_usable(name, (name,)) and not wrong_attribute(parse_field(name))]


def _header_fields(batch: RecordColumns) -> list[str]:
    counts = Counter(name for pairs in batch.headers for name in dict(pairs or ()))
    return [
        f"@header:{name}"
        for name, count in counts.items()
        if name and count >= MOST * len(batch.headers) and not name.lower().startswith(_ABOUT_SENDING)
    ][:MAX_FIELDS]


def _names(documents: Iterable[Mapping[str, Any]]) -> list[str]:
    """The fields of JSON objects that hold no object, in the order in which they appear."""
    names: dict[str, None] = {}
    for document in documents:
        names |= dict.fromkeys(_leaves(document))
        if len(names) > MAX_FIELDS:
            break
    return list(names)[:MAX_FIELDS]


def _leaves(document: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[str]:
    for name, value in document.items():
        path = (*above, name)
        if isinstance(value, dict):
            if len(path) < MAX_DEPTH:
                yield from _leaves(value, path)
        elif not isinstance(value, list) and (text := _text_of(path)):
            yield text


def _text_of(path: tuple[str, ...]) -> str:
    """A path as the config has it; "" if the config can't name it."""
    text = ".".join(name.replace(".", "\\.") for name in path)
    text = f"\\{text}" if text.startswith("@") else text
    return text if _is_usable(text, path) else ""


def _is_usable(text: str, path: tuple[str, ...]) -> bool:
    try:
        return parse_field(text).names == path
    except ValueError:
        return False


def _schema_id(value: bytes | None, headers: Sequence[tuple[str, bytes | None]] | None) -> int | None:
    """The id or GUID of a record's schema, in its header or before its value; None if it has none."""
    if value is None:
        return None
    in_header = schema_in_header(headers)
    if in_header is not None:
        return in_header[0]
    id_: int = _PREFIX.unpack_from(value)[0] if len(value) > _PREFIX.size and value[0] == 0 else 0
    return id_ if id_ > 0 else None


def _by_registry(ids: Iterable[int], address: RegistryAddress, headers: list[str]) -> Detected:
    """What records are by the schemas that they name: Avro or Protobuf; raw if the registry can't say."""
    try:
        from replayfilter.formats.registry import Registry

        asked = sorted(ids)[:MAX_UNKNOWN]
        types = Registry("avro", address.url, dict(address.options)).types(asked)
        unknown = tuple(id_ for id_ in asked if id_ not in types)
        problem = f"the registry doesn't know {', '.join(map(shown_id, unknown[:5]))}" if not types else ""
        for form, names_of in (("avro", _avro_names), ("protobuf", protobuf_names)):
            known = [id_ for id_ in asked if types.get(id_) == form.upper()]
            names: dict[str, None] = {}
            for id_, definition in Registry(form, address.url, dict(address.options)).find(known).items():
                try:
                    names |= dict.fromkeys(names_of(definition))
                except SchemaError as error:
                    problem = problem or f"{shown_id(id_)} can't be used ({error})"
            if names:
                spec = AvroSpec("confluent") if form == "avro" else ProtobufSpec("confluent")
                spec = replace(spec, registry=address.url, options=address.options, unknown=unknown)
                return Detected(form, [*list(names)[:MAX_FIELDS], *headers], spec)
            problem = problem or ("their schemas have no fields" if known else "")
    except ImportError as error:
        raise MissingDependency(
            f"--registry needs {error.name}, which is not installed: pip install "
            '"replayfilter[avro,protobuf]"'
        ) from None
    problem = problem or f"they are of the type {', '.join(sorted(set(types.values())))}"
    return Detected("raw", headers, note=f"records have ids of schemas: {problem}")


def _avro_names(definition: Definition | SchemaError) -> list[str]:
    """The fields of an Avro schema. Raises SchemaError."""
    if isinstance(definition, SchemaError):
        raise definition
    try:
        return list(_schema_leaves(json.loads(definition.text)))
    except (ValueError, RecursionError) as error:
        raise SchemaError.of(error, "an Avro schema") from None


def protobuf_names(definition: Definition | SchemaError) -> list[str]:
    """The fields of the messages in a file, but not of those within others. Raises SchemaError."""
    from replayfilter.formats.protobuf.message_type import registered_types

    if isinstance(definition, SchemaError):
        raise definition
    types = registered_types(definition)
    outer = (type_.descriptor for position, type_ in types.items() if len(position) == 1)
    return list(islice(chain.from_iterable(map(_message_leaves, outer)), MAX_FIELDS))


def _message_leaves(message: Any, above: tuple[str, ...] = ()) -> Iterator[str]:
    """The fields of a message that are no messages, maps or lists; a timestamp is a field."""
    from replayfilter.formats.protobuf.message_type import is_repeated

    for field in message.fields:
        path = (*above, field.name)
        if is_repeated(field):
            continue
        if field.message_type is None or field.message_type.full_name == "google.protobuf.Timestamp":
            if text := _text_of(path):
                yield text
        elif len(path) < MAX_DEPTH:
            yield from _message_leaves(field.message_type, path)


def _schema_leaves(schema: object, above: tuple[str, ...] = ()) -> Iterator[str]:
    """The fields of a record schema that are no records, maps or arrays; records defined elsewhere count."""
    fields = schema.get("fields") if isinstance(schema, dict) else None
    for field in fields if isinstance(fields, list) else ():
        path = (*above, str(field.get("name")))
        kinds = field.get("type")
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if isinstance(kind, dict) and kind.get("type") in ("record", "error"):
                if len(path) < MAX_DEPTH:
                    yield from _schema_leaves(kind, path)
            elif isinstance(kind, dict) and kind.get("type") in ("map", "array"):
                continue
            elif kind != "null" and (text := _text_of(path)):
                yield text
