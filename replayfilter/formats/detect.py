"""Finds out what a sample of records is: its format, and the fields that its records have.

A sample is judged by most of its records, so a few broken ones make no difference.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from replayfilter.core.stamp import STAMP_HEADER, last_header, parse_stamps
from replayfilter.errors import MissingDependency
from replayfilter.formats.cloudevents import CloudEventsReader, wrong_attribute
from replayfilter.formats.debezium import DebeziumReader, is_change_event
from replayfilter.formats.extractor import Reader
from replayfilter.formats.fields import Location, metadata_column, parse_field
from replayfilter.formats.json import JsonReader
from replayfilter.formats.raw import RawReader
from replayfilter.formats.spec import MAX_UNKNOWN, AvroSpec, RecordColumns, RecordError

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

    ``unknown_ids``: ids of schemas that Avro values begin with and the registry doesn't know. ``note``: a
    sentence about what could not be found out, or "".
    """

    format: str
    fields: list[str]
    unknown_ids: tuple[int, ...] = ()
    note: str = ""


def detect_format(batch: RecordColumns, avro: AvroSpec | None = None) -> Detected:
    """What most of the records in a sample are; they have keys and headers.

    ``avro``: the registry to ask for the schemas of Avro values. Raises RegistryError if it doesn't answer,
    and MissingDependency if a package for it is not installed.
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
    with_prefix = [value for value in values if len(value) > _PREFIX.size and value[0] == 0]
    if not _most(with_prefix, len(values)):
        note = ""
        if _most((value[:2] == _SINGLE_OBJECT for value in values), len(values)):
            note = (
                "values begin with c3 01, as Avro in the single-object encoding does: to read its fields, "
                'set input.format = "avro" and the files in avro.schemas'
            )
        return Detected("raw", headers, note=note)
    ids = Counter(_PREFIX.unpack_from(value)[0] for value in with_prefix)
    shown = ", ".join(map(str, sorted(ids)[:5]))
    if avro is None:
        note = f"values begin with ids of schemas ({shown}): to read their fields, give --registry"
        return Detected("raw", headers, note=note)
    names, unknown, problem = _avro_names(sorted(ids)[:MAX_UNKNOWN], avro)
    if problem:
        return Detected("raw", headers, note=f"values begin with ids of schemas: {problem}")
    return Detected("avro", names + headers, unknown)


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


def columns_of(
    detected: Detected, batch: RecordColumns, avro: AvroSpec | None = None
) -> tuple[list[int], dict[str, list[object]]]:
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
    elif detected.format == "avro" and avro is not None:
        from replayfilter.formats.avro.values import AvroReader

        reader = AvroReader(paths, replace(avro, unknown=detected.unknown_ids))
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


def _avro_names(ids: Sequence[int], spec: AvroSpec) -> tuple[list[str], tuple[int, ...], str]:
    """The fields of the schemas that the registry knows, the other ids, and why there are no fields."""
    try:
        from replayfilter.formats.avro.registry import Registry
        from replayfilter.formats.avro.shape import SchemaError
    except ImportError as error:
        raise MissingDependency(
            f'--registry needs {error.name}, which is not installed: pip install "replayfilter[avro]"'
        ) from None
    registry = Registry(spec.registry, dict(spec.options))
    known = registry.known(ids)
    unknown = tuple(id_ for id_ in ids if id_ not in known)
    names: dict[str, None] = {}
    problem = f"the registry doesn't know {', '.join(map(str, unknown[:5]))}" if not known else ""
    for id_, definition in registry.find(sorted(known)).items():
        if isinstance(definition, SchemaError):
            problem = problem or f"{id_} can't be used ({definition})"
        else:
            try:
                names |= dict.fromkeys(_schema_leaves(json.loads(definition[-1])))
            except (ValueError, RecursionError):
                problem = problem or f"{id_} is no schema of Avro"
    return list(names)[:MAX_FIELDS], unknown, "" if names else problem or "their schemas have no fields"


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
