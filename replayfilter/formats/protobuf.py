"""The "protobuf" format: messages of one type, which a file of descriptors describes.

- A path leads through messages by the names of the .proto file. What it names is checked before the start.
- A field that is not set is missing if its presence is known (messages, ``optional``, ``oneof``, proto2).
  Other fields have their default then: 0, "", false.
- Values as keys: enums as their name, timestamps as points in time, maps and messages as objects. A message
  in a key has the fields that are set.
- Fields that the descriptors don't know are skipped, so producers may use a newer schema.
- With encoding ``confluent`` a value begins with a zero byte, the schema's id in 4 bytes, and the position of
  the message's type in its .proto file. Or the position is in the header ``__value_schema_id``, and the value
  begins at once; no message begins with a zero byte. The registry isn't asked.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from replayfilter.core.digest import MISSING
from replayfilter.formats.expiry_keys import Instant
from replayfilter.formats.fields import Field
from replayfilter.formats.schema_header import SCHEMA_HEADER, schema_in_header
from replayfilter.formats.spec import ProtobufSpec, Reason, RecordColumns, RecordError, shorten

ENCODINGS = ("confluent", "plain")
_TIMESTAMP = "google.protobuf.Timestamp"
_ID_BYTES = 5

Headers = Sequence[tuple[str, bytes | None]]


class MessageTypeError(ValueError):
    """The descriptors or the message's name are wrong; the text says what to correct."""


class MessageType:
    """A message type: its ``name``, and its ``position`` in its .proto file, from the outermost type on."""

    def __init__(self, descriptors: bytes, name: str) -> None:
        """Raises MessageTypeError for bytes that are no descriptors, or don't have the message."""
        pool = DescriptorPool()
        try:
            files = FileDescriptorSet.FromString(descriptors)
            for file in files.file:
                pool.Add(file)
            positions = {
                full: position
                for file in files.file
                for full, position in _types(file.message_type, file.package, ())
            }
            if name not in positions:
                known = ", ".join(sorted(positions)[:10]) or "none"
                raise MessageTypeError(f"there is no message {shorten(name)}; the descriptors have {known}")
            self._class: Any = GetMessageClass(pool.FindMessageTypeByName(name))
        except (DecodeError, KeyError, TypeError) as error:
            raise MessageTypeError(
                f"not a complete set of descriptors ({shorten(str(error).splitlines()[0])}); make it with "
                "protoc --include_imports --descriptor_set_out=FILE"
            ) from None
        self.name, self.position = name, positions[name]
        self.parse: Callable[[bytes], Any] = self._class.FromString

    def field(self, names: Sequence[str]) -> Any:
        """The descriptor of the field at a path that is not wrong."""
        message = self._class.DESCRIPTOR
        for name in names[:-1]:
            message = message.fields_by_name[name].message_type
        return message.fields_by_name[names[-1]]

    def wrong_path(self, names: Sequence[str]) -> str | None:
        """What is wrong with a path into the message; None if nothing is."""
        message = self._class.DESCRIPTOR
        for number, name in enumerate(names):
            field = message.fields_by_name.get(name)
            if field is None:
                known = ", ".join(sorted(message.fields_by_name)[:20])
                return f'"{name}" is no field of {message.full_name}, which has {known}'
            is_last = number == len(names) - 1
            if not is_last and (field.message_type is None or _is_repeated(field)):
                return f'"{name}" of {message.full_name} is no message, so nothing can be named in it'
            message = field.message_type
        return None


class ProtobufReader:
    """An :class:`extractor.Reader` of messages, for ``fields`` whose paths are those of the message."""

    as_text = False

    def __init__(self, fields: Sequence[Field], spec: ProtobufSpec) -> None:
        """Raises MessageTypeError for wrong descriptors, and for paths that the message doesn't have."""
        try:
            descriptors = base64.b64decode(spec.descriptors, validate=True)
        except binascii.Error as error:
            raise MessageTypeError(f"the descriptors are not base64 ({error})") from None
        self._type = MessageType(descriptors, spec.message)
        for field in fields:
            if wrong := self._type.wrong_path(field.names):
                raise MessageTypeError(wrong)
        self._columns = [(field.names[:-1], self._type.field(field.names)) for field in fields]
        self._has_prefix = spec.encoding == "confluent"
        self.needs = frozenset({"headers"} if self._has_prefix else ())

    def __call__(self, batch: RecordColumns, errors: dict[int, RecordError]) -> list[list[object]]:
        """One column per path, see :class:`extractor.Reader`."""
        messages: list[Any] = []
        headers = batch.headers or [None] * len(batch.values)
        for row, (value, pairs) in enumerate(zip(batch.values, headers, strict=True)):
            message = self._read(row, value, pairs)
            if isinstance(message, RecordError):
                errors[row], message = message, None
            messages.append(message)
        return [[_look_up(message, *column) for message in messages] for column in self._columns]

    def _read(self, row: int, value: bytes | None, headers: Headers | None) -> Any:
        """The message, or the error of a value that is none."""
        if value is None:
            return RecordError(row, Reason.EMPTY, f"value: found null, expected a {self._type.name}")
        if self._has_prefix:
            found = _after_prefix(value) if value[:1] == b"\0" else _with_header(value, headers)
            if found is None:
                start = value[:10].hex(" ") or "nothing"
                message = (
                    f"value: begins with {start}, expected a zero byte, a schema id and a type, or a header "
                    f"{SCHEMA_HEADER} with a type"
                )
                return RecordError(row, Reason.PROTOBUF_PREFIX, message)
            position, value = found
            if position != self._type.position:
                message = (
                    f"value: has type {list(position)} of its schema, counted from 0, expected "
                    f"{list(self._type.position)}, which is {self._type.name}"
                )
                return RecordError(row, Reason.PROTOBUF_PREFIX, message)
        try:
            return self._type.parse(value)
        except DecodeError:
            message = f"value: no {self._type.name}, or cut short, near {shorten(value, 40)}"
            return RecordError(row, Reason.PROTOBUF, message)


def _types(
    messages: Sequence[DescriptorProto], outer: str, position: tuple[int, ...]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The full name and the position of each type, with those within others, but not those made for maps."""
    for index, message in enumerate(messages):
        if message.options.map_entry:
            continue
        name, own = f"{outer}.{message.name}".lstrip("."), (*position, index)
        yield name, own
        yield from _types(message.nested_type, name, own)


def _after_prefix(value: bytes) -> tuple[tuple[int, ...], bytes] | None:
    """The position of the type, and the bytes of the message; None if there is no whole prefix."""
    found = _position(value, _ID_BYTES)
    return None if found is None else (found[0], value[found[1] :])


def _with_header(value: bytes, headers: Headers | None) -> tuple[tuple[int, ...], bytes] | None:
    """The position of the type, and the bytes of the message; None if no header has the position."""
    schema = schema_in_header(headers)
    found = None if schema is None else _position(schema[1], 0)
    if schema is None or found is None or found[1] != len(schema[1]):
        return None
    return found[0], value


def _position(data: bytes, at: int) -> tuple[tuple[int, ...], int] | None:
    """The position of a type, which begins at ``at``, and where it ends; None if there is none."""
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


def _look_up(message: Any, outer: Sequence[str], field: Any) -> object:
    """The value of a field of a message, or of one that ``outer`` leads to."""
    if message is None:
        return 0  # of an error; with an int the column stays on the fast path
    for name in outer:
        if not message.HasField(name):
            return MISSING
        message = getattr(message, name)
    if field.has_presence and not message.HasField(field.name):
        return MISSING
    return _plain(field, getattr(message, field.name))


def _plain(field: Any, value: Any) -> object:
    """A field's value as keys take it."""
    if not _is_repeated(field):
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
        return Instant(value.seconds * 10**9 + value.nanos)
    return {own.name: _plain(own, item) for own, item in value.ListFields()}


def _is_repeated(field: Any) -> bool:
    try:
        return bool(field.is_repeated)
    except AttributeError:  # before protobuf 6.31
        return bool(field.label == field.LABEL_REPEATED)
