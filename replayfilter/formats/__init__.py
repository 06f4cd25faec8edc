"""Taking keys and expiry keys out of records: JSON, Avro and opaque bytes.

>>> extract = build_extractor(KeySpec("json", ("id",), "ts", "ms"))
>>> answer = extract(RecordColumns([b'{"id": "a", "ts": 5}', b"oops"]))
>>> answer.expiry.tolist(), [(fault.row, fault.reason.value) for fault in answer.faults]
([5, 0], [(1, 'json')])
"""

from __future__ import annotations

from replayfilter.errors import ConfigError, MissingDependency
from replayfilter.formats.extractor import FieldExtractor, Reader, WatermarkFields
from replayfilter.formats.fields import Field, Place, parse_field
from replayfilter.formats.json import JsonReader
from replayfilter.formats.raw import RawReader
from replayfilter.formats.spec import (
    UNITS,
    AvroSpec,
    Extraction,
    Extractor,
    Fault,
    KeySpec,
    Reason,
    RecordColumns,
)

__all__ = [
    "AvroSpec",
    "Extraction",
    "Extractor",
    "Fault",
    "KeySpec",
    "Reason",
    "RecordColumns",
    "build_extractor",
]

FORMATS = ("json", "avro", "raw")


def build_extractor(spec: KeySpec) -> Extractor:
    """The extractor for a spec; raises :class:`ConfigError` with all that is wrong with it at once.

    MissingDependency for Avro where fastavro or the registry's client is not installed.
    """
    faults: list[str] = []
    key = [field for text in spec.key if (field := _parse("dedup.key", text, faults))]
    expiry = None if spec.expiry_key is None else _parse("dedup.expiry_key", spec.expiry_key, faults)

    origin = None if spec.origin is None else _parse("watermark.origin", spec.origin, faults)
    time = None if spec.time is None else _parse("watermark.time", spec.time, faults)

    if spec.format not in FORMATS:
        faults.append(f'input.format: "{spec.format}" is unknown; use one of {", ".join(FORMATS)}')
    if spec.unit not in UNITS:
        faults.append(f'dedup.unit: "{spec.unit}" is unknown; use one of {", ".join(UNITS)}')
    faults += _misplaced(key, expiry)
    if spec.format == "raw":
        faults += _paths_in_raw(key, expiry)
    if spec.format == "avro" and spec.avro is None:
        faults.append('input.format: "avro" needs to know where schemas are; set avro.encoding')
    if faults:
        raise ConfigError(faults)

    fields = [*key, *(field for field in (expiry, origin, time) if field)]
    paths = [field for field in fields if field.place is Place.PATH]
    reader: Reader
    if spec.avro is not None:
        reader = _avro_reader(paths, spec.avro)
    else:
        reader = JsonReader(paths) if spec.format == "json" else RawReader()
    watermark = WatermarkFields(origin, time, spec.time_unit) if origin and time else None
    return FieldExtractor(key, expiry, spec.unit, reader, watermark)


def _avro_reader(paths: list[Field], spec: AvroSpec) -> Reader:
    try:
        from replayfilter.formats.avro.values import AvroReader

        return AvroReader(paths, spec)
    except ImportError as error:
        raise MissingDependency(
            f'input.format = "avro" needs {error.name}, which is not installed: '
            'pip install "replayfilter[avro]"'
        ) from None


def _parse(setting: str, text: str, faults: list[str]) -> Field | None:
    try:
        return parse_field(text)
    except ValueError as error:
        faults.append(f"{setting}: {error}")
        return None


def _misplaced(key: list[Field], expiry: Field | None) -> list[str]:
    faults = []
    for i, field in enumerate(key):
        if field.place is Place.TIMESTAMP:
            faults.append(
                'dedup.key: "@timestamp" can only be the expiry key; name fields that make records the same'
            )
        if any((field.place, field.names) == (other.place, other.names) for other in key[:i]):
            faults.append(f'dedup.key: "{field.text}" is there twice; name it once')
    if expiry and expiry.place not in (Place.PATH, Place.TIMESTAMP):
        faults.append(f'dedup.expiry_key: "{expiry.text}" has no order; use a field path or "@timestamp"')
    return faults


def _paths_in_raw(key: list[Field], expiry: Field | None) -> list[str]:
    remedy = 'but format "raw" has no fields; use'
    faults = [
        f'dedup.key: "{field.text}" is a field path, {remedy} "@key", "@value" or "@header:NAME", or "json"'
        for field in key
        if field.place is Place.PATH
    ]
    if expiry and expiry.place is Place.PATH:
        faults.append(
            f'dedup.expiry_key: "{expiry.text}" is a field path, {remedy} "@timestamp", or format "json"'
        )
    return faults
