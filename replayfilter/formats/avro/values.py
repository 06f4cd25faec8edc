"""The "avro" format: reads values with the schema that wrote them, but only the configured fields.

- A path leads through records, maps and unions with null. A field that the writer's schema doesn't have is
  missing, which differs from null. Defaults of other schemas are not used.
- A value must end where its schema says.
- With encoding ``confluent``, a record with the header ``__value_schema_id`` has no prefix.
- Limits: about 150 levels of nesting for recursive schemas, decimals of 4,300 digits.

See shape.py for logical types and schemas.py for where schemas come from.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from io import BytesIO

from replayfilter.core.digest import MISSING
from replayfilter.formats.avro.schemas import schemas_of
from replayfilter.formats.avro.shape import Shape, Want, shape_of
from replayfilter.formats.definition import SchemaError
from replayfilter.formats.fields import Field, look_up, outermost
from replayfilter.formats.schema_header import SCHEMA_HEADER, schema_in_header
from replayfilter.formats.spec import AvroSpec, Reason, RecordColumns, RecordError, shorten

_DECODE_ERRORS = (EOFError, IndexError, ValueError, ArithmeticError, RecursionError, struct.error)
_CONFLUENT = struct.Struct(">xi")
_SINGLE = struct.Struct("<2xQ")

Prefix = tuple[int, int]  # the reference to the schema, and the position where the value starts


class AvroReader:
    """An :class:`extractor.Reader` of Avro values, for ``fields`` that are paths.

    A call raises :class:`RegistryError` if it needs a schema and the registry is down, and
    :class:`UnknownSchemas` with all unknown ids in ``values`` that are not recorded.
    """

    as_text = False

    def __init__(self, fields: Sequence[Field], spec: AvroSpec) -> None:
        self._paths = [field.names for field in fields]
        self._want: Want = {}
        for path in self._paths:
            level = self._want
            for name in outermost(path, self._paths):
                level = level.setdefault(name, {})
        self._encoding = spec.encoding
        self.needs = frozenset({"headers"} if spec.encoding == "confluent" else ())
        self._prefix = PREFIXES[spec.encoding]
        self._schemas = schemas_of(spec)
        self._shapes: dict[int, Shape | SchemaError] = {}

    def __call__(self, batch: RecordColumns, errors: dict[int, RecordError]) -> list[list[object]]:
        """One column per path, see :class:`extractor.Reader`."""
        values = batch.values
        prefixes = [self._prefix(value) if value else None for value in values]
        for row, headers in enumerate(batch.headers if self.needs else ()):
            if headers and (found := schema_in_header(headers)) is not None:
                prefixes[row] = (found[0], 0)
        shapes = self._find({prefix[0] for prefix in prefixes if prefix})
        records: list[object] = []
        for row, (value, prefix) in enumerate(zip(values, prefixes, strict=True)):
            record = self._decode(row, value, prefix, shapes)
            if isinstance(record, RecordError):
                errors[row] = record
            records.append(record)
        return [self._column(records, path) for path in self._paths]

    def _find(self, refs: set[int]) -> dict[int, Shape | SchemaError]:
        new = refs - self._shapes.keys()
        if not new:
            return self._shapes
        unknown: dict[int, Shape | SchemaError] = {}
        for ref, schema in self._schemas.find(sorted(new)).items():
            if isinstance(schema, SchemaError):
                unknown[ref] = schema  # not kept: the schema may be known next time
                continue
            try:
                self._shapes[ref] = shape_of(schema, self._want)
            except SchemaError as error:
                self._shapes[ref] = error
        return self._shapes | unknown

    def _decode(
        self, row: int, value: bytes | None, prefix: Prefix | None, shapes: dict[int, Shape | SchemaError]
    ) -> object:
        if not value:
            found = "null" if value is None else "no bytes"
            return RecordError(row, Reason.EMPTY, f"value: found {found}, expected an Avro record")
        if prefix is None:
            message = f"value: begins with {value[:10].hex(' ')}, expected {_EXPECTED[self._encoding]}"
            return RecordError(row, Reason.AVRO_PREFIX, message)
        ref, start = prefix
        shape = shapes[ref]
        if isinstance(shape, SchemaError):
            return RecordError(row, Reason.AVRO_SCHEMA, f"value: can't be read by its schema: {shape}")
        stream = BytesIO(value)
        stream.seek(start)
        try:
            record = shape.read(stream)
        except _DECODE_ERRORS as error:
            problem = f"{_describe(error)} at byte {stream.tell()} of {len(value)}"
        else:
            if stream.tell() == len(value):
                if isinstance(record, dict):
                    return record
                return RecordError(row, Reason.NOT_OBJECT, f"value: {shape.name} is not a record schema")
            problem = f"ends at byte {stream.tell()} of {len(value)}"
        message = (
            f"value: {problem}; expected a value of schema {shape.name}, near {shorten(value[start:], 40)}"
        )
        return RecordError(row, Reason.AVRO, message)

    def _column(self, records: list[object], path: tuple[str, ...]) -> list[object]:
        if len(path) == 1:
            (name,) = path
            # With an int for rows with errors the column stays on the fast path.
            return [record.get(name, MISSING) if type(record) is dict else 0 for record in records]
        return [look_up(record, path) if type(record) is dict else 0 for record in records]


def _confluent(value: bytes) -> Prefix | None:
    return (_CONFLUENT.unpack_from(value)[0], 5) if len(value) >= 5 and value[0] == 0 else None


def _single_object(value: bytes) -> Prefix | None:
    return (_SINGLE.unpack_from(value)[0], 10) if len(value) >= 10 and value[:2] == b"\xc3\x01" else None


PREFIXES: dict[str, Callable[[bytes], Prefix | None]] = {
    "confluent": _confluent,
    "single-object": _single_object,
    "plain": lambda _: (0, 0),
}
_EXPECTED = {
    "confluent": f"a zero byte and a schema id of 4 bytes, or the header {SCHEMA_HEADER}",
    "single-object": "c3 01 and a fingerprint of 8 bytes",
}


def _describe(error: Exception) -> str:
    if isinstance(error, EOFError | struct.error):
        return "is cut short"
    if isinstance(error, IndexError):
        return "is cut short, or has a branch or symbol that its schema doesn't have,"
    if isinstance(error, UnicodeDecodeError):
        return "has text that is not UTF-8"
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    return shorten(str(error))
