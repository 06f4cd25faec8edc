"""Digests: dedup keys as canonical bytes, hashed to 128 bits.

Two records have the same key if and only if these bytes are equal. A key is encoded field by field. Each
field has a type and its own length, so different keys never have equal bytes: ``("a", "bc")`` and
``("ab", "c")`` differ, and so do ``1`` and ``"1"``, ``1`` and ``true``, null and missing.

====================  =====================================================================
missing               ``m``
null                  ``n``
false, true           ``f``, ``t``
number in int64       ``i``, int64 big-endian
any other number      ``d``, uint32 length, decimal text ``[-]DIGITSeEXPONENT`` (no outer zeros)
text                  ``s``, uint32 length in bytes, UTF-8 (lone surrogates: three bytes each)
bytes                 ``b``, uint32 length, the bytes
array                 ``a``, uint32 count, the items
object                ``o``, uint32 count, name (as text) and value of each member, sorted by name
====================  =====================================================================

Numbers are compared by exact decimal value, because JSON has one number type: 1, 1.0 and 1e0 are one key,
and so are 0 and -0.0; 9007199254740993.0 and 9007199254740992 are two. A Python float counts as the
shortest decimal that reads back as the same float, which is what JSON writers print.

The digests are part of every checkpoint. A change of one byte here makes old state useless, so tests pin
them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from operator import itemgetter
from struct import Struct
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from replayfilter.core.key_run import CONTENT

DIGEST_BYTES = 16
_INT64_DIGITS = 19
_MIN, _MAX = -(1 << 63), (1 << 63) - 1
_SIZED: Callable[[bytes, int], bytes] = Struct(">cI").pack
_INTEGER: Callable[[bytes, int], bytes] = Struct(">cq").pack
_hash: Callable[[bytes], bytes] = xxhash.xxh3_128_digest
_by_name = itemgetter(0)
_ARRAYS = (list, tuple)
_NESTED = (list, tuple, dict)


class Missing(enum.Enum):
    """The type of :data:`MISSING`; an enum, so that it is the same object after pickling."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING
"""The value of a field that a record does not have, which is not the same as null."""


def encode_key(values: Iterable[object]) -> bytes:
    """The canonical bytes of a key: the encodings of its fields, in order.

    Values are str, bytes, int, float, Decimal, bool, None, MISSING, and lists, tuples and dicts with str
    keys of them, nested to any depth. Raises ``TypeError`` for anything else.

    >>> encode_key(["a", 1]).hex(" ")
    '73 00 00 00 01 61 69 00 00 00 00 00 00 00 01'
    >>> encode_key([1]) == encode_key([1.0]) == encode_key([Decimal("1e0")]) != encode_key([True])
    True
    """
    return b"".join(map(_encode, values))


def digest_key(values: Iterable[object]) -> bytes:
    """The 16 bytes of a key: XXH3-128, big-endian, of :func:`encode_key`.

    >>> digest_key(["a", "bc"]) == digest_key(["ab", "c"])
    False
    """
    return _hash(encode_key(values))


def digest_keys(columns: Sequence[Sequence[object]]) -> NDArray[np.uint64]:
    """The digests of n keys, given as one column of n values per field: uint64[n, 2], (high, low).

    >>> digest_keys([["a", "b"], [1, 2]]).shape
    (2, 2)
    """
    if len(columns) == 1:
        joined = b"".join([_hash(_encode(value)) for value in columns[0]])
    else:
        joined = b"".join([_hash(b"".join(map(_encode, key))) for key in zip(*columns, strict=True)])
    return np.frombuffer(joined, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def digest_contents(columns: Sequence[Sequence[object]]) -> NDArray[np.uint32]:
    """The digests of n contents, as :func:`digest_keys` takes keys: uint32[n], never 0.

    >>> one, other = digest_contents([["a", "b"], [1, 1]]).tolist()
    >>> one != other
    True
    """
    found = digest_keys(columns)[:, 1].astype(np.uint32)
    found[found == 0] = 1  # 0: not known
    return found


def content_name(fields: Sequence[str]) -> str:
    """The name under which digests of the content of these fields are kept: others can't be compared.

    >>> content_name(["@value"])
    'content-1d7889b4'
    """
    return f"{CONTENT}{xxhash.xxh3_64_hexdigest(encode_key(fields))[:8]}"


def partition_salt(topic: str, partition: int) -> tuple[int, int]:
    """What the digests of an input partition are combined with (XOR) where keys count within it only.

    >>> partition_salt("orders", 0) == partition_salt("orders", 1)
    False
    """
    return divmod(xxhash.xxh3_128_intdigest(f"{topic}\0{partition}".encode()), 1 << 64)


def _encode(value: object) -> bytes:
    """One field. The types of nearly all keys are checked first, because this runs once per record."""
    if type(value) is str:
        try:
            text = value.encode()
        except UnicodeEncodeError:
            return _scalar(value)
        return _SIZED(b"s", len(text)) + text
    if type(value) is int and _MIN <= value <= _MAX:
        return _INTEGER(b"i", value)
    if type(value) is bytes:
        return _SIZED(b"b", len(value)) + value
    if isinstance(value, _NESTED):
        return _tree(value)
    return _scalar(value)


def _tree(root: object) -> bytes:
    """Arrays and objects. With a stack, not recursion: a key may nest deeper than Python's limit."""
    parts: list[bytes] = []
    todo: list[object] = [root]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            parts.append(_SIZED(b"o", len(value)))
            for name, member in sorted(value.items(), key=_by_name, reverse=True):
                todo += (member, name)
        elif isinstance(value, _ARRAYS):
            parts.append(_SIZED(b"a", len(value)))
            todo += reversed(value)
        else:
            parts.append(_encode(value))
    return b"".join(parts)


def _scalar(value: object) -> bytes:
    match value:
        case None:
            return b"n"
        case Missing():
            return b"m"
        case bool():
            return b"t" if value else b"f"
        case int() if _MIN <= value <= _MAX:
            return _INTEGER(b"i", value)
        case int():
            return _decimal(Decimal(value))
        case float():
            return _decimal(Decimal(repr(value)))
        case Decimal():
            return _decimal(value)
        case str():
            text = value.encode("utf-8", "surrogatepass")
            return _SIZED(b"s", len(text)) + text
    raise TypeError(
        f"a key can't hold {type(value).__name__} ({str(value)[:80]!r}); convert it to text or a number"
    )


def _decimal(value: Decimal) -> bytes:
    """A number by its exact value, so that all ways of writing it have one encoding."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):  # NaN and infinities, which Avro has
        return _text_number(str(value))
    whole = "".join(map(str, digits)).lstrip("0")
    coefficient = whole.rstrip("0")
    exponent += len(whole) - len(coefficient)
    if not coefficient:
        return _INTEGER(b"i", 0)
    if exponent >= 0 and len(coefficient) + exponent <= _INT64_DIGITS:
        number = int(coefficient) * 10**exponent * (-1 if sign else 1)
        if _MIN <= number <= _MAX:
            return _INTEGER(b"i", number)
    return _text_number(f"{'-' if sign else ''}{coefficient}e{exponent}")


def _text_number(text: str) -> bytes:
    return _SIZED(b"d", len(text)) + text.encode()
