"""Types of messages, from a file of descriptors or from a registry.

A registry gives the descriptor of one .proto file; those that it imports are its references. Files that come
with Protobuf (``google/protobuf``), Google's common types (``google/type``) and Confluent's own are not in a
registry: producers don't register them.
"""

from __future__ import annotations

import base64
import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from replayfilter.formats.definition import Definition, SchemaError
from replayfilter.formats.spec import shorten

Position = tuple[int, ...]
"""Where a .proto file has a type: its number in the file, or those of the types around it and in these."""

_KNOWN = re.compile(r"(google/(?:protobuf|type)|confluent(?:/types?)?)/[a-z0-9_]+\.proto")
_NAME = "default"  # of the file itself, as Confluent's readers have it


class MessageTypeError(ValueError):
    """The descriptors or the message's name are wrong; the text says what to correct."""


class MessageType:
    """A message type: its ``name``, and its ``position`` in its .proto file. ``parse`` reads a message."""

    def __init__(self, pool: DescriptorPool, name: str, position: Position) -> None:
        self._class: Any = GetMessageClass(pool.FindMessageTypeByName(name))
        self.name, self.position = name, position
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
            if not is_last and (field.message_type is None or is_repeated(field)):
                return f'"{name}" of {message.full_name} is no message, so nothing can be named in it'
            message = field.message_type
        return None

    @property
    def descriptor(self) -> Any:
        """Protobuf's own descriptor of the message."""
        return self._class.DESCRIPTOR


def described_type(descriptors: bytes, name: str) -> MessageType:
    """The message of a FileDescriptorSet.

    Raises MessageTypeError for bytes that are no descriptors, or don't have the message.
    """
    pool = DescriptorPool()
    try:
        files = FileDescriptorSet.FromString(descriptors)
        for file in files.file:
            pool.Add(file)
        positions = {full: position for file in files.file for full, position in _types_of(file)}
        if name not in positions:
            known = ", ".join(sorted(positions)[:10]) or "none"
            raise MessageTypeError(f"there is no message {shorten(name)}; the descriptors have {known}")
        return MessageType(pool, name, positions[name])
    except (DecodeError, KeyError, TypeError) as error:
        raise MessageTypeError(
            f"not a complete set of descriptors ({shorten(str(error).splitlines()[0])}); make it with "
            "protoc --include_imports --descriptor_set_out=FILE"
        ) from None


def registered_types(definition: Definition) -> dict[Position, MessageType]:
    """The types of a .proto file as a registry gives it: a FileDescriptorProto in base64.

    Raises SchemaError if it can't be used.
    """
    pool, added = DescriptorPool(), set[str]()
    try:
        for name, text in definition.references:
            if name not in added and not _KNOWN.fullmatch(name):
                _add(pool, _file(name, text), added)
        file = _file(_NAME, definition.text)
        _add(pool, file, added)
        return {position: MessageType(pool, name, position) for name, position in _types_of(file)}
    except SchemaError:
        raise
    except Exception as error:  # Protobuf raises any Python error for a wrong descriptor
        raise SchemaError.of(error, "a Protobuf schema") from None


def _file(name: str, text: str) -> FileDescriptorProto:
    file = FileDescriptorProto.FromString(base64.b64decode(text))
    file.name = name  # by which others import it
    return file


def _add(pool: DescriptorPool, file: FileDescriptorProto, added: set[str]) -> None:
    """Add a file to the pool, and before it those of its imports that are in no registry."""
    added.add(file.name)
    _refuse_methods(file.message_type)
    for name in file.dependency:
        if name not in added and _KNOWN.fullmatch(name):
            _add(pool, _known_file(name), added)
    pool.Add(file)


def _refuse_methods(messages: Sequence[DescriptorProto]) -> None:
    """Raises SchemaError for a field that would hide a method of its message, such as HasField."""
    for message in messages:
        for field in message.field:
            if hasattr(Message, field.name):
                raise SchemaError(f"{shorten(message.name)} has a field {field.name}, which can't be read")
        _refuse_methods(message.nested_type)


def _known_file(name: str) -> FileDescriptorProto:
    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    module = f"confluent_kafka.schema_registry.{module}" if name.startswith("confluent/") else module
    try:
        descriptor = importlib.import_module(module).DESCRIPTOR
    except ImportError:
        raise SchemaError(f"it imports {name}, which the installed packages don't have") from None
    file = FileDescriptorProto.FromString(descriptor.serialized_pb)
    file.name = name
    return file


def _types_of(file: FileDescriptorProto) -> Iterator[tuple[str, Position]]:
    return _types(file.message_type, file.package, ())


def _types(
    messages: Sequence[DescriptorProto], outer: str, position: Position
) -> Iterator[tuple[str, Position]]:
    """The full name and the position of each type, with those within others, but not those made for maps."""
    for index, message in enumerate(messages):
        if message.options.map_entry:
            continue
        name, own = f"{outer}.{message.name}".lstrip("."), (*position, index)
        yield name, own
        yield from _types(message.nested_type, name, own)


def is_repeated(field: Any) -> bool:
    """Whether a field is a list or a map."""
    try:
        return bool(field.is_repeated)
    except AttributeError:  # before protobuf 6.31
        return bool(field.label == field.LABEL_REPEATED)
