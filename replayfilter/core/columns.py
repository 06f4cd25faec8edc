"""Column blocks: named numpy columns as bytes, the one codec for frames, routes, runs and state.

Layout, all little-endian: magic ``RFC1``; uint32 length of the JSON header; the header, an object with
``columns`` (``[[name, dtype, length], ...]``) and ``meta`` (an object); then the columns. The header and
each column are padded to 8 bytes. Reading copies nothing: the arrays are read-only views of the bytes.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = b"RFC1"
_DTYPE = re.compile(r"[<|][biuf][1248]")  # what pack writes: no objects, no items of 0 bytes
_ALIGN = 8  # bytes of the widest item, so that every view is aligned
_PREFIX = struct.Struct("<4sI")

Columns = dict[str, NDArray[Any]]


def pack(columns: Mapping[str, NDArray[Any]], meta: Mapping[str, Any] | None = None) -> bytes:
    """One-dimensional columns, and a small ``meta`` that JSON can hold, as bytes.

    >>> unpack(pack({"a": np.array([1, 2], dtype=np.int64)}, {"first": 7}))
    ({'a': array([1, 2])}, {'first': 7})
    """
    arrays = {name: np.ascontiguousarray(column) for name, column in columns.items()}
    shapes = [[name, array.dtype.str, len(array)] for name, array in arrays.items()]
    header = json.dumps({"columns": shapes, "meta": dict(meta or {})}, separators=(",", ":")).encode()
    parts = [_PREFIX.pack(MAGIC, len(header)), header, _padding(_PREFIX.size + len(header))]
    for array in arrays.values():
        parts += [array.tobytes(), _padding(array.nbytes)]
    return b"".join(parts)


def unpack(data: bytes | memoryview) -> tuple[Columns, dict[str, Any]]:
    """The columns and the ``meta`` that :func:`pack` was given; the columns are read-only views of ``data``.

    Raises ``ValueError`` if the bytes are not a column block, or are cut short.
    """
    view = memoryview(data)
    magic, size = _PREFIX.unpack_from(view) if len(view) >= _PREFIX.size else (b"", 0)
    if magic != MAGIC:
        raise ValueError(f"not a column block: starts with {bytes(view[:4])!r}, expected {MAGIC!r}")
    shapes, meta = _read_header(bytes(view[_PREFIX.size : _PREFIX.size + size]))
    at = _PREFIX.size + size
    at += len(_padding(at))
    columns: Columns = {}
    for name, dtype, length in shapes:
        end = at + dtype.itemsize * length
        if end > len(view):
            raise ValueError(f"column block is cut short: column {name!r} ends at byte {end} of {len(view)}")
        columns[name] = np.frombuffer(view, dtype=dtype, count=length, offset=at)
        columns[name].flags.writeable = False
        at = end + len(_padding(end - at))
    return columns, meta


def _read_header(text: bytes) -> tuple[list[tuple[str, np.dtype[Any], int]], dict[str, Any]]:
    """Name, dtype and length of each column, and the ``meta`` object."""
    shapes = []
    try:
        header = json.loads(text)
        for name, kind, length in header["columns"]:
            if not (isinstance(name, str) and _DTYPE.fullmatch(kind) and type(length) is int and length >= 0):
                raise ValueError(name, kind, length)
            shapes.append((name, np.dtype(kind), length))
        if isinstance(header["meta"], dict):
            return shapes, header["meta"]
    except (KeyError, TypeError, ValueError, RecursionError):
        pass
    raise ValueError(f"not a column block: its header is {text[:80]!r}")


def _padding(size: int) -> bytes:
    return b"\0" * (-size % _ALIGN)
