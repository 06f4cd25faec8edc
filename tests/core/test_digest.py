"""Canonical keys: pinned bytes, and which keys are equal."""

from __future__ import annotations

import itertools
import pickle
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayfilter.core.digest import MISSING, digest_key, digest_keys, encode_key

# Checkpoints have these digests: a change here is a change of the state format.
PINNED: list[tuple[list[Any], str, str]] = [
    (["a"], "73 00000001 61", "9b6a5d16aa9ab361e82adcd458c05f63"),
    ([1], "69 0000000000000001", "2b97bfbcbcd9609a8d5152cb965360a9"),
    ([-1], "69 ffffffffffffffff", "1e0fa58c1f9e577b92f9fc5d04ac20b3"),
    ([-(1 << 63)], "69 8000000000000000", "b642a9ae21c53266de48e2bd3e551e44"),
    ([1 << 63], "64 00000015" + b"9223372036854775808e0".hex(), "038bb4a82fe07062d2c3d47541fefbb2"),
    ([Decimal("-12.50")], "64 00000007" + b"-125e-1".hex(), "d976c242d46b70963b8797c55c10122f"),
    ([None], "6e", "c311d21b3583875acbaa0f6724ae8b0a"),
    ([MISSING], "6d", "d6e5345be2eaf78df0904807418c57fc"),
    ([True, False], "74 66", "d6db373ac6494cb89bf06484da68923d"),
    ([b"a"], "62 00000001 61", "9a49739bd3faa452d57f045f11716b16"),
    (["é\ud800"], "73 00000005 c3a9 eda080", "d6fdd3d12479e3e634c5d16b276961e8"),
    ([[1, [None]]], "61 00000002 69 0000000000000001 61 00000001 6e", "e5b792cd8ad5da1b63b23e2933753192"),
    (
        [{"b": 1, "a": {}}],
        "6f 00000002 73 00000001 61 6f 00000000 73 00000001 62 69 0000000000000001",
        "5759c0cc7f64453b8e36c73d104b9c3a",
    ),
    ([], "", "99aa06d3014798d86001c324468d497f"),
]


@pytest.mark.parametrize(("key", "encoding", "digest"), PINNED)
def test_encoding_and_digest_are_pinned(key: list[Any], encoding: str, digest: str) -> None:
    assert encode_key(key) == bytes.fromhex(encoding)
    assert digest_key(key).hex() == digest


SAME: list[list[Any]] = [
    [1, 1.0, Decimal("1"), Decimal("1.000"), Decimal("1e0"), Decimal("10e-1"), Decimal("0.1e1")],
    [0, -0.0, Decimal("-0"), Decimal("0e5"), Decimal("-0.000"), Decimal("0e999999999999999999")],
    [10**30, Decimal("1e30"), 1e30, Decimal("1000000000000000000000000000000.0")],
    [0.1, Decimal("0.1"), Decimal("0.10")],
    [(1 << 63) - 1, Decimal("9223372036854775807.0")],
    [1 << 63, Decimal("9223372036854775808"), Decimal("9223372036854775808.00")],
    [-(1 << 63), Decimal("-9223372036854775808.0")],
    [Decimal("1e400"), 10**400],
    [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}],
    [[1, 2], (1.0, 2)],
]


@pytest.mark.parametrize("group", SAME, ids=str)
def test_equal_values_in_different_notations_are_one_key(group: list[Any]) -> None:
    assert len({encode_key([value]) for value in group}) == 1


def test_all_other_keys_differ() -> None:
    keys: list[list[Any]] = [[group[0]] for group in SAME]
    keys += [["a", "bc"], ["ab", "c"], ["abc"], [["a", "bc"]], ["1"], [b"1"], [True], [None], [MISSING], [""]]
    keys += [[], [[]], [{}], [[[]]], [None, MISSING], [MISSING, None], [-1], [1.5], ["null"], [b""], [False]]
    keys += [[9007199254740992], [Decimal("9007199254740993.0")], [{"a": [1]}], [{"a": 1}], [[["a", 1]]]]
    keys += [[float("nan")], [float("inf")], [float("-inf")], ["NaN"], ["\ud800"], ["?"], ["\ufffd"]]
    for one, other in itertools.combinations(keys, 2):
        assert encode_key(one) != encode_key(other), (one, other)
        assert digest_key(one) != digest_key(other), (one, other)


def test_deep_nesting_does_not_recurse() -> None:
    deep: Any = "leaf"
    for _ in range(50_000):
        deep = [{"a": deep}]
    assert encode_key([deep]).endswith(encode_key(["leaf"]))


def test_values_without_a_canonical_form_are_refused() -> None:
    with pytest.raises(TypeError, match=r"can't hold set .*convert it"):
        encode_key([{1, 2}])


def test_missing_is_the_same_object_after_pickling() -> None:
    assert pickle.loads(pickle.dumps(MISSING)) is MISSING


def test_digests_of_columns_are_those_of_their_rows() -> None:
    columns: list[list[Any]] = [["a", "ab", 1, None], ["bc", "c", MISSING, {"x": []}]]
    digests = digest_keys(columns)
    assert digests.dtype == np.uint64
    assert digests.shape == (4, 2)
    for row, key in enumerate(zip(*columns, strict=True)):
        assert struct.pack(">QQ", *digests[row].tolist()) == digest_key(key)
        single = digest_keys([[key[0]]])
        assert struct.pack(">QQ", *single[0].tolist()) == digest_key(key[:1])
    assert digest_keys([[]]).shape == (0, 2)
    assert digest_keys([[], []]).shape == (0, 2)


scalars = st.one_of(
    st.none(),
    st.just(MISSING),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 64), 1 << 64),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.text(st.characters(), max_size=4),
    st.sampled_from("0123456789"),
    st.binary(max_size=4),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(values, max_size=4))
def test_encoding_can_be_read_back(key: list[Any]) -> None:
    """The bytes can be read back into the key, so they belong to no other key."""
    assert read_all(encode_key(key)) == [plain(value) for value in key]


@given(st.lists(values, max_size=3), st.lists(values, max_size=3))
def test_encodings_are_equal_only_for_equal_keys(one: list[Any], other: list[Any]) -> None:
    same = [plain(value) for value in one] == [plain(value) for value in other]
    assert (encode_key(one) == encode_key(other)) == same


def plain(value: Any) -> Any:
    """A value as a comparable pair: its type in a key, and its content."""
    match value:
        case bool() | None:
            return ("constant", value)
        case int():
            return ("number", Decimal(value))
        case float():
            return ("number", Decimal(repr(value)))
        case Decimal():
            return ("number", value)
        case list():
            return ("array", [plain(item) for item in value])
        case dict():
            return ("object", {name: plain(member) for name, member in value.items()})
    return (type(value).__name__, value)


def read_all(data: bytes) -> list[Any]:
    found = []
    while data:
        value, data = read_one(data)
        found.append(value)
    return found


def read_one(data: bytes) -> tuple[Any, bytes]:
    tag, data = data[:1], data[1:]
    if tag in b"nmft":
        return {
            b"n": ("constant", None),
            b"m": ("Missing", MISSING),
            b"f": ("constant", False),
            b"t": ("constant", True),
        }[tag], data
    if tag == b"i":
        return ("number", Decimal(int.from_bytes(data[:8], "big", signed=True))), data[8:]
    size, data = int.from_bytes(data[:4], "big"), data[4:]
    if tag == b"s":
        return ("str", data[:size].decode("utf-8", "surrogatepass")), data[size:]
    if tag == b"b":
        return ("bytes", data[:size]), data[size:]
    if tag == b"d":
        return ("number", Decimal(data[:size].decode())), data[size:]
    if tag == b"a":
        items = []
        for _ in range(size):
            item, data = read_one(data)
            items.append(item)
        return ("array", items), data
    assert tag == b"o", tag
    members = {}
    for _ in range(size):
        (_, name), data = read_one(data)
        members[name], data = read_one(data)
    return ("object", members), data
