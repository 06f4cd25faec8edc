"""The header in which Confluent's serializers put a schema's GUID, if they don't put its id before the value.

The header ``__value_schema_id`` has a byte 1, and the GUID in 16 bytes; for Protobuf, the position of the
message's type follows. The value then has no prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from replayfilter.core.stamp import last_header

SCHEMA_HEADER = "__value_schema_id"
LARGEST_ID = (1 << 32) - 1  # a GUID is handled as a number, too, and is above it
_VERSION, _END = 1, 17


def schema_in_header(headers: Sequence[tuple[str, bytes | None]] | None) -> tuple[int, bytes] | None:
    r"""A record's GUID as a number, and what follows it in the header; None without a header that has one.

    >>> schema_in_header([("__value_schema_id", bytes([1] + [0] * 15 + [7, 2, 2]))])
    (7, b'\x02\x02')
    """
    found = last_header(headers, SCHEMA_HEADER) if headers else None
    if found is None or len(found) < _END or found[0] != _VERSION:
        return None
    return int.from_bytes(found[_VERSION:_END]), found[_END:]


def shown_id(id_: int) -> str:
    """How messages show an id or a GUID.

    >>> shown_id(7), shown_id(1 << 124)
    ('7', '10000000-0000-0000-0000-000000000000')
    """
    return str(id_ if id_ <= LARGEST_ID else UUID(int=id_))
