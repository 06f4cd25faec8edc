"""JSON values: only the fields that are asked for become Python objects.

msgspec reads a value straight into a struct made for the configured paths and skips the rest. What it
refuses although JSON's grammar allows it goes to the standard library's parser: escaped lone surrogates
(text that some sender cut through an emoji), and a scalar or array where a path expects an object.

- A value is an object in UTF-8, without byte order mark. Parts that are skipped are checked for grammar,
  not for UTF-8. NaN and Infinity are not JSON.
- Of members with the same name the last one counts.
- Limits: around 900 levels of nesting, integers of 4,300 digits, exponents of 18.
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
from replayfilter.formats.spec import Fault, Reason, shorten

Path = tuple[str, ...]
_REFUSALS = (msgspec.DecodeError, UnicodeDecodeError, InvalidOperation, RecursionError, TypeError)
_OFFSET = re.compile(r"\(byte (\d+)\)$")
_BOM = b"\xef\xbb\xbf"


class JsonReader:
    """Reads one column for each of ``fields`` out of JSON values; a :class:`extractor.Reader`."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._paths = [field.names for field in fields]
        # A path inside another one (``user`` and ``user.id``) is looked up in the outer one's value.
        outer = {path: outermost(path, self._paths) for path in self._paths}
        tree: dict[str, Any] = {}
        for path in outer.values():
            level = tree
            for name in path:
                level = level.setdefault(name, {})
        self._steps = [_Steps(tree, outer[path], path[len(outer[path]) :]) for path in self._paths]
        self._decode = msgspec.json.Decoder(_shape(tree), float_hook=Decimal).decode

    def __call__(self, values: Sequence[bytes | None], faults: dict[int, Fault]) -> list[list[object]]:
        decode = self._decode
        records: list[object] = []
        documents: dict[int, dict[str, Any]] = {}
        for row, value in enumerate(values):
            try:
                records.append(decode(value))  # type: ignore[arg-type]  # None: TypeError, a refusal
            except _REFUSALS as refusal:
                records.append(None)
                document = _second_opinion(row, value, refusal)
                if isinstance(document, Fault):
                    faults[row] = document
                else:
                    documents[row] = document

        columns = [steps.column(records) for steps in self._steps]
        for path, column in zip(self._paths, columns, strict=True):
            for row, document in documents.items():
                column[row] = look_up(document, path)
            for row in faults:
                column[row] = 0  # an int, so that one bad record does not make the whole batch slow
        return columns


class _Steps:
    """How to get from decoded records to the column of one path: attributes, then dict lookups."""

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


def _shape(tree: dict[str, Any]) -> type[msgspec.Struct]:
    """The struct type with just these members, f0, f1, ... in the tree's order."""
    members = [
        (f"f{i}", _shape(inner) | None if inner else Any, MISSING) for i, inner in enumerate(tree.values())
    ]
    names = {f"f{i}": name for i, name in enumerate(tree)}
    return msgspec.defstruct("Record", members, rename=names, gc=False)


def _second_opinion(row: int, value: bytes | None, refusal: Exception) -> dict[str, Any] | Fault:
    """What becomes of a value that msgspec refused: a document after all, or the record's fault."""
    if not value:
        found = "null" if value is None else "no bytes"
        return Fault(row, Reason.EMPTY, f"value: found {found}, expected a JSON object")
    try:
        if isinstance(refusal, RecursionError):
            raise refusal
        document = json.loads(value.decode(), parse_float=Decimal, parse_constant=_refuse_constant)
    except (ValueError, InvalidOperation, RecursionError) as error:
        # msgspec's validation errors are about the shape asked for, which is not the fault here.
        cause = error if isinstance(refusal, msgspec.ValidationError) else refusal
        return Fault(row, Reason.JSON, f"value: {_describe(cause, value)}; expected a JSON object in UTF-8")
    if isinstance(document, dict):
        return document
    return Fault(row, Reason.NOT_OBJECT, f"value: found {shorten(value, 40)}, expected a JSON object")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _describe(error: Exception, value: bytes) -> str:
    """What is wrong, and the bytes around the place."""
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
