"""The "protobuf" format: messages whose types a registry knows, or of one type in a file of descriptors.

- A path leads through messages by the names of the .proto file. With a file of descriptors it is checked
  before the start; with a registry, what a type doesn't have is missing.
- A field that is not set is missing if its presence is known (messages, ``optional``, ``oneof``, proto2).
  Other fields have their default then: 0, "", false.
- Values as keys: enums as their name, timestamps as points in time, maps and messages as objects. A message
  in a key has the fields that are set.
- Fields that the descriptors don't know are skipped, so producers may use a newer schema.
- With encoding ``confluent`` a value begins with a zero byte, the schema's id in 4 bytes, and the position of
  the message's type in its .proto file. Or the schema's GUID and the position are in the header
  ``__value_schema_id``, and the value begins at once; no message begins with a zero byte.

See message_type.py for where types come from.
"""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from replayfilter.core.digest import MISSING
from replayfilter.formats.definition import Definition, SchemaError
from replayfilter.formats.expiry_keys import Instant
from replayfilter.formats.fields import Field
from replayfilter.formats.protobuf.message_type import (
    MessageType,
    MessageTypeError,
    Position,
    described_type,
    is_repeated,
    registered_types,
)
from replayfilter.formats.schema_header import SCHEMA_HEADER, schema_in_header
from replayfilter.formats.spec import ProtobufSpec, Reason, RecordColumns, RecordError, shorten

ENCODINGS = ("confluent", "plain")
_TIMESTAMP = "google.protobuf.Timestamp"
_ID_BYTES = 5
_COMMON = {bytes([2, 2 * number]): (number,) for number in range(64)}  # types that are in no other type

Headers = Sequence[tuple[str, bytes | None]]
Column = tuple[Sequence[str], Any] | None
"""The names of the messages around a field, and its descriptor; None for a path that a type doesn't have."""


Place = tuple[int, Position, int]
"""The schema and the position of a value's type, and where the message begins in the value."""


class Plan(NamedTuple):
    """How to read the messages of a type."""

    name: str
    parse: Callable[[bytes], Any]
    columns: list[Column]


Types = Mapping[Position, Plan]


class ProtobufReader:
    """An :class:`extractor.Reader` of messages, for ``fields`` that are paths.

    With a registry, a call raises :class:`RegistryError` if it needs a schema and the registry is down, and
    :class:`UnknownSchemas` with all unknown ids in the batch that are not recorded.
    """

    as_text = False

    def __init__(self, fields: Sequence[Field], spec: ProtobufSpec) -> None:
        """Raises MessageTypeError for wrong descriptors, and for paths that their message doesn't have."""
        self._paths = [field.names for field in fields]
        self._message = spec.message
        self._has_prefix = spec.encoding == "confluent"
        self.needs = frozenset({"headers"} if self._has_prefix else ())
        self._registry = None
        self._registered: dict[int, Types | SchemaError] = {}
        if self._has_prefix and not spec.descriptors:
            # The import of the registry's client takes half a second; descriptors don't need it.
            importlib.import_module("google.type.date_pb2")  # which schemas may import

            from replayfilter.formats.registry import Registry

            self._registry = Registry("protobuf", spec.registry, dict(spec.options), spec.unknown)
            return
        try:
            descriptors = base64.b64decode(spec.descriptors, validate=True)
        except binascii.Error as error:
            raise MessageTypeError(f"the descriptors are not base64 ({error})") from None
        message = described_type(descriptors, spec.message)
        for path in self._paths:
            if wrong := message.wrong_path(path):
                raise MessageTypeError(wrong)
        self._described: Types = {message.position: self._plan(message)}
        self._place: Place = (0, message.position, 0)

    def __call__(self, batch: RecordColumns, errors: dict[int, RecordError]) -> list[list[object]]:
        """One column per path, see :class:`extractor.Reader`."""
        headers = batch.headers or [None] * len(batch.values)
        places = [
            self._locate(row, value, pairs)
            for row, (value, pairs) in enumerate(zip(batch.values, headers, strict=True))
        ]
        schemas = self._find({place[0] for place in places if type(place) is tuple})
        messages: list[Any] = []
        plans: list[Plan | None] = []
        for row, (value, place) in enumerate(zip(batch.values, places, strict=True)):
            found = place if isinstance(place, RecordError) else self._read(row, value or b"", place, schemas)
            if isinstance(found, RecordError):
                errors[row] = found
                messages.append(None)
                plans.append(None)
            else:
                messages.append(found[0])
                plans.append(found[1])
        return [_column(messages, plans, at) for at in range(len(self._paths))]

    def _locate(self, row: int, value: bytes | None, headers: Headers | None) -> Place | RecordError:
        """Where the schema, the type and the message of a record are, or the error if it has none."""
        if value is None:
            expected = f"a {self._message}" if self._message else "a message"
            return RecordError(row, Reason.EMPTY, f"value: found null, expected {expected}")
        if not self._has_prefix:
            return self._place
        found = _after_prefix(value) if value[:1] == b"\0" else _in_header(headers)
        if found is not None:
            return found
        start = value[:10].hex(" ") or "nothing"
        message = (
            f"value: begins with {start}, expected a zero byte, a schema id and a type, or a header "
            f"{SCHEMA_HEADER} with a type"
        )
        return RecordError(row, Reason.PROTOBUF_PREFIX, message)

    def _find(self, ids: set[int]) -> Mapping[int, Types | SchemaError]:
        """The types of each schema that may be read, or why it can't be used."""
        if self._registry is None:
            return dict.fromkeys(ids, self._described)
        new = ids - self._registered.keys()
        if not new:
            return self._registered
        unknown: dict[int, Types | SchemaError] = {}
        for id_, definition in self._registry.find(sorted(new)).items():
            if isinstance(definition, SchemaError):
                unknown[id_] = definition  # not kept: the schema may be known next time
                continue
            try:
                self._registered[id_] = self.types_of(definition)
            except SchemaError as error:
                self._registered[id_] = error
        return self._registered | unknown

    def types_of(self, definition: Definition) -> Types:
        """How to read each type of a schema, or the one that the config names. Raises SchemaError."""
        types = registered_types(definition).items()
        return {at: self._plan(type_) for at, type_ in types if self._message in ("", type_.name)}

    def _plan(self, type_: MessageType) -> Plan:
        columns: list[Column] = [
            None if type_.wrong_path(path) else (path[:-1], type_.field(path)) for path in self._paths
        ]
        return Plan(type_.name, type_.parse, columns)

    def _read(
        self, row: int, value: bytes, place: Place, schemas: Mapping[int, Types | SchemaError]
    ) -> tuple[Any, Plan] | RecordError:
        """The message and where its fields are, or the error of a value that is none."""
        schema, position, start = place
        types = schemas[schema]
        if isinstance(types, SchemaError):
            message = f"value: can't be read by its schema: {types}"
            return RecordError(row, Reason.PROTOBUF_SCHEMA, message)
        plan = types.get(position)
        if plan is None:
            message = (
                f"value: has type {list(position)} of its schema, counted from 0, expected "
                f"{self._expected(types)}"
            )
            return RecordError(row, Reason.PROTOBUF_PREFIX, message)
        try:
            return plan.parse(value[start:] if start else value), plan
        except DecodeError:
            message = f"value: no {plan.name}, or cut short, near {shorten(value[start:], 40)}"
            return RecordError(row, Reason.PROTOBUF, message)

    def _expected(self, types: Types) -> str:
        known = " or ".join(f"{list(at)}, which is {plan.name}" for at, plan in list(types.items())[:5])
        return known[:200] or f"{self._message or 'a message'}, which the schema doesn't have"


def _after_prefix(value: bytes) -> Place | None:
    """What the prefix of a value says; None if there is no whole prefix."""
    found = _position(value, _ID_BYTES)
    return None if found is None else (int.from_bytes(value[1:_ID_BYTES], signed=True), *found)


def _in_header(headers: Headers | None) -> Place | None:
    """What the header of a value without a prefix says; None if no header has the position."""
    schema = schema_in_header(headers)
    found = None if schema is None else _position(schema[1], 0)
    if schema is None or found is None or found[1] != len(schema[1]):
        return None
    return schema[0], found[0], 0


def _position(data: bytes, at: int) -> tuple[Position, int] | None:
    """The position of a type, which begins at ``at``, and where it ends; None if there is none."""
    common = _COMMON.get(data[at : at + 2])
    if common is not None:
        return common, at + 2
    numbers: list[int] = []
    while not numbers or len(numbers) <= numbers[0]:
        number = shift = 0
        while True:
            if at >= len(data) or shift > 28:
                return None
            number |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 0x80:
                break
        if number & 1:  # zigzag: a negative number
            return None
        numbers.append(number >> 1)
    return tuple(numbers[1:]) or (0,), at  # no number at all stands for [0]


def _column(messages: Sequence[Any], plans: Sequence[Plan | None], at: int) -> list[object]:
    """The values of the fields in the column ``at``."""
    types = dict.fromkeys(map(id, plans))
    first = plans[0] if plans else None
    if len(types) == 1 and first is not None:  # as nearly always
        column = first.columns[at]
        return [look_up(message, column) for message in messages]
    pairs = zip(messages, plans, strict=True)
    return [look_up(message, plan.columns[at]) if plan is not None else 0 for message, plan in pairs]


def look_up(message: Any, column: Column) -> object:
    """The value of a field of a message, or of one within it."""
    if column is None:
        return MISSING
    outer, field = column
    for name in outer:
        if not message.HasField(name):
            return MISSING
        message = getattr(message, name)
    if field.has_presence and not message.HasField(field.name):
        return MISSING
    return _plain(field, getattr(message, field.name))


def _plain(field: Any, value: Any) -> object:
    """A field's value as keys take it."""
    if not is_repeated(field):
        return _plain_item(field, value)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        item = field.message_type.fields_by_name["value"]
        return {str(key): _plain_item(item, value[key]) for key in value}
    return [_plain_item(field, each) for each in value]


def _plain_item(field: Any, value: Any) -> object:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.message_type is None:
        return value
    if field.message_type.full_name == _TIMESTAMP:
        seconds, nanos = getattr(value, "seconds", None), getattr(value, "nanos", None)
        if type(seconds) is int and type(nanos) is int:  # a registry's schema may define its own
            return Instant(seconds * 10**9 + nanos)
    return {own.name: _plain(own, item) for own, item in value.ListFields()}
