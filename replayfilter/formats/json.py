"""The "json" format: only the configured fields become Python objects.

msgspec decodes a value into a struct that has only the members of the configured paths, and skips the rest.
Some values are valid JSON, but msgspec refuses them: escaped lone surrogates (a sender cut a text in the
middle of an emoji), and a scalar or array where a path expects an object. These values go to the parser of
the standard library.

- A value is an object in UTF-8, without byte order mark. Skipped parts are checked for JSON's grammar, but
  not for UTF-8. NaN and Infinity are not JSON.
- A value may begin with the prefix of Confluent's JSON Schema serializer: a zero byte, which no JSON has, and
  the schema's id in 4 bytes. The schema isn't read.
- If a name occurs more than once in an object, the last member counts.
- Limits: about 900 levels of nesting, integers of 4,300 digits, exponents of 18 digits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from replayfilter.core.digest import MISSING
from replayfilter.formats.fields import Field, look_up, outermost
from replayfilter.formats.spec import Reason, RecordColumns, RecordError, shorten

Path = tuple[str, ...]
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, InvalidOperation, RecursionError, TypeError)
_OFFSET = re.compile(r"\(byte (\d+)\)$")
_BOM = b"\xef\xbb\xbf"
_CONFLUENT, _PREFIX_BYTES = b"\x00", 5


class JsonReader:
    """An :class:`extractor.Reader` of JSON values, for ``fields`` that are paths."""

    needs = frozenset[str]()
    as_text = False

    def __init__(self, fields: Sequence[Field]) -> None:
        self._paths = [field.names for field in fields]
        # Of the paths ``user`` and ``user.id`` only the first is decoded; the second is looked up in it.
        outer = {path: outermost(path, self._paths) for path in self._paths}
        tree: dict[str, Any] = {}
        for path in outer.values():
            level = tree
            for name in path:
                level = level.setdefault(name, {})
        self._readers = [_ColumnReader(tree, outer[path], path[len(outer[path]) :]) for path in self._paths]
        self._decode = msgspec.json.Decoder(_struct_type(tree), float_hook=Decimal).decode

    def __call__(self, batch: RecordColumns, errors: dict[int, RecordError]) -> list[list[object]]:
        """One column per path, see :class:`extractor.Reader`."""
        decode, values = self._decode, batch.values
        records: list[object] = []
        documents: dict[int, dict[str, Any]] = {}
        with_prefix: list[int] = []
        expects_prefix = _has_prefix(next(filter(None, values), None))  # if one has it, most have
        if expects_prefix:
            values = [value[_PREFIX_BYTES:] if value and _has_prefix(value) else value for value in values]
        for row, value in enumerate(values):
            try:
                records.append(decode(value))  # type: ignore[arg-type]  # None raises TypeError
            except _DECODE_ERRORS as error:
                records.append(None)
                if not expects_prefix and _has_prefix(value):
                    with_prefix.append(row)
                    continue
                document = _parse_leniently(row, value, error)
                if isinstance(document, RecordError):
                    errors[row] = document
                else:
                    documents[row] = document

        columns = [reader.column(records) for reader in self._readers]
        for path, column in zip(self._paths, columns, strict=True):
            for row, document in documents.items():
                column[row] = look_up(document, path)
            for row in errors:
                column[row] = 0  # with an int the column stays on the fast path
        if with_prefix:
            found: dict[int, RecordError] = {}
            own = self(RecordColumns([values[row] for row in with_prefix]), found)
            errors.update(
                (with_prefix[at], error._replace(row=with_prefix[at])) for at, error in found.items()
            )
            for column, items in zip(columns, own, strict=True):
                for row, item in zip(with_prefix, items, strict=True):
                    column[row] = item
        return columns


class _ColumnReader:
    """Reads the column of one path from decoded records: struct attributes first, then dict lookups."""

    def __init__(self, tree: dict[str, Any], typed: Path, rest: Path) -> None:
        self._rest = rest
        self._attributes = []
        for name in typed:
            self._attributes.append(f"f{list(tree).index(name)}")
            tree = tree[name]

    def column(self, records: list[object]) -> list[object]:
        column = records
        for attribute in self._attributes:
            column = [getattr(item, attribute, MISSING) for item in column]
        return [look_up(item, self._rest) for item in column] if self._rest else column


def _struct_type(tree: dict[str, Any]) -> type[msgspec.Struct]:
    """A struct type with exactly these members, called f0, f1, ... in the order of the tree."""
    members = [
        (f"f{i}", _struct_type(inner) | None if inner else Any, MISSING)
        for i, inner in enumerate(tree.values())
    ]
    names = {f"f{i}": name for i, name in enumerate(tree)}
    return msgspec.defstruct("Record", members, rename=names, gc=False)


def _has_prefix(value: bytes | None) -> bool:
    return value is not None and len(value) > _PREFIX_BYTES and value.startswith(_CONFLUENT)


def _parse_leniently(row: int, value: bytes | None, decode_error: Exception) -> dict[str, Any] | RecordError:
    """Parse a value that msgspec refused: returns the document, or why it can't be used."""
    if not value:
        found = "null" if value is None else "no bytes"
        return RecordError(row, Reason.EMPTY, f"value: found {found}, expected a JSON object")
    try:
        if isinstance(decode_error, RecursionError):
            raise decode_error
        document = json.loads(value.decode(), parse_float=Decimal, parse_constant=_refuse_constant)
    except (ValueError, InvalidOperation, RecursionError) as error:
        # msgspec's validation errors are about the struct type; they don't say what is wrong in the JSON.
        cause = error if isinstance(decode_error, msgspec.ValidationError) else decode_error
        return RecordError(
            row, Reason.JSON, f"value: {_describe(cause, value)}; expected a JSON object in UTF-8"
        )
    if isinstance(document, dict):
        return document
    return RecordError(row, Reason.NOT_OBJECT, f"value: found {shorten(value, 40)}, expected a JSON object")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _describe(error: Exception, value: bytes) -> str:
    """What is wrong, and the bytes around that position."""
    at = 0
    if value.startswith(_BOM):
        problem = "byte order mark"
    elif isinstance(error, RecursionError):
        problem = "nested too deeply"
    elif isinstance(error, InvalidOperation):
        problem = "number with an exponent out of range"
    elif isinstance(error, UnicodeDecodeError):
        problem, value, at = "text is not UTF-8", error.object, error.start
    elif isinstance(error, json.JSONDecodeError):
        problem, at = error.msg, error.pos
    else:
        problem = str(error).removeprefix("JSON is malformed: ").partition(";")[0]
        offset = _OFFSET.search(problem)
        at = int(offset[1]) if offset else len(value) if "truncated" in problem else 0
    return f"{problem}, near {shorten(value[max(0, at - 20) : at + 20])}"
